"""Small extents and numbers at which every split of a µGraph does something.

All extents are different odd primes below 64, so axes that happen to be equally long in the model
are told apart, and every tile larger than 1 leaves a short tail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)

#: Least extent of an axis that one kernel cuts 0, 1, 2 or 3 times (grid, cluster, loop).
LEAST = (3, 5, 11, 23)


@dataclass(frozen=True, slots=True)
class Instantiation:
    """Extents of axes and numbers of kernels."""

    extents: Mapping[str, int]
    params: tuple[KernelParams, ...]

    def to_text(self) -> str:
        sizes = " ".join(f"{a}={n}" for a, n in sorted(self.extents.items()))
        return "; ".join([sizes, *(p.to_text() for p in self.params)])


def small_extents(axes: Iterable[str], cuts: Mapping[str, int]) -> dict[str, int]:
    """Axis -> prime.

    Raises:
        RejectionError: there are more axes than primes.
    """
    free = list(PRIMES)
    extents = {}
    for axis in sorted(axes, key=lambda a: (-cuts.get(a, 0), a)):
        fitting = [p for p in free if p >= LEAST[cuts.get(axis, 0)]]
        if not fitting:
            raise RejectionError("INCONCLUSIVE", f"no small extent is left for axis {axis}")
        extents[axis] = fitting[0]
        free.remove(fitting[0])
    return extents


def reduced_instantiation(graph: UGraph, axes: Iterable[str]) -> Instantiation:
    """At least two tiles per grid dimension, two ranks, two or three iterations, with tails."""
    cuts: dict[str, int] = {}
    for kernel in graph.kernels:
        roles = [*kernel.grid, kernel.cluster, kernel.loop]
        for axis in filter(None, roles):
            cuts[axis] = max(cuts.get(axis, 0), roles.count(axis))
    extents = small_extents(axes, cuts)
    return Instantiation(extents, tuple(_numbers(k, extents) for k in graph.kernels))


def _numbers(kernel: Kernel, extents: Mapping[str, int]) -> KernelParams:
    tile = tuple(-(-extents[a] * 6 // 10) for a in kernel.grid)
    ranks = 2 if kernel.cluster else 1
    if kernel.loop is None:
        return KernelParams(tile=tile, cluster=ranks)
    size = tile[kernel.grid.index(kernel.loop)] if kernel.loop in kernel.grid else None
    size = size or extents[kernel.loop]
    if kernel.cluster == kernel.loop:
        size = -(-size // ranks)
    short = (t for t in range(-(-size // 3), size) if size % t)
    return KernelParams(tile=tile, cluster=ranks, loop_tile=next(short, max(1, size - 1)))
