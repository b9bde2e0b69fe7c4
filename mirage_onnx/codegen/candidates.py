"""A candidate's kernels, emitted and compiled."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mirage_onnx.codegen.compile import compile_many
from mirage_onnx.codegen.cubin import Cubin
from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import Candidate, Region, ugraph_extents
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
  """The CUDA text of each kernel; kernel names begin with ``name``.

  ``runtime``: axes that have any size in a run.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, LAYOUT, SMEM or DYNAMIC_DIM.
  """
  graph = candidate.ugraph
  every = ugraph_extents(graph, candidate.params, extents)
  return tuple(
    emit_kernel(graph, replace(k, name=f"{name}_{k.name}"), p, every, target, frozenset(runtime))
    for k, p in zip(graph.kernels, candidate.params, strict=True)
  )


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
