"""Normalisations: statistics in fp32, over the last dimensions from ``axis`` on.

The ONNX text (LayerNormalization-17, RMSNormalization-23) computes stage one in ``stash_type``,
rounds the normalised value to the type of the input, and scales and shifts in that type.
"""

from mirage_onnx.importer.context import Context, Value, const, shape_of
from mirage_onnx.ir import DType, Tensor

#: TensorProto.FLOAT
_FLOAT = 1


def layer_norm(c: Context) -> None:
  """T((x - mean) / sqrt(mean((x - mean)^2) + eps)) scale + b; mean and 1 / sqrt(...) where they are used."""
  x = _input(c)
  wide = _stage_one(c, x)
  if c.uses(1):
    c.finish(c.reduce("mean", wide, _axes(c, wide)), 1)
  if c.uses(2):
    centered = c.elementwise("sub", wide, c.reduce("mean", wide, _axes(c, wide)))
    c.finish(c.elementwise("recip", _deviation(c, centered)), 2)
  y = c.cast(_normalized(c, wide, centered=True), _type(x))
  y = c.elementwise("mul", y, c.operand(1))
  c.finish(c.elementwise("add", y, c.operand(2)) if c.has(2) else y)


def rms_norm(c: Context) -> None:
  """T(x / sqrt(mean(x^2) + eps)) scale."""
  _check_outputs(c, (1, 2))
  x = _input(c)
  y = c.cast(_normalized(c, _stage_one(c, x), centered=False), _type(x))
  c.finish(c.elementwise("mul", y, c.operand(1)))


def skip_layer_norm(c: Context) -> None:
  """com.microsoft: s = input + skip + bias; norm(s) gamma + beta; output 3 is s."""
  _skip_norm(c, centered=True, bias=4, beta=3)


def skip_rms_norm(c: Context) -> None:
  """com.microsoft: s = input + skip + bias; rms(s) gamma; output 3 is s."""
  _skip_norm(c, centered=False, bias=3, beta=None)


def _skip_norm(c: Context, centered: bool, bias: int, beta: int | None) -> None:
  x = c.tensor(0)
  _check_outputs(c, (1, 2))
  total = c.elementwise("add", _stage_one(c, x), c.widened(1))
  if c.has(bias):
    total = c.elementwise("add", total, c.widened(bias))
  if len(c.node.output) > 3 and c.node.output[3]:
    total = _stage_one(c, c.finish(total, 3))
  y = c.elementwise("mul", _normalized(c, total, centered, 1e-12), c.widened(2))
  if beta is not None and c.has(beta):
    y = c.elementwise("add", y, c.widened(beta))
  c.finish(y)


def _input(c: Context) -> Tensor:
  if (stash := c.attribute("stash_type", _FLOAT)) != _FLOAT:
    raise c.reject(f"stash_type {stash} is not supported")
  x = c.tensor(0)
  for position in range(1, len(c.node.input)):
    if c.has(position) and c.tensor(position).dtype is not x.dtype:
      raise c.reject(f"{c.tensor(position).name!r} has another type than the input", "DTYPE")
  return x


def _check_outputs(c: Context, positions: tuple[int, ...]) -> None:
  if any(c.uses(p) for p in positions):
    raise c.reject("the saved statistics are used")


def _stage_one(c: Context, x: Tensor) -> Tensor:
  if x.dtype is DType.F64:
    raise c.reject(f"{x.name!r} is f64, whose statistics ONNX rounds to fp32", "DTYPE")
  return c.widen(x)


def _axes(c: Context, x: Tensor) -> tuple[int, ...]:
  rank = len(shape_of(x))
  first = c.attribute("axis", -1)
  first += rank if first < 0 else 0
  if not 0 <= first < rank:
    raise c.reject(f"axis {first} of a tensor of rank {rank}")
  return tuple(range(first, rank))


def _normalized(c: Context, x: Tensor, centered: bool, epsilon: float = 1e-5) -> Tensor:
  if centered:
    x = c.elementwise("sub", x, c.reduce("mean", x, _axes(c, x)))
  return c.elementwise("div", x, _deviation(c, x, epsilon))


def _deviation(c: Context, x: Tensor, epsilon: float = 1e-5) -> Tensor:
  """sqrt(mean(x^2) + eps) of what is centered."""
  variance = c.reduce("mean", c.elementwise("square", x), _axes(c, x))
  shifted: Value = const(c.fraction("epsilon", epsilon))
  return c.elementwise("sqrt", c.elementwise("add", variance, shifted))


def _type(x: Tensor) -> DType:
  assert x.dtype is not None
  return x.dtype
