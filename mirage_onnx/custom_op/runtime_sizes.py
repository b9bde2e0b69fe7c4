"""What a launch plan says of sizes that only a run knows: as expressions over input dims."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.custom_op.arguments import Int32
from mirage_onnx.custom_op.expr import Expr, const, dim
from mirage_onnx.ir import BlockOp, Kernel, KTensor, Monomial, Phase, UGraph
from mirage_onnx.ir.block_ops import ACCUMULATORS, SUM, Kind, of_kinds
from mirage_onnx.ir.view import Window
from mirage_onnx.lower.sizes import MOST_AT_RUNTIME

#: Alignment of each tensor inside the workspace, bytes.
ALIGNMENT = 256


def product(factors: Iterable[Expr | int]) -> Expr:
  """The product, numbers last and as one."""
  every = list(factors)
  numbers = [f if isinstance(f, int) else f.constant for f in every]
  number = prod(n for n in numbers if n is not None)
  names = [f for f, n in zip(every, numbers, strict=True) if n is None and isinstance(f, Expr)]
  if not names:
    return const(number)
  found = names[0]
  for name in names[1:]:
    found *= name
  return found if number == 1 else found * number


def total(a: Expr, b: Expr) -> Expr:
  """The sum; 0 is left out, and numbers are added."""
  if a.constant is not None and b.constant is not None:
    return const(a.constant + b.constant)
  return b if a.constant == 0 else a + b


@dataclass(frozen=True, slots=True)
class RunDims:
  """Where a plan has the dims of a region's inputs.

  ``orders``: per input of the plan, its dims in their order there. ``place``: where the plan has
  a dimension of an input of the region, as (input, dimension as the model has it).
  """

  orders: Sequence[Sequence[int]]
  place: Callable[[int, int], tuple[int, int]] = lambda i, d: (i, d)

  def of(self, size: Monomial) -> Expr:
    """A product of dims of the region's inputs."""
    places = (self.place(i, d) for i, d in size.dims)
    dims = [dim(i, tuple(self.orders[i]).index(d)) for i, d in places]
    return product([*dims, size.coefficient])


@dataclass(frozen=True, slots=True)
class RuntimeSizes:
  """The extents of axes: numbers, or of those in ``runtime`` how a run finds them."""

  extents: Mapping[str, int]
  runtime: Mapping[str, Expr]

  def _extent(self, axis: str) -> Expr:
    return self.runtime[axis] if axis in self.runtime else const(self.extents[axis])

  def bytes_of(self, tensor: KTensor) -> Expr:
    """Of the memory that a tensor lies in: what a kernel that is given it touches at most."""
    if tensor.few_bits:  # weights, of which no run counts anything
      return const(tensor.bytes(self.extents))
    factors: list[Expr | int] = [tensor.dtype.size_bytes]
    for w in tensor.windows or (Window(tensor.axes),):
      factors += map(self._extent, w.axes) if w.full is None else [w.full]
    return product(factors)

  def aligned_bytes(self, tensor: KTensor) -> Expr:
    """What a tensor takes of the workspace."""
    size = self.bytes_of(tensor)
    if size.constant is not None:
      return const(-(-size.constant // ALIGNMENT) * ALIGNMENT)
    return size.ceildiv(ALIGNMENT) * ALIGNMENT

  def blocks(self, source: KernelSource) -> Expr:
    """x of the grid, cluster ranks counted."""
    blocks = [
      self._extent(axis) if tile == 1 else self._extent(axis).ceildiv(tile) for axis, tile in source.tiles
    ]
    return product([*blocks, source.grid[0]])

  def argument(self, axis: str, graph: UGraph, kernel: Kernel, results: Expr) -> Int32:
    """The size of an axis, for a kernel; ``results``: elements of all outputs.

    More than it can count make a divisor of 0: the run fails there and computes nothing wrong. So
    does an axis without elements, if the kernel would divide by a sum over it and there are results.
    """
    size = self._extent(axis)
    fits = size.le(MOST_AT_RUNTIME)
    if needs_elements(graph, kernel, axis):
      fits = fits.and_(size + results.eq(0))
    return Int32(size.ceildiv(fits))


#: What is right for a sum that is 0 because it has no terms.
_OF_NOTHING = of_kinds(Kind.CLUSTER, merges=(SUM,)) | {"acc_sum", "cast", "add", "sub", "neg"}


def needs_elements(graph: UGraph, kernel: Kernel, axis: str) -> bool:
  """Whether a kernel that sums over all of ``axis`` may be wrong where there is nothing to sum.

  A softmax over nothing has no elements, and what is summed with its weights is 0; a kernel that
  divides last divides 0 by 0, and so may one that reads its sums.
  """
  if kernel.loop != axis:
    return False
  if any(graph.tensor(s.tensor).role == "temp" for s in kernel.saves):
    return True
  made = set[int]()
  for i, op in enumerate(kernel.ops):
    if op.phase is Phase.POST and (op.op in ACCUMULATORS or made.intersection(op.args)):
      made.add(i)

  def is_right(op: BlockOp) -> bool:
    others = [kernel.ops[a].op for a in op.args if a not in made]
    return op.op in _OF_NOTHING or (op.op == "mul" and others == ["const"])

  return not all(is_right(kernel.ops[i]) for i in made)
