"""Whether an optimized model computes what the original does: without its kernels, and with them."""

import gc
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from coverage_table.inputs import KINDS, draw
from mirage_onnx.custom_op.boundary import boundaries, detached_nodes, detached_original, exposed, fed
from mirage_onnx.custom_op.difference import FLOOR, RTOL, difference, excused, typical_row
from mirage_onnx.custom_op.first_runs import custom_names, custom_paths, first_runs
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.session import launches
from mirage_onnx.custom_op.widen import HALF, has_halves, is_too_wide, run_widened, widened, widened_values
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.old_inputs import without_old_inputs

#: The original does not run here: onnxruntime's CPU provider has no bfloat16 kernels.
NOT_RUN = "not run"
#: Bit-identical to the original with a function of no concern (``beside_a_function``).
WITH_A_FUNCTION = "with a function"
#: Bit-identical as fp32 models; as they are, onnxruntime rounds their values at other places.
IN_FP32 = "in fp32"
STOCK = How("cpu", ep="none")


@dataclass(frozen=True, slots=True)
class Check:
  """What was found: ``identical``, a name above, ``passed``, ``FAILED``, ``none`` or ``time``.

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

  Where that fails, against the original beside a function: then what differs is what onnxruntime does
  to models with functions, whatever these are. Where that fails too, or cannot be run, once more in fp32
  (``widen``), where no rounding of onnxruntime's own can come between. Arguments are paths.
  """
  narrow = _in_bits(original, optimized)
  if narrow.result == "identical":
    return narrow
  if narrow.is_wrong and _in_bits(original, optimized, beside_a_function).result == "identical":
    return replace(narrow, result=WITH_A_FUNCTION)
  plain = onnx.load(original, load_external_data=False)
  if not has_halves(plain) or is_too_wide(plain):
    return narrow
  wide = _in_bits(original, optimized, _wide, _wide)
  if wide.result == "identical":
    return replace(narrow, result=IN_FP32, inputs=wide.inputs)
  return wide if wide.result == NOT_RUN else replace(wide, note=f"{narrow.note}; in fp32 {wide.note}")


