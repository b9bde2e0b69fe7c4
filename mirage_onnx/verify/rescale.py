"""A factor of a power of two where a product is rounded to 16 bits that could exceed them.

    sum_k w_k f16(x_k g_k)   =   2^e sum_k w_k f16(2^-e x_k g_k)

A norm that comes after its contraction leaves x g to be rounded, which overflows for large x as soon as
|g| > 1, although the norm of x is finite. Powers of two round nothing, and cost a multiplication of what
was one already. Values that are subnormal then lose up to e bits: the checks of rounding see that, and
e is at most ``MOST``. What comes out is proven and checked like any other program.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, isfinite, log2

from mirage_onnx.ir import BlockOp, DType, Kernel, Layout, UGraph
from mirage_onnx.ir.block_ops import SUM, Kind, of_kinds
from mirage_onnx.verify.program_lines import block_name, ugraph_lines
from mirage_onnx.verify.range_check import RangeCheck
from mirage_onnx.verify.ranges import largest

#: Exponents of the factor.
MOST = 6
#: What sums up products, and is linear in them.
_SUMS = of_kinds(Kind.ACCUMULATOR, Kind.CLUSTER, merges=(SUM,))


def rescaled(graph: UGraph, checks: Sequence[RangeCheck]) -> UGraph | None:
  """``graph`` with factors wherever the checks need them, or None where none would help.

  What is computed from a value that may be infinite is known only when that value has its factor, so the
  values that follow from others get theirs in a later round.
  """
  found = graph
  for _ in range(sum(o.op == "cast" for k in graph.kernels for o in k.ops)):
    if (more := _once_rescaled(found, checks)) == found:
      break
    found = more
  return None if found == graph else found


def _once_rescaled(graph: UGraph, checks: Sequence[RangeCheck]) -> UGraph:
  """Factors for the values that are too large by themselves."""
  kernels, lines = [], ugraph_lines(graph)
  reaches = [reach for c in checks for reach in c.reaches(lines)]

  def largest_of(name: str) -> float:
    return max((r[name].interval.magnitude for r in reaches), default=0.0)

  for kernel in graph.kernels:
    exponents = {}
    for index, op in enumerate(kernel.ops):
      most = largest_of(block_name(op.args[0], kernel.name)) if _feeds_sums(kernel, index) else 0.0
      if e := _exponent(most, op.dtype):
        exponents[index] = e
    kernels.append(_scaled(kernel, exponents) if exponents else kernel)
  return replace(graph, kernels=tuple(kernels))


def _feeds_sums(kernel: Kernel, index: int) -> bool:
  """Whether a value is rounded to 16 bits only to be contracted, in fp32."""
  op = kernel.ops[index]
  if op.op != "cast" or not op.dtype.is_half or kernel.ops[op.args[0]].dtype is not DType.F32:
    return False
  users = [o for o in kernel.ops if index in o.args]
  saved = any(s.arg == index for s in kernel.saves)
  one_side = all(o.op == "matmul" and o.dtype is DType.F32 and o.args.count(index) == 1 for o in users)
  return bool(users) and one_side and not saved


def _exponent(most: float, dtype: DType) -> int:
  """The least that keeps a value finite that is so large; 0 where it is, or cannot be made so."""
  if not isfinite(most) or most <= largest(dtype):
    return 0
  found = ceil(log2(most / largest(dtype)))
  return found if found <= MOST else 0


def _scaled(kernel: Kernel, exponents: dict[int, int]) -> Kernel:
  """The kernel with a factor before each of these casts, and its inverse behind their sums."""
  inverse: dict[int, int] = {}
  for index, e in exponents.items():
    for user, op in enumerate(kernel.ops):
      if index in op.args:
        end = _end_of_sum(kernel, user)
        inverse[end] = inverse.get(end, 0) + e
  ops: list[BlockOp] = []
  place: list[int] = []

  def add(op: BlockOp) -> int:
    ops.append(op)
    return len(ops) - 1

  def times(x: int, power: int, like: BlockOp) -> int:
    """A multiple of value ``x`` in the phase and layout of ``like``."""
    c = add(BlockOp("const", (), (), DType.F32, like.phase, Layout.UNIFORM, value=Fraction(2) ** power))
    return add(BlockOp("mul", (c, x), like.axes, DType.F32, like.phase, like.layout))

  for index, op in enumerate(kernel.ops):
    args = tuple(place[a] for a in op.args)
    if index in exponents:
      args = (times(args[0], -exponents[index], op),)
    at = add(replace(op, args=args))
    place.append(times(at, inverse[index], op) if index in inverse else at)
  saves = tuple(replace(s, arg=place[s.arg]) for s in kernel.saves)
  return replace(kernel, ops=tuple(ops), saves=saves)


def _end_of_sum(kernel: Kernel, at: int) -> int:
  """The last value that only sums up what ``at`` has contracted."""
  while True:
    users = [n for n, o in enumerate(kernel.ops) if at in o.args]
    if len(users) != 1 or kernel.ops[users[0]].op not in _SUMS or any(s.arg == at for s in kernel.saves):
      return at
    at = users[0]
