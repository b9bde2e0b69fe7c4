"""What a search is given as limits, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import Candidate, KernelParams, UGraph


class Stop(StrEnum):
    """Why a search ended."""

    EXHAUSTED = "EXHAUSTED"
    BUDGET = "BUDGET"
    STATE_LIMIT = "STATE_LIMIT"


class ProofLike(Protocol):
    """What the verifier returns for an accepted candidate."""

    @property
    def draws(self) -> int: ...
    @property
    def bound(self) -> float: ...


Verify = Callable[[Region, UGraph, tuple[KernelParams, ...]], ProofLike | Rejection]


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits of one search: the enumeration is exhaustive within them."""

    operators: int = 8
    cuts: int = 1
    states: int = 6_000
    kernels_kept: int = 6
    verified: int = 4
    tried: int = 12
    candidates: int = 16


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
