"""Numbers: for concrete extents, the best few integer parameters of a kernel by the cost model.

The space is small (tiles, cluster size, warps, stages), so it is enumerated; capacity limits
(registers, shared memory, cluster size, alignment of the cluster's split) drop points, by reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil

from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Layout
from mirage_onnx.superopt.cost import Cost, features, kernel_cost
from mirage_onnx.target import Target

#: Registers per thread beyond which a compiled kernel risks spills.
MAX_REGISTERS = 160
#: Elements of the spread axis that one thread of a row kernel may hold.
MAX_PER_THREAD = 64


def _points(kernel: Kernel, extents: Mapping[str, int], target: Target) -> Iterator[KernelParams]:
    if kernel.loop is None:
        tile = tuple(1 for _ in kernel.grid)
        for warps in (1, 2, 4, 8, 16):
            yield KernelParams(tile=tile, warps=warps)
        return
    row_axes = {
        a for o in kernel.ops if o.layout is Layout.B_FRAG for a in o.axes if a != kernel.loop
    }
    choices = []
    for axis in kernel.grid:
        extent = extents[axis]
        if axis in row_axes:
            choices.append([t for t in (8, 16, 32) if t < 2 * max(extent, 8)])
        else:
            choices.append([t for t in (16, 32, 64) if t == 16 or t <= extent])
    depth = extents[kernel.loop]
    clusters = [1]
    if kernel.cluster and target.has_clusters:
        clusters += [c for c in (2, 4) if depth % (32 * c) == 0 and depth // c >= 256]
    for tile in product(*choices):
        for cluster, warps, stages in product(clusters, (2, 4, 8), (1, 2, 4, 8)):
            steps = ceil(depth / (32 * cluster))
            if warps > max(2, steps) or stages > max(1, ceil(steps / warps)):
                continue
            yield KernelParams(tile, cluster, 32 * warps, warps, stages)


def solve(
    kernel: Kernel,
    tensors: Mapping[str, KTensor],
    extents: Mapping[str, int],
    target: Target,
    *,
    keep: int = 8,
    pruned: Counter[str] | None = None,
) -> tuple[tuple[Cost, KernelParams], ...]:
    """The ``keep`` cheapest parameter points, cheapest first (ties: canonical order)."""
    dropped = pruned if pruned is not None else Counter()
    found: list[tuple[float, str, Cost, KernelParams]] = []
    read = features(kernel, tensors, extents)
    for params in _points(kernel, extents, target):
        cost = kernel_cost(read, params, target)
        if cost.registers > MAX_REGISTERS:
            dropped["registers"] += 1
        elif cost.smem_bytes > target.smem_bytes:
            dropped["shared memory"] += 1
        elif kernel.loop is None and _per_thread(kernel, params, extents) > MAX_PER_THREAD:
            dropped["row too long for the registers of a block"] += 1
        else:
            found.append((cost.time_us, params.to_text(), cost, params))
    found.sort(key=lambda f: f[:2])
    return tuple((cost, params) for _, _, cost, params in found[:keep])


def _per_thread(kernel: Kernel, params: KernelParams, extents: Mapping[str, int]) -> int:
    width = max((extents[a] for o in kernel.ops for a in o.axes if a not in kernel.grid), default=1)
    return ceil(width / (32 * params.warps))
