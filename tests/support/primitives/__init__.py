"""Test programs of every function of ``ptx.cuh``, by what they move or order."""

from tests.support.primitives import convert, copies, lanes, matrix, memory, sync
from tests.support.primitives.case import Case

#: Each group is one translation unit.
GROUPS: dict[str, tuple[Case, ...]] = {
    "lanes": lanes.CASES, "memory": memory.CASES, "matrix": matrix.CASES,
    "convert": convert.CASES, "sync": sync.CASES, "copies": copies.CASES,
}  # fmt: skip
CASES: dict[str, Case] = {c.name: c for cases in GROUPS.values() for c in cases}
