"""One search per family of regions: what is found serves every other size of the same region.

    search_proven    the search at the region's own extents, with every µGraph that was proven
    probe            the same at probe shapes, so that other sizes find their best among the union
    from_known       a region of a known family: numbers, and what the verifier says of its best

All three with a store of what is known: ``shared_searches.py``.

Regions of one family differ in sizes. Probe shapes change the axes that no weight has (batch,
tokens, cached tokens), one at a time, to 1, 16, 256 and 4096 elements, because the best programs
change there: how many rows a block has, whether the grid splits them, whether an intermediate
result fits. One more has the fewest tokens and the smallest weights that are near (``structures``),
where a block for every element is best. No axis has one element (the importer drops it, which makes
another structure), so 2 stand for 1.

Equivalence does not depend on sizes. Safety in floating point does, so ``verify`` is asked for each
region that has candidates returned; at probe shapes it is asked about the region itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from mirage_onnx import deadline
from mirage_onnx.errors import Rejection
from mirage_onnx.events import silent
from mirage_onnx.ir import KernelParams, Region, UGraph, print_ugraph
from mirage_onnx.superopt.axioms import AXIOMS, Axiom
from mirage_onnx.superopt.expected_time import too_slow
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.renumber import KnownGraph, renumber
from mirage_onnx.superopt.result import (
  ProofLike,
  SearchBound,
  SearchReport,
  SearchResult,
  Stop,
  Verified,
  Verify,
  is_partial,
  proven_graph,
  varied,
  widened,
)
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import EMITTED, Space, space_of
from mirage_onnx.superopt.structures import (
  NEAR,
  FamilyEntry,
  dominant,
  fixed_axes,
  part_axes,
  weight_axes,
)
from mirage_onnx.target import Target

PROBES = (1, 16, 256, 4096)
#: Ends of a search that another run with the same setting would reach too.
FINISHED = (Stop.EXHAUSTED, Stop.STATE_LIMIT)


@dataclass(frozen=True, slots=True)
class SearchScope:
  """What is searched, without a region: the setting of all searches of a family."""

  target: Target
  bound: SearchBound = field(default_factory=SearchBound)
  space: Space = EMITTED
  axioms: tuple[Axiom, ...] = AXIOMS
  #: What is expected to take longer is not proven.
  worth_us: float = inf

  @classmethod
  def of(cls, target: Target, bound: SearchBound, region: Region, worth_us: float = inf) -> SearchScope:
    """What the pipeline searches for ``region``."""
    space = space_of(region)
    return cls(target, widened(bound, space), space, worth_us=worth_us)


def search_proven(
  region: Region, scope: SearchScope, verify: Verify, *, budget_s: float, hooks: Hooks
) -> tuple[SearchResult, tuple[str, ...]]:
  """The search, and the texts of all µGraphs that it has proven, in the order of their cost."""
  asked = _Asked(region, verify, {})
  return _search(region, scope, asked, budget_s, hooks), asked.proven


def probe(
  region: Region,
  scope: SearchScope,
  verify: Verify,
  graphs: Sequence[str],
  entry: FamilyEntry | None,
  probes: Sequence[int],
  *,
  budget_s: float,
  hooks: Hooks,
) -> FamilyEntry | None:
  """What is known after a search of ``region`` that has proven ``graphs``, and of its probes.

  ``entry`` was known before. None where nothing is; probes that were cut short are left out.
  """
  deadline = time.monotonic() + budget_s
  before = [g.text for g in entry.graphs] if entry else []
  asked = _Asked(region, verify, dict.fromkeys(graphs, _Known()))
  quiet = replace(hooks, emit=silent)  # the progress of a probe is none of the region
  shapes = probe_shapes(region, probes)

  def finishes(extents: Mapping[str, int]) -> bool:
    sized = replace(region, extents=extents)
    result = _search(sized, scope, asked, deadline - time.monotonic(), quiet)
    return result.report.stop in FINISHED

  probed = all(map(finishes, shapes))
  found = tuple(map(KnownGraph.of, dict.fromkeys((*before, *(asked.proven if probed else graphs)))))
  own = (region.extents, *(shapes if probed else ()))
  every = list[Mapping[str, int]](entry.shapes if entry else ())
  every += [s for s in map(dict, own) if s not in every]
  best = dominant(found, every, scope.target, scope.bound)
  centres = list[Mapping[str, int]](entry.probed if entry else ())
  centres += [region.extents] if probed and region.extents not in centres else []
  return FamilyEntry(best, tuple(every), tuple(centres)) if found else None


def probe_shapes(region: Region, probes: Sequence[int]) -> tuple[Mapping[str, int], ...]:
  """The extents of ``region`` with one axis that is not fixed set to each of ``probes``.

  At last all of these set to the least, and the axes of weights to the least that is near.
  """
  sizes, extents = sorted({max(2, n) for n in probes}), region.extents
  free = sorted(set(extents) - fixed_axes(region))
  weights = weight_axes(region) - part_axes(region)
  found = [{**extents, a: size} for a in free for size in sizes if size != extents[a]]
  if weights:
    least = {a: max(2, extents[a] // NEAR) for a in weights}
    found.append({**extents, **dict.fromkeys(free, sizes[0]), **least})
  return tuple(found)


def from_known(
  region: Region,
  scope: SearchScope,
  verify: Verify,
  entry: FamilyEntry,
  *,
  budget_s: float,
  hooks: Hooks,
  wanted: int | None = None,
) -> SearchResult:
  """Candidates for ``region`` among the µGraphs of its family; none if none fits or is safe.

  ``wanted``: µGraphs to verify, as many as a search (``bound.verified``) unless said. The report
  counts no states: nothing was enumerated.
  """
  start, bound = time.monotonic(), scope.bound
  good, refused = list[Verified](), list[Rejection]()
  count, stop = 0, Stop.EXHAUSTED
  for ranked in renumber(entry.graphs, region.extents, scope.target, bound):
    if count >= (bound.verified if wanted is None else wanted):
      break
    cut = Stop.BUDGET if time.monotonic() > start + budget_s else hooks.stop()
    if cut is not None:
      stop = cut
      break
    slow = too_slow(region, ranked.candidates, scope.target, scope.worth_us) if scope.worth_us < inf else None
    if slow is not None:
      refused.append(slow)
      count += 1
      continue
    try:
      with deadline.until(start + budget_s):
        verdict = verify(region, ranked.known.graph, ranked.candidates[0].params)
    except deadline.OverdueError:
      stop = Stop.BUDGET
      break
    if isinstance(verdict, Rejection):
      refused.append(verdict)
      continue
    count += not is_partial(verdict)
    graph = proven_graph(verdict, ranked.known.graph)
    good += [Verified(replace(c, ugraph=graph), verdict) for c in ranked.candidates]
  good.sort(key=lambda v: v.candidate.predicted_us)
  seconds = time.monotonic() - start
  report = SearchReport(seconds, 0, 0, count, stop, (), tuple(refused))
  return SearchResult(varied(good, bound.candidates), report)


def _search(
  region: Region, scope: SearchScope, verify: Verify, budget_s: float, hooks: Hooks
) -> SearchResult:
  return search(
    region, scope.target, verify, bound=scope.bound, space=scope.space,
    budget_s=budget_s, axioms=scope.axioms, hooks=hooks, worth_us=scope.worth_us,
  )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Known:
  """In place of the proof of a µGraph that was proven before."""

  draws: int = 0
  bound: float = 0.0


@dataclass(frozen=True, slots=True)
class _Asked:
  """``verify`` about ``region``, whatever its extents in the search, once for every µGraph."""

  region: Region
  verify: Verify
  verdicts: dict[str, ProofLike | Rejection]

  def __call__(self, sized: Region, graph: UGraph, params: tuple[KernelParams, ...]) -> ProofLike | Rejection:
    text = print_ugraph(graph)
    if text not in self.verdicts:
      self.verdicts[text] = self.verify(self.region, graph, params)
    return self.verdicts[text]

  @property
  def proven(self) -> tuple[str, ...]:
    return tuple(t for t, v in self.verdicts.items() if not isinstance(v, Rejection))
