"""Floors: what no kernel and no rest of a plan can cost less than, by the cost model.

Tensors are moved at the full rate of the memory and contractions run at the full rate of the tensor
cores; a kernel has its launch. Both cost models (``cost.py``, ``tiled_cost.py``) add to this.
"""

from collections.abc import Iterable
from math import ceil, prod

from mirage_onnx.ir.ugraph import KTensor
from mirage_onnx.superopt.cost import LATENCY_US, MMA_SHARE
from mirage_onnx.superopt.derive import Derivation
from mirage_onnx.superopt.egraph import is_part, reachable
from mirage_onnx.superopt.roles import Roles
from mirage_onnx.superopt.saturated import Saturated
from mirage_onnx.target import Target

#: The smallest tile of an axis whose reduction is split.
PART_TILE = 32


class Floors:
    """The floors of one search."""

    def __init__(self, saturated: Saturated, target: Target) -> None:
        self._region, self._target = saturated, target
        self._rest: dict[frozenset[int], float] = {}
        self._inputs: dict[frozenset[int], frozenset[int]] = {}

    def kernel_us(self, classes: tuple[int, ...], roles: Roles, derivation: Derivation) -> float:
        """Any kernel of this derivation: it moves its tensors and does its contractions."""
        region = self._region
        moved = {c for (c, _), choice in derivation.items() if choice.kind in ("load", "read")}
        tensors = [region.inputs[c] if c in region.inputs else region.tensor(c) for c in moved]
        tensors += [region.tensor(c) for c in classes]
        flops = 0
        for (c, _), choice in derivation.items():
            if choice.kind in ("contract", "rescale") and choice.axis:
                axes = {*roles.axes_in_block(region.graph.axes(c)), choice.axis, *roles.parts}
                flops += 2 * prod(region.extents[a] for a in axes)
        return self._us(tensors, flops, self._busy(roles))

    def _busy(self, roles: Roles) -> float:
        """The share of the multiprocessors that the most blocks of a grid can fill."""
        target, extents = self._target, self._region.extents
        blocks = prod(
            ceil(extents[a] / PART_TILE) if a in roles.parts else extents[a] for a in roles.grid
        )
        if roles.loop is not None and target.has_clusters:
            blocks *= target.max_cluster
        return min(1.0, blocks / target.multiprocessors)

    def program_us(
        self, classes: tuple[int, ...], reads: frozenset[int], loads: frozenset[int]
    ) -> float:
        """A kernel that computes ``classes`` from these, maybe from more, and what makes ``reads``.

        To read or load more costs no less: every input is read at least once.
        """
        region, target = self._region, self._target
        tensors = [region.tensor(c) for c in (*classes, *reads, *reads)]
        again = loads & self._under(reads)
        tensors += [region.inputs[c] for c in (*self._under(frozenset(classes)), *again)]
        work_us = self._moved(tensors) / (target.stream_tbps * 1e6)
        launch_us = target.launch_us * (2 if reads else 1)
        return launch_us + work_us + min(target.ramp_us, 0.25 * work_us)

    def _under(self, classes: frozenset[int]) -> frozenset[int]:
        """The inputs that some spelling of these mentions."""
        if classes not in self._inputs:
            found = reachable(self._region.graph, classes)
            self._inputs[classes] = frozenset(c for c in self._region.inputs if c in found)
        return self._inputs[classes]

    def rest_us(self, missing: frozenset[int]) -> float:
        """Making all of ``missing``: a launch, the inputs under it read and it written once."""
        if not missing:
            return 0.0
        if missing not in self._rest:
            tensors = [self._region.inputs[c] for c in self._under(missing)]
            tensors += [self._region.tensor(c) for c in sorted(missing)]
            self._rest[missing] = self._us(tensors, 0, 1.0)
        return self._rest[missing]

    def _us(self, tensors: Iterable[KTensor], flops: int, busy: float) -> float:
        target = self._target
        memory_us = self._moved(tensors) / (target.stream_tbps * 1e6 * busy)
        compute_us = flops / (target.mma_tflops * MMA_SHARE * 1e6 * busy)
        work = max(memory_us, compute_us)
        return target.launch_us + max(1.25 * LATENCY_US, work + min(target.ramp_us, 0.25 * work))

    def _moved(self, tensors: Iterable[KTensor]) -> int:
        """Bytes of these tensors."""
        extents = self._region.extents
        return sum(
            # How many parts there are is not known yet: one at least.
            prod(extents[a] for a in t.axes if not is_part(a)) * t.dtype.size_bytes
            for t in tensors
        )
