"""com.microsoft's GroupQueryAttention: new tokens beside a cache of which a run names the length.

Row ``lengths[b]`` of the cache is the new one, and those before it are seen. Which row an element is
in is a constant (``causal.places``), so that a mask is a comparison of two tensors. ``present`` is the
cache with the new row in its place: behind that, what the cache has, which no run reads.

Of n new tokens the last is in row ``lengths[b]``, or the first in row 0 where there are not as many: a prompt
that ends sooner, of which the tokens behind its end see all of it, and have rows that no run reads (with a
window they see what ONNX Runtime's kernels do not agree on).
"""

from itertools import pairwise

from mirage_onnx.importer.causal import LARGEST, MOST_NEW
from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.dot_products import (
  LEAST,
  Heads,
  by_heads,
  by_rows,
  capped,
  heads_of,
  places_along,
  scaled,
  shaped,
)
from mirage_onnx.importer.new_places import are_given, place_of
from mirage_onnx.importer.reductions import exponentials
from mirage_onnx.importer.rotary import turned
from mirage_onnx.importer.slicing import beside, taken, with_rows
from mirage_onnx.importer.split_caches import is_attended
from mirage_onnx.importer.steps_apart import keeps_its_room
from mirage_onnx.ir import Constant, DType, Tensor
from mirage_onnx.ir.program import Dim

#: Attributes that ask for another operator, and the only value that has a rule.
_FIXED = {
  "causal": (1, "keys behind the query are seen, too"),
  "qk_output": (0, "scores are an output"),
  "sliding_window_cache": (0, "the cache holds a window only"),
  "k_quant_type": ("NONE", "the cache of keys is quantized"),
  "v_quant_type": ("NONE", "the cache of values is quantized"),
}
_LENGTHS, _COS, _SIN, _POSITIONS, _BIAS, _SINK, _NORMS = 5, 7, 8, 9, 10, 11, (14, 15)


def group_query_attention(c: Context) -> None:
  """The node itself, or one of the two that ``split_caches`` has made of it."""
  _check(c)
  q, k, v = _projections(c)
  past, lengths = tuple(c.tensor(i) for i in (3, 4)), c.tensor(_LENGTHS)
  (batch, _, room, _), count = shape_of(past[0]), shape_of(c.tensor(0))[1]
  lengths = c.reshape(lengths, (batch, 1, 1, 1))
  place = c.reshape(places_along(c, room), (1, 1, room, 1))
  for position in (1, 2):
    c.has_shape(position, shape_of(past[position - 1]))
  if c.uses(0):
    _finish_attended(c, q, k, v, past, place, lengths)
  if not (c.uses(1) or c.uses(2)):
    return
  there = c.elementwise("equal", place, lengths, dtype=DType.BOOL) if count == 1 else None
  k = _turned(c, k, _NORMS[1]) if c.uses(1) else k
  v = _in_parts(c, v) if c.uses(2) else v
  for position, new, old in ((1, k, past[0]), (2, v, past[1])):
    if not c.uses(position):
      continue
    if there is not None:
      c.finish(c.elementwise("select", there, new, old, dtype=old.dtype), position)
    else:
      ahead = c.elementwise("sub", c.cast(place, DType.F32), _first_of(c, lengths, count))
      c.finish(with_rows(c, old, new, 2, ahead), position)


def _in_parts(c: Context, v: Tensor) -> Tensor:
  """Values in the parts that turned keys have, so that one kernel writes the rows of both."""
  if not (c.switch("do_rotary") and c.uses(1)) or c.switch("rotary_interleaved"):
    return v
  size, half = shape_of(v)[-1], shape_of(c.tensor(_COS))[1]
  ends = sorted({0, half, 2 * half, size})
  return c.concat([taken(c, v, 3, range(*part)) for part in pairwise(ends)], 3)


def _finish_attended(
  c: Context, q: Tensor, k: Tensor, v: Tensor, past: tuple[Tensor, ...], place: Tensor, lengths: Tensor
) -> None:
  whole, count = is_attended(c.node), shape_of(q)[2]
  there = c.elementwise("less_equal" if whole else "less", place, lengths, dtype=DType.BOOL)
  if (window := c.attribute("local_window_size", -1)) > 0 and count == 1:
    first = c.elementwise("sub", c.cast(lengths, DType.F32), const(window))
    inside = c.elementwise("less", first, c.cast(place, DType.F32), dtype=DType.BOOL)
    there = c.elementwise("mul", there, inside, dtype=DType.BOOL)
  new = (k, v) if whole else (_turned(c, k, _NORMS[1]), v)
  own = heads_of(c, _turned(c, q, _NORMS[0]), *new)
  seen = _seen_by_each(c, own, past, lengths, window) if count > 1 else None
  c.finish(by_rows(c, _attended(c, own, past, there, whole=whole, seen=seen)))