def beside_a_function(proto, _=None):
  """The model and a model-local function that none of its nodes calls.

  onnxruntime inlines the functions of operators (Gelu, HardSwish, ...) of a model that has functions of
  its own before it folds constants, and then rounds these constants to fp16 (docs/decisions.md).
  """
  found = onnx.ModelProto()
  found.CopyFrom(proto)
  if not found.functions:
    opset = next(o for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    body = [onnx.helper.make_node("Identity", ["a"], ["b"])]
    name = "mirage.unrelated"
    found.functions.append(onnx.helper.make_function(name, "Unrelated", ["a"], ["b"], body, [opset]))
    found.opset_import.append(onnx.helper.make_opsetid(name, 1))
  return found


def _wide(proto, folder):
  return widened(proto, folder)


def _in_bits(original, optimized, change=None, change_optimized=None):
  """Compare bits of the models, or of what ``change`` makes of them: a model of a model and a folder."""
  proto = onnx.load(original, load_external_data=False)
  feeds = {kind: draw(proto, kind) for kind in KINDS}
  try:
    want = _outputs(original, feeds, change)
  except MirageError as error:
    return Check(NOT_RUN, note=error.detail)
  try:
    got = _outputs(optimized, feeds, change_optimized)
  except MirageError as error:
    return Check("FAILED", note=error.line())
  for kind in KINDS:
    for name, x in want[kind].items():
      found = difference(name, x, got[kind][name], 0.0, 0.0, kind)
      if not found.identical:
        note = f"{name}: {found.reason or f'differs by {found.max_abs:.1e}'} ({kind})"
        return Check("FAILED", len(KINDS), found.needed_rtol, note)
  return Check("identical", len(KINDS), 0.0)


def _outputs(path, feeds, change):
  """Outputs by kind of input; the session is gone afterwards."""
  if change is None:
    session = open_session(str(path), STOCK)
  else:
    folder = Path(path).parent
    made = change(onnx.load(path, load_external_data=False), folder).SerializeToString()
    session = open_session(made, STOCK, str(folder))
  if change is _wide:
    feeds = {kind: widened_values(values) for kind, values in feeds.items()}
  found = {kind: run_session(session, values) for kind, values in feeds.items()}
  del session
  gc.collect()
  return found


class Nodes:
  """The custom nodes of an optimized model by themselves, one of every plan, on one input.

  Those of subgraphs, too, which are unrolled once beside the main graph.

  The original runs in stock onnxruntime (in fp32, where that has no kernels for its type) with what
  the nodes read as further outputs; ``check`` runs one of them in the emulator.
  """

  def __init__(self, original, optimized, kind="hard"):
    """Raises MirageError: SESSION_FAILED where the original does not run here."""
    files = ModelFile.read(str(original)), ModelFile.read(str(optimized))
    paths = custom_paths(files[1].proto, custom_names(files[1].proto))
    self._original, self._optimized = (
      replace(f, proto=first_runs(without_old_inputs(f.proto), paths)) for f in files
    )
    plans = {n.name: n.plan for n in self._optimized.custom_nodes() if not n.is_nested}
    first = {plan: name for name, plan in reversed(plans.items())}
    self.total = len(plans)
    cuts = {c.node: c for c in boundaries(self._optimized)}
    self.cuts = tuple(cuts[name] for name in plans if name in first.values())
    self._kind = kind
    self.values = self._computed(draw(self._original.proto, kind)) if self.cuts else {}

  def _computed(self, feeds):
    whole = exposed(self._original, self.cuts)
    folder = self._original.external_folder
    try:
      return {**feeds, **run_session(open_session(whole, STOCK, folder), feeds)}
    except MirageError:
      wide = widened(onnx.load_from_string(whole), self._original.folder).SerializeToString()
      found = run_session(open_session(wide, STOCK, folder), widened_values(feeds))
      return {**feeds, **{n: self._rounded(n, x) for n, x in found.items()}}

  def _rounded(self, name, x):
    stated = {v.name: v.type.tensor_type.elem_type for p in (self._original, self._optimized)
              for v in (*p.proto.graph.value_info, *p.proto.graph.output)}  # fmt: skip
    dtype = stated.get(name)
    return x.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype)) if dtype else x

  def check(self, cut):
    """One node against its region.

    Raises:
        MirageError: as the emulator.
    """
    values, folder = self.values, self._optimized.external_folder
    alone = detached_nodes(self._optimized, (cut,), values)
    session = open_session(alone, How("cpu", emulate=True), folder)
    got = run_session(session, fed(session.get_inputs(), values))
    if not any(launches(session).values()):
      return Check("FAILED", note="no kernel was launched")
    del session
    region = detached_original(self._original, (cut,), values)
    exact = partial(
      run_widened, onnx.load_from_string(region), self._original.folder,
      fed(onnx.load_from_string(region).graph.input, values),
    )  # fmt: skip
    try:
      session = open_session(region, STOCK, self._original.external_folder)
      want = run_session(session, fed(session.get_inputs(), values))
    except MirageError:
      want = {n: x.astype(got[n].dtype) for n, x in exact().items()}
    worst = Check("passed", 1, 0.0)
    for name in cut.makes:
      found = _one(name, want[name], got[name], exact, self._kind)
      if not found.passed:
        return Check("FAILED", 1, found.needed_rtol, f"{cut.node} {name}: {found.reason} {found.needed_rtol}")
      worst = replace(worst, needed_rtol=max(worst.needed_rtol or 0.0, found.needed_rtol or 0.0))
    return worst


def _one(name, want, got, exact, kind):
  floor = FLOOR * typical_row(want)
  limit = RTOL.get(want.dtype.name, RTOL["float16"])
  found = difference(name, want, got, limit, floor, kind)
  if found.passed or want.dtype.name not in RTOL:
    return found
  # Values of 32 bits, too: where the original rounded to 16 before (Mamba's states), it is no measure.
  wide = exact().get(name)
  return found if wide is None else excused(found, want, got, wide, floor)


def emulated(checks, total, slow):
  """One line of all: ``checks`` by node, of ``total`` custom nodes; ``slow`` did not end in time."""
  if not total:
    return Check("none", note="no custom node")
  wrong = [c for c in checks if c.is_wrong]
  if wrong:
    return replace(wrong[0], note=f"{len(wrong)} of {len(checks)} wrong: {wrong[0].note}")
  note = f"{len(checks)} of {len(checks) + slow} different kernels ran ({total} nodes)"
  needed = max((c.needed_rtol or 0.0 for c in checks), default=None)
  return Check("passed" if checks else "time", len(checks), needed, note)


def finite_share(values):
  """Of the floats that nodes read, how many are finite: inputs that overflow everywhere show nothing."""
  floats = [x for x in values.values() if x.dtype.kind == "f" or x.dtype in HALF]
  count = sum(x.size for x in floats)
  return sum(int(np.isfinite(x.astype(np.float32)).sum()) for x in floats) / count if count else 1.0
