"""Elements beyond the end of an axis that only a launch counts, in registers.

Only the last step of a loop has such elements, and whoever reduces or contracts a value leaves them
out. Where the value is registers that it may change, it makes them neutral in that step alone, behind
a branch that all threads take alike; other steps have nothing to compare then. Whatever else uses
the value leaves the same elements out by itself.
"""

from collections.abc import Collection

from mirage_onnx.codegen.source import chosen
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.ir.block_ops import LEAVES
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.pieces import STEP, Piece
from mirage_onnx.lower.sizes import is_runtime


def clear_tail(w: ValueWriter, index: int, form: Form, over: Collection[Piece], neutral: str) -> bool:
  """Writes that elements of ``over`` which do not exist are ``neutral``; False if that is not its way."""
  lowering = w.lowering
  unsure = [p for p in over if not p.exact]
  if not unsure or not all(is_runtime(w.pieces.extents, p.axis) and p.levels.endswith(STEP) for p in unsure):
    return False
  sides = ((form.g, form.lanes.groups), (form.t, form.lanes.inner))
  if any(set(s) & set(over) and not lowering.warps.covers(s, tile) for s, tile in sides):
    return False
  own = w.ops[index].op not in LEAVES and lowering.forms.get(index) == form
  if not own or lowering.in_place(index, form) or lowering.tile_of(index, form) is not None:
    return False
  short = " || ".join(f"{w.pieces.size(p)} < {p.length}" for p in sorted(unsure))
  with w.writer.block(f"if ({short})"), w.walk(form) as spot:
    spot.declare(over)
    value = w.element(index, spot)
    w.writer.line(f"{value} = {chosen(spot.exists(over), value, neutral)};", index)
  return True
