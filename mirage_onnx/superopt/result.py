"""What a search is given as limits, and what it returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Kernel, KernelParams, Region, UGraph
from mirage_onnx.superopt.space import Space


class Stop(StrEnum):
  """Why a search ended."""

  EXHAUSTED = "EXHAUSTED"
  BUDGET = "BUDGET"
  STATE_LIMIT = "STATE_LIMIT"
  INTERRUPTED = "INTERRUPTED"


class ProofLike(Protocol):
  """What the verifier returns for an accepted candidate."""

  @property
  def draws(self) -> int: ...
  @property
  def bound(self) -> float: ...


def is_partial(proof: ProofLike) -> bool:
  """Whether the program is safe for some instances of the region only (``verify/prover.py``)."""
  return bool(getattr(proof, "partial", False))


def proven_graph(proof: ProofLike, graph: UGraph) -> UGraph:
  """What was proven when ``graph`` was asked about: itself, or with factors against overflow."""
  found: UGraph | None = getattr(proof, "graph", None)
  return graph if found is None else found


#: Whether a kernel with these numbers may be part of a result.
Allow = Callable[[Kernel, KernelParams], bool]
Verify = Callable[[Region, UGraph, tuple[KernelParams, ...]], ProofLike | Rejection]


@dataclass(frozen=True, slots=True)
class SearchBound:
  """Limits of one search: the enumeration is exhaustive within them.

  ``operators``: contractions, reductions and accumulators of a kernel. ``nodes``: of the
  saturated region. ``slack``: how much the floors of plans are raised; at 1 nothing cheaper is
  passed over. ``units``: sets of values that kernels of the same values read. ``kernels``: of a
  program. ``reads``: values of earlier kernels that one kernel reads. ``states``: of a group of
  values under one assignment of roles. ``chains``, ``parts``: elementwise chains of a place, and
  of each operand of one (``chains.py``). ``groupings``: ways to share out the factors of a
  contraction. ``spellings``: derivations that differ in elementwise operations only;
  ``skeletons``: derivations with equal reads that do not (``spellings.py``). ``points``: numbers
  of a kernel. ``kept``: kernels of a unit.

  ``tried`` programs at most are verified, until ``verified`` are proven; ``candidates`` are
  returned (``varied``), numbers counted apart. None: no limit.
  """

  operators: int = 8
  nodes: int = 1500
  slack: float = 1.1
  units: int | None = 56
  kernels: int = 2
  reads: int = 1
  states: int = 6_000
  chains: int | None = 6
  parts: int | None = 3
  groupings: int | None = 2
  spellings: int | None = 4
  skeletons: int | None = 8
  points: int = 8
  kept: int = 3
  verified: int = 4
  tried: int = 48
  candidates: int = 16


def default_bound(space: Space) -> SearchBound:
  """The bound of a search of ``space``."""
  return widened(SearchBound(), space)


def widened(bound: SearchBound, space: Space) -> SearchBound:
  """``bound`` for a search of ``space``: with parts, three values go from kernel to kernel."""
  if not space.split:
    return bound
  kernels, reads = max(bound.kernels, 3), max(bound.reads, 3)
  return replace(bound, kernels=kernels, reads=reads, states=max(bound.states, 60_000))


@dataclass(frozen=True, slots=True)
class Verified:
  """A candidate with the proof that it equals the region."""

  candidate: Candidate
  proof: ProofLike


#: A program that is predicted to take this many times as long as the best is not worth a place.
FAR = 2.0


def varied(found: Sequence[Verified], count: int) -> tuple[Verified, ...]:
  """At most ``count`` of verified candidates, in their order, which is that of predicted times.

  Predictions of one µGraph with different numbers are close, so its numbers would take all
  places. Therefore first the best numbers of every µGraph have one (those within ``FAR`` times
  the first); what is left goes to the others in order.
  """
  seen = set[UGraph]()
  firsts, others = list[int](), list[int]()
  for n, v in enumerate(found):
    near = v.candidate.predicted_us <= FAR * found[0].candidate.predicted_us
    (firsts if near and v.candidate.ugraph not in seen else others).append(n)
    seen.add(v.candidate.ugraph)
  return tuple(found[n] for n in sorted([*firsts, *others][:count]))


@dataclass(frozen=True, slots=True)
class SearchReport:
  """What a search did. ``verified`` counts the µGraphs that passed the verifier."""

  seconds: float
  states: int
  built: int
  verified: int
  stop: Stop
  pruned: tuple[tuple[str, int], ...]
  refused: tuple[Rejection, ...]

  @property
  def refused_slow(self) -> Rejection | None:
    """Of programs that were not proven, as they are not worth it, the first."""
    return next((r for r in self.refused if r.code == "NOT_FASTER"), None)


@dataclass(frozen=True, slots=True)
class SearchResult:
  """Verified candidates, cheapest predicted first; empty with the reason in ``report``.

  ``failure``: the search itself failed.
  """

  candidates: tuple[Verified, ...]
  report: SearchReport
  failure: Rejection | None = None
