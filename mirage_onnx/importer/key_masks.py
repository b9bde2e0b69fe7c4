"""Masks of com.microsoft's attention that are integers: they add the filter's value to what they hide.

Of (batch, keys) and (batch, queries, keys): where they are 0. Of (batch) and of twice as many: where keys
of each sequence end, and where they begin. Of (batch, 1), as ONNX Runtime reads it: nothing.
"""

from mirage_onnx.importer.causal import LARGEST
from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.dot_products import Heads, places_along
from mirage_onnx.ir import DType, Tensor


def added_by(c: Context, mask: Tensor, own: Heads, *, projecting: bool) -> Tensor | None:
  """What a mask adds to scores by (batch, heads, queries, keys); None where that is nothing.

  ``projecting``: of the operator Attention, which has more forms.
  """
  batch, (queries, keys) = shape_of(own.q)[0], own.lengths
  shape = shape_of(mask)
  hidden = None
  if mask.dtype is DType.I32:
    if shape in ((batch, keys), (batch, queries, keys)):
      rows = shape[1] if len(shape) == 3 else 1
      hidden = c.elementwise("less_equal", mask, const(0), dtype=DType.BOOL)
      hidden = c.reshape(hidden, (batch, 1, rows, keys))
    elif projecting and shape == (batch, 1):
      return None
    elif shape == (batch,) or (projecting and shape == (2 * batch,)):
      hidden = _beyond(c, mask, batch, keys)
  if hidden is None:
    shown = c.symbols.show(shape)
    raise c.reject(f"a mask {mask.dtype} of {shown}, not i32 of (batch, keys)")
  return c.elementwise("mul", c.cast(hidden, DType.F32), const(c.fraction("mask_filter_value", -10000.0)))


def _beyond(c: Context, ends: Tensor, batch: int, keys: int) -> Tensor:
  """Which keys are not before their end, or before their beginning: by (batch, 1, 1, keys)."""
  if keys not in c.symbols.names and (c.symbols.is_symbolic(keys) or keys > LARGEST):
    raise c.reject(f"a mask says where {c.symbols.text(keys)} keys end", "DYNAMIC_DIM")
  place = c.reshape(places_along(c, keys), (1, 1, 1, keys))

  def part(first: int) -> Tensor:
    own = c.slice(ends, 0, first, first + batch) if shape_of(ends) != (batch,) else ends
    return c.reshape(own, (batch, 1, 1, 1))

  hidden = c.elementwise("less_equal", part(0), place, dtype=DType.BOOL)
  if shape_of(ends) == (batch,):
    return hidden
  before = c.elementwise("less", place, part(batch), dtype=DType.BOOL)
  return c.elementwise("max", hidden, before, dtype=DType.BOOL)
