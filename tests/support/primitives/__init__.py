"""Test programs of every function of ``ptx.cuh``, by what they move or order."""

from tests.support.primitives import convert, copies, lanes, matrix, memory, sync

#: Each group is one translation unit.
GROUPS = {
  "lanes": lanes.CASES, "memory": memory.CASES, "matrix": matrix.CASES,
  "convert": convert.CASES, "sync": sync.CASES, "copies": copies.CASES,
}  # fmt: skip
CASES = {c.name: c for cases in GROUPS.values() for c in cases}
