"""Block graph -> CUDA text: chooses the form of the kernel from its thread graph."""

from __future__ import annotations

from collections.abc import Mapping

from mirage_onnx.codegen.row import emit_row
from mirage_onnx.codegen.rules import broken_rules
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.codegen.streaming import emit_streaming
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, Phase, UGraph, is_part_axis
from mirage_onnx.target import Target

#: Block operations that have no emission rule yet.
_NOT_EMITTED = ("run_max", "prev", "acc_scaled")


def emit_kernel(
    graph: UGraph,
    kernel: Kernel,
    params: KernelParams,
    extents: Mapping[str, int],
    target: Target,
) -> KernelSource:
    """The CUDA text and launch of one kernel with the given numbers.

    A contraction in the loop makes a streaming kernel; no loop and no contraction a row kernel.

    Raises:
        RejectionError: EMIT_UNSUPPORTED (no rule for an operation at its place), LAYOUT (no
            thread layout holds the values with these numbers), SMEM, or EMIT_RULE (the text
            breaks a rule of ``codegen/rules.py``: a bug here, but never in a model).
    """
    source = _emit(graph, kernel, params, extents, target)
    if broken := broken_rules(source.text):
        raise RejectionError("EMIT_RULE", f"{kernel.name}, {broken[0]}")
    return source


def _emit(
    graph: UGraph,
    kernel: Kernel,
    params: KernelParams,
    extents: Mapping[str, int],
    target: Target,
) -> KernelSource:
    _refuse_what_has_no_rule(graph, kernel)
    if any(op.op == "matmul" and op.phase is Phase.LOOP for op in kernel.ops):
        return emit_streaming(graph, kernel, params, extents, target)
    if kernel.loop is not None or any(op.op == "matmul" for op in kernel.ops):
        raise RejectionError(
            "EMIT_UNSUPPORTED", f"{kernel.name} has a loop or a matmul but no matmul in the loop"
        )
    return emit_row(graph, kernel, params, extents, target)


def _refuse_what_has_no_rule(graph: UGraph, kernel: Kernel) -> None:
    for op in kernel.ops:
        if op.op in _NOT_EMITTED:
            raise RejectionError("EMIT_UNSUPPORTED", f"{kernel.name}: no rule for {op.op}")
    for name in (*(o.tensor for o in kernel.loads), *(s.tensor for s in kernel.saves)):
        for axis in graph.tensor(name).axes:
            if is_part_axis(axis):
                reason = f"{kernel.name}: {name} is over the part axis {axis}"
                raise RejectionError("EMIT_UNSUPPORTED", reason)
