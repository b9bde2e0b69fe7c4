"""Whether an optimized model computes what the original does, without and with its kernels."""

import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx.reference import ReferenceEvaluator

from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.compare_inputs import draw_inputs
from mirage_onnx.custom_op.difference import FLOOR, RTOL, difference, typical_row
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.sources import check_sources
from mirage_onnx.custom_op.widen import widened, widened_values
from mirage_onnx.errors import MirageError

#: Exclusive upper ends of integer inputs of the architectures.
INT_LIMITS = {"input_ids": 128, "position_ids": 16}
#: The dimensions of onnxruntime-genai's models at a decode step. onnxruntime leaves what a window's
#: cache has beyond the window as it finds it.
SIZES = {
  "batch_size": 1, "sequence_length": 1, "past_sequence_length": 24, "past_sliding_length": 16,
  "total_sequence_length": 25, "kv_cache_dim": 16,
}  # fmt: skip
#: Normal inputs; each of ``compare_inputs.KINDS`` comes on top.
STOCK_DRAWS, EMULATED_DRAWS = 2, 1
#: The original does not run here: onnxruntime's CPU provider has no bfloat16 kernels.
NOT_RUN = "not run"
#: Bit-identical as fp32 models; as they are, onnxruntime rounds their values at other places.
IN_FP32 = "in fp32"
#: Every custom node passed by itself, against its region in fp32: the whole model does not run here.
BY_NODE = "by node"


@dataclass(frozen=True, slots=True)
class Check:
  """``result``: ``identical``, ``IN_FP32``, ``passed``, ``BY_NODE``, ``FAILED``, ``NOT_RUN`` or ``none``.

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
  wide_original = widened(original)
  if narrow.result == "identical" or why_not_on_cpu(wide_original.SerializeToString()):
    return narrow
  wide = _in_bits(wide_original, widened(optimized))
  if wide.result == "identical":
    return replace(narrow, result=IN_FP32, inputs=wide.inputs)
  return replace(wide, note=f"{narrow.note}; in fp32 {wide.note}")


def _in_bits(original, optimized):
  before, after = (m.SerializeToString() for m in (original, optimized))
  try:
    found = _compared(before, after, STOCK_DRAWS, ep="none")
  except MirageError as error:
    return Check("FAILED", note=error.line())
  if first := found.first_difference:
    note = f"{first.name}: {first.reason or f'differs by {first.max_abs:.1e}'} ({first.worst})"
    return Check("FAILED", len(found.inputs), found.needed_rtol, note)
  return Check("identical", len(found.inputs), 0.0)


def check_emulated(original, optimized):
  """The kernels in the emulator: every output, and every custom node by itself on one input."""
  reason = why_not_on_cpu(original.SerializeToString())
  with tempfile.TemporaryDirectory() as folder:
    paths = [Path(folder) / name for name in ("original.onnx", "optimized.onnx")]
    for model, path in zip((original, optimized), paths, strict=True):
      onnx.save(model, path)
    try:
      check_sources(paths[1], strict=True)
      if reason:
        found = compare_models(*paths, draws=EMULATED_DRAWS, int_limits=INT_LIMITS, emulate=True)
      else:
        found = _compared(paths[0], paths[1], EMULATED_DRAWS, emulate=True)
    except MirageError as error:
      if reason and error.code == "SESSION_FAILED":
        return Check(NOT_RUN, note=reason)
      return Check("FAILED", note=error.line())
  return _emulated(found)


def _compared(before, after, draws, **how):
  """``compare_models``; where the mask says how much of the cache is filled, with all of it.

  Of kernels an input is passed over if all custom nodes are right on it by themselves and the
  original is beyond the tolerance of its own fp32 form: sharp softmaxes of large values in fp16.
  """
  arguments = open_session(before, How("cpu", ep="none")).get_inputs()
  if not _is_masked(arguments) and "emulate" not in how:
    return compare_models(before, after, draws=draws, int_limits=INT_LIMITS, **how)
  found, kinds, passed_over = None, [], []
  for kind, feeds in _draw(arguments, draws):
    one = compare_models(before, after, inputs=feeds, **how)
    alone = one.regions and not one.first_divergence
    if not one.passed and alone and _is_ill_conditioned(before, feeds):
      passed_over.append(kind)
      continue
    kinds.append(kind)
    if found is None or not one.passed or (one.needed_rtol or 0) > (found.needed_rtol or 0):
      found = one
    if not found.passed:
      break
  if found is None:
    raise MirageError("INPUTS_INVALID", "the original is too far from its fp32 form on all inputs")
  note = f"passed over, too sharp for fp16: {', '.join(passed_over)}" if passed_over else found.note
  return replace(found, inputs=tuple(kinds), note=note)


def _is_masked(arguments):
  return any("total_sequence_length" in a.shape for a in arguments)


def _draw(arguments, draws):
  for kind, feeds in draw_inputs(arguments, 0, draws, SIZES, INT_LIMITS):
    if _is_masked(arguments):
      feeds["attention_mask"][:] = 1
    yield kind, feeds


def _is_ill_conditioned(path, feeds):
  """Whether the original, in onnxruntime or rounded operator by operator, is far from its fp32 form.

  onnxruntime's CPU provider computes much of an fp16 model in fp32; a GPU does not.
  """
  model = onnx.load(path)
  wide = open_session(widened(model).SerializeToString(), How("cpu", ep="none"))
  exact = run_session(wide, widened_values(feeds))
  runs = [run_session(open_session(path, How("cpu", ep="none")), feeds)]
  with suppress(Exception):  # operators that onnx has no reference for
    runs.append(dict(zip(runs[0], ReferenceEvaluator(model).run(None, feeds), strict=True)))
  return not all(
    difference(n, exact[n].astype(x.dtype), x, RTOL[x.dtype.name], FLOOR * typical_row(x), "").passed
    for found in runs
    for n, x in found.items()
  )


def _emulated(found):
  ran = sum(node.path == "emulated" for node in found.nodes)
  if not ran:
    return Check("none", note=found.note)
  note = f"{ran} of {len(found.nodes)} custom nodes ran" + (f"; {found.note}" if found.note else "")
  if not found.passed:
    wrong = [o for o in (*found.outputs, *(r.output for r in found.regions)) if not o.passed]
    note += f"; {wrong[0].name}: {wrong[0].reason or wrong[0].needed_rtol} ({wrong[0].worst})"
    note += f"; first to diverge: {found.first_divergence}"
  result = ("passed" if found.outputs else BY_NODE) if found.passed else "FAILED"
  return Check(result, len(found.inputs), found.needed_rtol, note)


def why_not_on_cpu(model):
  """Why onnxruntime's CPU provider cannot run the original; empty where it can."""
  try:
    session = open_session(model, How("cpu", ep="none"))
    _, feeds = next(_draw(session.get_inputs(), 1))
    run_session(session, feeds)
  except MirageError as error:
    return error.detail
  return ""
