"""A candidate's kernels, emitted and compiled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mirage_onnx.codegen.compile import compile_many
from mirage_onnx.codegen.cubin import Cubin
from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import Candidate, Kernel, KernelParams, Region, UGraph, ugraph_extents
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class Compiled:
  """A candidate with the text and image of each of its kernels."""

  candidate: Candidate
  sources: tuple[KernelSource, ...]
  cubins: tuple[Cubin, ...]


def emit_candidate(
  candidate: Candidate,
  extents: Mapping[str, int],
  target: Target,
  name: str,
  runtime: Iterable[str] = (),
) -> tuple[KernelSource, ...]:
  """The CUDA text of each launch; kernel names begin with ``name``.

  ``runtime``: axes that have any size in a run. A kernel has a launch of its own unless its numbers say that
  it is ``beside`` the one in front.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, LAYOUT, SMEM or DYNAMIC_DIM.
  """
  graph = candidate.ugraph
  every = ugraph_extents(graph, candidate.params, extents)
  launches: list[list[tuple[Kernel, KernelParams]]] = []
  for kernel, params in zip(graph.kernels, candidate.params, strict=True):
    named = replace(kernel, name=f"{name}_{kernel.name}")
    if params.beside and launches:
      launches[-1].append((named, params))
    else:
      launches.append([(named, params)])
  return tuple(_emitted(graph, own, every, target, frozenset(runtime)) for own in launches)


def _emitted(
  graph: UGraph, own: Sequence[tuple[Kernel, KernelParams]], extents: Mapping[str, int], target: Target,
  runtime: frozenset[str],
) -> KernelSource:  # fmt: skip
  (first, params), *others = own
  if any(replace(p, beside=False) != replace(params, beside=False) for _, p in others):
    raise RejectionError("LAYOUT", f"{first.name} and those beside it have different numbers")
  return emit_kernel(graph, first, params, extents, target, runtime, [k for k, _ in others])


def compile_candidates(
  region: Region, candidates: Sequence[Candidate], target: Target, *, keep: int, workers: int = 1
) -> tuple[list[Compiled], list[Rejection]]:
  """The first ``keep`` candidates that the code generator and NVRTC accept, and the refusals."""
  done: list[Compiled] = []
  refused: list[Rejection] = []
  waiting = iter(candidates)
  while batch := list(islice(waiting, keep - len(done))):
    emitted: list[tuple[Candidate, tuple[KernelSource, ...]]] = []
    for candidate in batch:
      try:
        name = f"mugraph_{region.key}"
        sources = emit_candidate(candidate, region.extents, target, name, region.runtime)
      except RejectionError as error:
        refused.append(error.rejection)
      else:
        emitted.append((candidate, sources))
    images = iter(compile_many([s for _, own in emitted for s in own], target, workers))
    for candidate, sources in emitted:
      own = list(islice(images, len(sources)))
      if bad := [i for i in own if isinstance(i, Rejection)]:
        refused.append(bad[0])
      else:
        cubins = tuple(i for i in own if isinstance(i, Cubin))
        done.append(Compiled(candidate, sources, cubins))
  return done, refused
