"""A candidate's kernels, emitted and compiled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.delegates import Delegates
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import Candidate, Kernel, KernelParams, Region, UGraph, ugraph_extents
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class Compiled:
  """A candidate with the text and image of each of its kernels."""

  candidate: Candidate
  sources: tuple[KernelSource, ...]
  cubins: tuple[Cubin, ...]


#: Who else makes programs of a region, None of what is left to us; the last one is asked.
Elsewhere = Callable[[Region, Sequence[Candidate], Target], Sequence[Compiled | Rejection | None]]
_elsewhere = Delegates[Elsewhere]()


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


def made_elsewhere(by: Elsewhere) -> AbstractContextManager[None]:
  """Inside, ``compile_candidates`` of any thread that may have several workers asks ``by`` first."""
  return _elsewhere.asked(by)


def compile_candidates(
  region: Region, candidates: Sequence[Candidate], target: Target, *, keep: int, workers: int = 1
) -> tuple[list[Compiled], list[Rejection]]:
  """The first ``keep`` candidates that the code generator and NVRTC accept, and the refusals."""
  done: list[Compiled] = []
  refused: list[Rejection] = []
  waiting = iter(candidates)
  while batch := list(islice(waiting, keep - len(done))):
    made: list[Compiled | Rejection | None] = [None] * len(batch)
    if workers > 1 and len(batch) > 1 and _elsewhere:
      made = list(_elsewhere[-1](region, batch, target))
    here = iter(
      _compiled(region, [c for c, m in zip(batch, made, strict=True) if m is None], target, workers)
    )
    for one in (next(here) if m is None else m for m in made):
      if isinstance(one, Rejection):
        refused.append(one)
      else:
        done.append(one)
  return done, refused


def _compiled(
  region: Region, some: Sequence[Candidate], target: Target, workers: int
) -> list[Compiled | Rejection]:
  """Each, or its first refusal."""
  emitted: list[tuple[Candidate, tuple[KernelSource, ...] | Rejection]] = []
  for candidate in some:
    try:
      name = f"mugraph_{region.key}"
      sources = emit_candidate(candidate, region.extents, target, name, region.runtime)
    except RejectionError as error:
      emitted.append((candidate, error.rejection))
    else:
      emitted.append((candidate, sources))
  texts = [s for _, own in emitted if not isinstance(own, Rejection) for s in own]
  images = iter(compile_many(texts, target, workers))
  found: list[Compiled | Rejection] = []
  for candidate, made in emitted:
    if isinstance(made, Rejection):
      found.append(made)
      continue
    own = list(islice(images, len(made)))
    bad = next((i for i in own if isinstance(i, Rejection)), None)
    cubins = tuple(i for i in own if isinstance(i, Cubin))
    found.append(Compiled(candidate, made, cubins) if bad is None else bad)
  return found
