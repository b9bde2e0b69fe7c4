"""What a search is given as limits, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import Candidate, Kernel, KernelParams, UGraph
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


#: Whether a kernel with these numbers may be part of a result.
Allow = Callable[[Kernel, KernelParams], bool]
Verify = Callable[[Region, UGraph, tuple[KernelParams, ...]], ProofLike | Rejection]


@dataclass(frozen=True, slots=True)
class Bound:
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
    returned, numbers counted apart. None: no limit.
    """

    operators: int = 8
    nodes: int = 1500
    slack: float = 1.1
    units: int | None = 48
    kernels: int = 2
    reads: int = 1
    states: int = 6_000
    chains: int | None = 4
    parts: int | None = 3
    groupings: int | None = 2
    spellings: int | None = 4
    skeletons: int | None = 8
    points: int = 8
    kept: int = 3
    verified: int = 4
    tried: int = 48
    candidates: int = 16


def default_bound(space: Space) -> Bound:
    """The bound of a search of ``space``."""
    return widened(Bound(), space)


def widened(bound: Bound, space: Space) -> Bound:
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


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Verified candidates, cheapest predicted first; empty with the reason in ``report``."""

    candidates: tuple[Verified, ...]
    report: SearchReport
