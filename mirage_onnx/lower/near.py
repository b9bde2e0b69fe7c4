"""Elementwise operations that are one function together, which 16 bits need no more precisely.

    x (1 + erf(x / sqrt(2))) / 2  =  x N(x)  =  max(x, 0) - |x| N(-|x|)

where N is the normal distribution. Its lower tail is two to the power of a polynomial, so that takes 10
instructions of a lane, and the operations one by one 16 (``times_normal`` of device/warpgroup.cuh). Factors
may stand in any order, and the numbers be written in any way.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isclose, sqrt

from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import TIMES_NORMAL
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor

_NEAR = 1e-6
_NUMBERS: Mapping[str, Callable[..., float]] = {
  "sqrt": sqrt, "rsqrt": lambda x: 1 / sqrt(x), "recip": lambda x: 1 / x, "neg": lambda x: -x,
  "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "cast": lambda x: x,
}  # fmt: skip


def with_near(kernel: Kernel, tensors: Mapping[str, KTensor]) -> Kernel:
  """The kernel with such functions in place of the last of their operations, if all results have 16 bits."""
  if not all(tensors[s.tensor].dtype.is_half for s in kernel.saves):
    return kernel
  chains = _Chains(kernel)
  ops = list(kernel.ops)
  for index, op in enumerate(ops):
    if op.op in ("mul", "div") and (x := chains.argument(index)) is not None:
      ops[index] = replace(op, op=TIMES_NORMAL, args=(x,))
  return replace(kernel, ops=tuple(ops))


class _Chains:
  """What the operations of a kernel are made of."""

  def __init__(self, kernel: Kernel) -> None:
    self.ops = kernel.ops
    self.users = [0] * len(self.ops)
    for a in [*(a for op in self.ops for a in op.args), *(s.arg for s in kernel.saves)]:
      self.users[a] += 1

  def argument(self, index: int) -> int | None:
    """The x of which a product is x N(x)."""
    number, factors = self.factors(index)
    if len(factors) != 2 or not isclose(number, 0.5, rel_tol=_NEAR):
      return None
    for x, other in (factors, factors[::-1]):
      if self._is_sum(other, x) and self.ops[x].dtype is DType.F32:
        return x
    return None

  def _is_sum(self, index: int, x: int) -> bool:
    """Whether a value is 1 + erf(x / sqrt(2))."""
    op = self.ops[index]
    if op.op != "add":
      return False
    ones = [a for a in op.args if self.number(a) == 1.0]
    rest = [a for a in op.args if self.number(a) is None]
    if len(ones) != 1 or len(rest) != 1 or self.ops[rest[0]].op != "erf":
      return False
    number, factors = self.factors(self.ops[rest[0]].args[0])
    return factors == [x] and isclose(number, sqrt(0.5), rel_tol=_NEAR)

  def factors(self, index: int, *, first: bool = True) -> tuple[float, list[int]]:
    """A value as a number times others; what more than one operation uses is a factor itself."""
    op, number = self.ops[index], self.number(index)
    if number is not None:
      return number, []
    if op.op == "mul" and (first or self.users[index] == 1):
      (m, left), (n, right) = (self.factors(a, first=False) for a in op.args)
      return m * n, [*left, *right]
    if op.op == "div" and (first or self.users[index] == 1):
      below = self.number(op.args[1])
      if below:
        m, left = self.factors(op.args[0], first=False)
        return m / below, left
    return 1.0, [index]

  def number(self, index: int) -> float | None:
    """What a value is that nothing but numbers is in."""
    op: BlockOp = self.ops[index]
    if op.axes:
      return None
    if op.op == "const":
      return float(op.value) if op.value is not None and not isinstance(op.value, str) else None
    args = [self.number(a) for a in op.args]
    if op.op not in _NUMBERS or not args or None in args:
      return None
    try:
      return float(_NUMBERS[op.op](*args))
    except (ValueError, ZeroDivisionError):
      return None