def _check(c: Context) -> None:
  for name, (value, reason) in _FIXED.items():
    if c.attribute(name, value) != value:
      raise c.reject(reason)
  if c.attribute("local_window_size", -1) == 0:
    raise c.reject("a window of 0 keys")
  if not (c.has(3) and c.has(4)):
    raise c.reject("without a cache there is no step of a decoder")
  if c.has(_BIAS):
    raise c.reject("a run says how large attention_bias is", "DYNAMIC_DIM")
  if len({*map(c.has, _NORMS)}) > 1:
    raise c.reject("of norms of queries and keys there is one")
  if c.has(1) != c.has(2):
    raise c.reject("of keys and values there is one")
  past, dtype = shape_of(c.tensor(3)), c.tensor(0).dtype
  if past != shape_of(c.tensor(4)) or len(past) != 4 or any(c.tensor(i).dtype is not dtype for i in (3, 4)):
    raise c.reject("the caches of keys and values are not alike")
  lengths = c.tensor(_LENGTHS)
  if c.symbols.is_symbolic(past[2]) and past[2] not in c.symbols.names:
    raise c.reject(f"a cache of {c.symbols.text(past[2])} rows", "DYNAMIC_DIM")
  if (new := shape_of(c.tensor(0))[1]) != 1:
    _check_several(c, new)
  if lengths.dtype is not DType.I32 or shape_of(lengths) not in ((past[0],), (past[0], 1)):
    raise c.reject(f"lengths {lengths.dtype} of {c.symbols.show(shape_of(lengths))}")
  if past[2] > LARGEST and not c.symbols.is_symbolic(past[2]):
    raise c.reject(f"a cache of {past[2]} rows")
  for i in (1, 2):
    if c.uses(i) and (c.output(i).shape or (None,) * 3)[2] != past[2] and not keeps_its_room(c.node):
      raise c.reject("present may be longer than past, which shows only a run", "DYNAMIC_DIM")


def _check_several(c: Context, new: Dim) -> None:
  """Of several new tokens those of a number, whose places nothing but the mask depends on."""
  if isinstance(new, str) or c.symbols.is_symbolic(new) or new > MOST_NEW:
    tokens = c.symbols.text(new)
    raise c.reject(f"{tokens} new tokens, of which a run says where they go", "DYNAMIC_DIM")
  if c.has(1) and any(shape_of(c.tensor(i))[1] != new for i in (1, 2)):
    raise c.reject(f"{new} queries beside other keys and values")
  if c.switch("do_rotary") and not c.has(_POSITIONS):
    raise c.reject(f"{new} new tokens, whose rows of cosines and sines no tensor names", "DYNAMIC_DIM")
  if c.uses(0) and not is_attended(c.node):
    raise c.reject(f"{new} new tokens beside a cache that has none of them")


def _first_of(c: Context, lengths: Tensor, new: int) -> Tensor:
  """The row of the first of so many new tokens."""
  first = c.elementwise("sub", c.cast(lengths, DType.F32), const(new - 1))
  return c.elementwise("max", first, const(0))


def _seen_by_each(c: Context, own: Heads, past: tuple[Tensor, ...], lengths: Tensor, window: int) -> Tensor:
  """Which rows of the cache are not behind each of several new tokens, which are in it.

  With a ``window`` (above 0) nor before the so many that end with it.
  """
  (batch, _, room, _), new, rank = shape_of(past[0]), shape_of(own.q)[-2], len(shape_of(own.q))
  ones = (1,) * (rank - 2)
  row = c.reshape(places_along(c, new), (*ones, new, 1))
  place = c.reshape(places_along(c, room), (*ones, 1, room))
  before = c.elementwise("sub", *(c.cast(x, DType.F32) for x in (place, row)))
  first = c.reshape(_first_of(c, lengths, new), (batch, *(1,) * (rank - 1)))
  seen = c.elementwise("less_equal", before, first, dtype=DType.BOOL)
  if window <= 0:
    return seen
  inside = c.elementwise("less", c.elementwise("sub", first, const(window)), before, dtype=DType.BOOL)
  return c.elementwise("mul", seen, inside, dtype=DType.BOOL)


def _projections(c: Context) -> tuple[Tensor, Tensor, Tensor]:
  """Q, K and V by (batch, heads, 1, size)."""
  heads, own = c.attribute("num_heads"), c.attribute("kv_num_heads")
  if c.has(1):
    q, k, v = (by_heads(c, c.tensor(i), n) for i, n in enumerate((heads, own, own)))
    return q, k, v
  all_ = by_heads(c, c.tensor(0), heads + 2 * own)
  ends = (0, heads, heads + own, heads + 2 * own)
  q, k, v = (taken(c, all_, 1, range(*ends[i : i + 2])) for i in range(3))
  return q, k, v


