"""Matrix products."""

from onnx import helper

from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.windows import find_windows
from mirage_onnx.ir import Constant, DType, Tensor


def matmul(c: Context) -> None:
  c.finish(c.matmul(c.tensor(0), c.tensor(1)))


def gemm(c: Context) -> None:
  """``alpha A B + beta C``, rounded once: the sums of 16-bit operands are in fp32."""
  a, b = _transposed(c, 0, "transA"), _transposed(c, 1, "transB")
  alpha, beta = c.fraction("alpha", 1.0), c.fraction("beta", 1.0)
  has_c = c.has(2) and beta != 0
  y = c.matmul(a, b, dtype=_wide(a) if has_c or alpha != 1 else None)
  if alpha != 1:
    y = c.elementwise("mul", y, const(alpha))
  if has_c:
    addend = c.widened(2)
    if beta != 1:
      # beta C may be constant as a whole; a step needs a tensor.
      tensor = c.widen(c.tensor(2)) if isinstance(addend, Constant) else addend
      addend = c.elementwise("mul", tensor, const(beta))
    y = c.elementwise("add", y, addend)
  c.finish(y)


def fused_matmul(c: Context) -> None:
  """com.microsoft: alpha op(A) op(B), op a transposition of the last two dimensions."""
  if c.attribute("transBatchA", 0) or c.attribute("transBatchB", 0):
    raise c.reject("transBatchA and transBatchB are not supported")
  a, b = _transposed(c, 0, "transA"), _transposed(c, 1, "transB")
  alpha = c.fraction("alpha", 1.0)
  y = c.matmul(a, b, dtype=_wide(a) if alpha != 1 else None)
  c.finish(c.elementwise("mul", y, const(alpha)) if alpha != 1 else y)


def conv(c: Context) -> None:
  """What is a product of windows has been taken apart (``split_windows.py``), so all others stay."""
  given = {a.name: helper.get_attribute_value(a) for a in c.node.attribute}
  found = find_windows(given, c.tensor(0).shape or (), c.tensor(1).shape or ())
  if isinstance(found, str):
    raise c.reject(found)
  raise c.reject("is a product of windows, which is taken apart in main graphs of opset 13 and later only")


def _transposed(c: Context, position: int, attribute: str) -> Tensor:
  x = c.tensor(position)
  rank = len(shape_of(x))
  if not c.attribute(attribute, 0) or rank < 2:
    return x
  return c.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _wide(x: Tensor) -> DType | None:
  return DType.F32 if x.dtype is not None and x.dtype.is_half else x.dtype
