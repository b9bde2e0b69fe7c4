"""Whether an optimized model computes what the original does, without and with its kernels."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from coverage_table.widen import widened
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.model_run import How, open_session
from mirage_onnx.custom_op.sources import check_sources
from mirage_onnx.errors import MirageError

#: Exclusive upper ends of integer inputs of the architectures.
INT_LIMITS = {"input_ids": 128, "position_ids": 16}
#: Normal inputs; each of ``compare_inputs.KINDS`` comes on top.
STOCK_DRAWS, EMULATED_DRAWS = 2, 1
#: The original does not run here: onnxruntime's CPU provider has no bfloat16 kernels.
NOT_RUN = "not run"
#: Bit-identical as fp32 models; as they are, onnxruntime rounds their values at other places.
IN_FP32 = "in fp32"


@dataclass(frozen=True, slots=True)
class Check:
    """``result``: ``identical``, ``IN_FP32``, ``passed``, ``FAILED``, ``NOT_RUN`` or ``none``.

    ``inputs``: how many were tried. ``needed_rtol``: the least relative L2 error per row that
    passes, at worst over outputs and inputs. ``note`` says why nothing was run, or what differs.
    """

    result: str
    inputs: int = 0
    needed_rtol: float | None = None
    note: str = ""

    @property
    def is_wrong(self):
        return self.result == "FAILED"


def check_stock(original, optimized):
    """The function bodies in a stock onnxruntime session, against the original, bit for bit.

    Where that fails or cannot be run, once more in fp32 (``widen``), where no rounding of
    onnxruntime's own can come between.
    """
    reason = why_not_on_cpu(original.SerializeToString())
    narrow = Check(NOT_RUN, note=reason) if reason else _in_bits(original, optimized)
    if narrow.result == "identical":
        return narrow
    wide = _in_bits(widened(original), widened(optimized))
    if wide.result == "identical":
        return replace(narrow, result=IN_FP32, inputs=wide.inputs)
    return replace(wide, note=f"{narrow.note}; in fp32 {wide.note}")


def _in_bits(original, optimized):
    before, after = (m.SerializeToString() for m in (original, optimized))
    try:
        found = compare_models(before, after, ep="none", draws=STOCK_DRAWS, int_limits=INT_LIMITS)
    except MirageError as error:
        return Check("FAILED", note=error.line())
    if first := found.first_difference:
        note = f"{first.name}: {first.reason or f'differs by {first.max_abs:.1e}'} ({first.worst})"
        return Check("FAILED", len(found.inputs), found.needed_rtol, note)
    return Check("identical", len(found.inputs), 0.0)


def check_emulated(original, optimized):
    """The kernels in the emulator: every output, and every custom node by itself on one input."""
    if reason := why_not_on_cpu(original.SerializeToString()):
        return Check(NOT_RUN, note=reason)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("original.onnx", "optimized.onnx")]
        for model, path in zip((original, optimized), paths, strict=True):
            onnx.save(model, path)
        try:
            check_sources(paths[1], strict=True)
            found = compare_models(
                paths[0], paths[1], emulate=True, draws=EMULATED_DRAWS, int_limits=INT_LIMITS
            )
        except MirageError as error:
            return Check("FAILED", note=error.line())
    return _emulated(found)


def _emulated(found):
    ran = sum(node.path == "emulated" for node in found.nodes)
    if not ran:
        return Check("none", note=found.note)
    note = f"{ran} of {len(found.nodes)} custom nodes ran"
    if not found.passed:
        wrong = [o for o in (*found.outputs, *(r.output for r in found.regions)) if not o.passed]
        note += f"; {wrong[0].name}: {wrong[0].reason or wrong[0].needed_rtol} ({wrong[0].worst})"
        note += f"; first to diverge: {found.first_divergence}"
    result = "passed" if found.passed else "FAILED"
    return Check(result, len(found.inputs), found.needed_rtol, note)


def why_not_on_cpu(model):
    """Why onnxruntime's CPU provider cannot run the original; empty where it can."""
    try:
        open_session(model, How("cpu", ep="none"))
    except MirageError as error:
        return error.detail
    return ""
