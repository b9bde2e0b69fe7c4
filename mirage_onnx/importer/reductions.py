"""Reductions: axes from an attribute or an input, kept or dropped, and what is made of them."""

from collections.abc import Callable

from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.ir.program import Tensor

#: First opset whose operator takes the axes as an input.
_AXES_INPUT = {"ReduceSum": 13}
_AXES_INPUT_OTHERS = 18
#: First opset whose softmax is along one axis, and not over all from that one on.
_SOFTMAX_ONE_AXIS = 13


def reduction(
  op: str,
  before: Callable[[Context, Tensor], Tensor] = lambda c, x: x,
  after: Callable[[Context, Tensor], Tensor] = lambda c, x: x,
) -> Callable[[Context], None]:
  """after(op over the axes of before(x)), computed in fp32 where it is more than ``op``."""

  def lower(c: Context) -> None:
    x = c.tensor(0)
    rank, axes = len(shape_of(x)), _axes(c)
    x = before(c, x)
    if axes is None:
      c.finish(after(c, x))
      return
    shape = shape_of(x)
    if axes:  # a scalar has no axis to reduce
      x = c.reduce(op, x, axes)
    x = after(c, x)
    if not c.attribute("keepdims", 1):
      x = c.reshape(x, tuple(shape[k] for k in range(rank) if k not in axes))
    c.finish(x)

  return lower


def _axes(c: Context) -> tuple[int, ...] | None:
  """The reduced axes, ascending; None where ``noop_with_empty_axes`` says not to reduce."""
  rank = len(shape_of(c.tensor(0)))
  given: tuple[int, ...] | None = None
  if c.opset >= _AXES_INPUT.get(c.node.op_type, _AXES_INPUT_OTHERS):
    given = c.integers(1, "the axes") if c.has(1) else None
    if not given and c.switch("noop_with_empty_axes"):
      return None
  else:
    given = c.attribute("axes")
  return normalized(c, given, rank) if given else tuple(range(rank))


def normalized(c: Context, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
  """Non-negative, ascending axes of a tensor of this rank."""
  found = sorted({a + rank if a < 0 else a for a in axes})
  if len(found) != len(axes) or found[0] < 0 or found[-1] >= rank:
    raise c.reject(f"axes {list(axes)} of a tensor of rank {rank}")
  return tuple(found)


def square(c: Context, x: Tensor) -> Tensor:
  return c.elementwise("square", c.widen(x))


def absolute(c: Context, x: Tensor) -> Tensor:
  return c.elementwise("abs", c.widen(x))


def negated(c: Context, x: Tensor) -> Tensor:
  return c.elementwise("neg", x)


def root(c: Context, x: Tensor) -> Tensor:
  return c.elementwise("sqrt", x)


def softmax(c: Context) -> None:
  """exp(x - max) / sum exp(x - max) along one axis, or before opset 13 from an axis on."""
  *_, e, total = _exponentials(c)
  c.finish(c.elementwise("div", e, total))


def log_softmax(c: Context) -> None:
  """(x - max) - log sum exp(x - max) along the same."""
  _, shifted, _, total = _exponentials(c)
  c.finish(c.elementwise("sub", shifted, c.elementwise("log", total)))


def _exponentials(c: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
  x = c.widen(c.tensor(0))
  if not shape_of(x):
    raise c.reject("a scalar has no axis")
  rank, whole = len(shape_of(x)), c.opset < _SOFTMAX_ONE_AXIS
  (axis,) = normalized(c, (c.attribute("axis", 1 if whole else -1),), rank)
  return exponentials(c, x, tuple(range(axis, rank)) if whole else (axis,))


def exponentials(c: Context, x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
  """max, x - max, exp(x - max), sum exp(x - max), along these axes."""
  most = c.reduce("rmax", x, axes)
  shifted = c.elementwise("sub", x, most)
  e = c.elementwise("exp", shifted)
  return most, shifted, e, c.reduce("sum", e, axes)


def mean_of_operands(c: Context) -> None:
  """(a + b + ...) / n."""
  values = [c.widen(c.tensor(i)) for i in range(len(c.node.input))]
  total = values[0]
  for v in values[1:]:
    total = c.elementwise("add", total, v)
  c.finish(c.elementwise("div", total, const(len(values))))