def _turned(c: Context, x: Tensor, weight: int) -> Tensor:
  """Queries or keys behind their norm over each head and the angles of their place; rounded once, at the end.

  ONNX Runtime has the norms on GPUs only.
  """
  dtype = x.dtype
  assert dtype is not None
  if c.has(weight):
    x, size = c.widen(x), shape_of(x)[-1]
    mean = c.reduce("mean", c.elementwise("square", x), (3,))
    scale = c.elementwise("sqrt", c.elementwise("add", mean, const(c.fraction("qk_norm_epsilon", 1e-6))))
    own = c.widen(c.reshape(c.tensor(weight), (1, 1, 1, size)))
    x = c.elementwise("mul", c.elementwise("div", x, scale), own)
  if c.switch("do_rotary"):
    x = _rotated(c, x)
  return c.cast(x, dtype)


def _rotated(c: Context, x: Tensor) -> Tensor:
  """By the angles of the places of the new tokens: positions, or how many there are before a single one."""
  if not (c.has(_COS) and c.has(_SIN)):
    raise c.reject("do_rotary without cosines and sines")
  batch, _, new, size = shape_of(x)
  half = shape_of(c.tensor(_COS))[1]
  if 2 * half > size:
    raise c.reject(f"turns {2 * half} of {size} elements")
  rows = c.tensor(_POSITIONS if c.has(_POSITIONS) else _LENGTHS)
  alone = are_given(c.node) or batch == 1  # at an empty cache a run takes the positions of the first for all
  if c.has(_POSITIONS) and not (alone and shape_of(rows) == (batch, new)):
    raise c.reject(f"positions of {c.symbols.show(shape_of(rows))}, of which a run takes the first or all")
  by_token = are_given(c.node) and not is_attended(c.node)  # of which each is a row of the cache
  of_each = [c.named(place_of(rows.name, i)) for i in range(int(new))] if by_token else [rows]
  shape = (batch, 1, int(new) // len(of_each), half)
  cos, sin = (
    beside(c, [c.widen(c.reshape(c.gather(c.tensor(i), r), shape)) for r in of_each], 2) for i in (_COS, _SIN)
  )
  return turned(c, x, cos, sin, c.switch("rotary_interleaved"))


def _attended(
  c: Context, own: Heads, past: tuple[Tensor, ...], there: Tensor, *, whole: bool, seen: Tensor | None = None
) -> Tensor:
  """By (batch, heads, new, size): of rows of ``past`` that are ``there`` and, unless it is, the new one.

  What a run left in the others is no number, perhaps, so it is not even multiplied by zero. ``seen``: those
  that each of several new tokens sees.
  """
  rank, dtype = len(shape_of(own.q)), own.q.dtype
  assert dtype is not None
  batch, heads, room, size = shape_of(past[0])
  wider = (1,) * (rank - 4)
  keys, values = (c.reshape(x, (batch, heads, *wider, room, size)) if wider else x for x in past)
  there = c.reshape(there, (batch, 1, *wider, room, 1)) if wider else there
  values = c.elementwise("select", there, values, const(0), dtype=dtype)
  turn = (*range(rank - 2), rank - 1, rank - 2)
  row, parts = c.transpose(there, turn), []
  if seen is not None:
    row = c.elementwise("mul", row, seen, dtype=DType.BOOL)
  for k, of in ((keys, row), *([] if whole else [(own.k, None)])):
    dots = c.matmul(own.q, c.transpose(k, turn), dtype=DType.F32)
    scores = capped(c, scaled(c, dots, shape_of(own.q)[-1]), c.fraction("softcap", 0.0))
    parts.append(c.elementwise("select", of, scores, LEAST, dtype=DType.F32) if of else scores)
  scores = parts[0] if whole else c.concat(parts, rank - 1)
  e, total = _exponentials(c, scores, own)
  p = c.cast(c.elementwise("div", e, total), dtype)
  y = c.matmul(p, values if whole else c.concat([values, own.v], rank - 2))
  return shaped(c, y, (batch, heads * own.shared, shape_of(own.q)[-2], size))


def _is_smooth(c: Context) -> bool:
  """-1 is what the attribute is where nobody says it."""
  return c.attribute("smooth_softmax", 0) != -1 and c.switch("smooth_softmax")


def _exponentials(c: Context, scores: Tensor, own: Heads) -> tuple[Tensor, Tensor]:
  """exp(score - the largest) and their sum; a sink is a score beside them that has no value.

  One far above them makes the sum infinite, and what is divided by it nothing.
  """
  axis = len(shape_of(scores)) - 1
  sink: Tensor | Constant = const(0)
  if c.has(_SINK):
    wide = shape_of(own.q)[1:-2]
    sink = c.widen(c.reshape(c.tensor(_SINK), (1, *wide, 1, 1)))
  elif not _is_smooth(c):
    _, _, e, total = exponentials(c, scores, (axis,))
    return e, total
  most, _, e, total = exponentials(c, scores, (axis,))
  beside = c.elementwise("exp", c.elementwise("sub", sink, most))
  return e, c.elementwise("add", total, beside)
