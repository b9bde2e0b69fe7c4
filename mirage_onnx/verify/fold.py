"""Programs read in an algebra: what a static analysis of terms and µGraphs has in common.

An interpretation computes arrays; a fold computes one small value per node or block value: a
degree, a number of terms, a symbolic term. µGraphs are folded with the numbers that they run with,
since they say how often something is added up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeVar

from mirage_onnx.ir import term as t
from mirage_onnx.ir.block_ops import SUM, Kind, Merge, kind_of, merge_of
from mirage_onnx.ir.rows import covered
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, Phase, UGraph, ugraph_extents

V = TypeVar("V")


class Algebra(Protocol[V]):
  """What to make of each kind of node."""

  def input(self, name: str, axes: tuple[str, ...]) -> V: ...

  def constant(self, value: Fraction | str) -> V: ...

  def extent(self, axes: tuple[str, ...]) -> V: ...

  def elementwise(self, op: str, args: Sequence[V]) -> V: ...

  def power(self, x: V, e: Fraction) -> V: ...

  def total(self, x: V, axes: Mapping[str, int]) -> V:
    """The sum over ``axes``, each with its number of elements."""
    ...

  def highest(self, x: V, axes: Mapping[str, int]) -> V:
    """The maximum over ``axes``."""
    ...

  def repeated(self, merge: Merge, x: V, times: int) -> V:
    """An accumulator or cluster reduction (``ir/ugraph.py``) of ``times`` different x."""
    ...

  def rescaled(self, x: V, f: V, times: int) -> V:
    """``acc_scaled``."""
    ...


def fold_terms(algebra: Algebra[V], roots: Sequence[Term], extents: Mapping[str, int]) -> dict[Term, V]:
  """The value of every node under ``roots``."""
  values: dict[Term, V] = {}
  for node in t.walk(roots):
    values[node] = _node(algebra, node, [values[a] for a in node.args], extents)
  return values


def _node(algebra: Algebra[V], node: Term, args: list[V], extents: Mapping[str, int]) -> V:
  attr = node.attr
  if node.op == t.INPUT:
    return algebra.input(str(attr), node.axes)
  if node.op == t.CONST:
    assert isinstance(attr, Fraction | str)
    return algebra.constant(attr)
  if node.op == t.POW:
    assert isinstance(attr, Fraction)
    return algebra.power(args[0], attr)
  if node.op in (t.ADD, t.MUL):
    result = args[0]
    for a in args[1:]:
      result = algebra.elementwise(node.op, (result, a))
    return result
  if node.op == t.EXTENT or node.op in t.REDUCTIONS:
    assert isinstance(attr, tuple)
    if node.op == t.EXTENT:
      return algebra.extent(attr)
    counts = {a: extents[a] for a in attr}
    return (algebra.total if node.op == t.SUM else algebra.highest)(args[0], counts)
  return algebra.elementwise(node.op, args)


@dataclass(frozen=True)
class KernelFold(Generic[V]):
  """The block values of one kernel, and how often its loop and its cluster repeat them."""

  kernel: Kernel
  values: tuple[V, ...]
  iterations: int
  ranks: int


def fold_ugraph(
  algebra: Algebra[V], graph: UGraph, params: Sequence[KernelParams], extents: Mapping[str, int]
) -> tuple[dict[str, V], tuple[KernelFold[V], ...]]:
  """The value of every tensor, by name, and those of the kernels."""
  extents = ugraph_extents(graph, params, extents)
  tensors = {x.name: algebra.input(x.name, x.axes) for x in graph.tensors if x.role in ("input", "weight")}
  kernels = []
  for kernel, numbers in zip(graph.kernels, params, strict=True):
    folded = _kernel(algebra, kernel, numbers, extents, tensors)
    kernels.append(folded)
    for save in kernel.saves:
      tensors[save.tensor] = folded.values[save.arg]
  return tensors, tuple(kernels)


def _kernel(
  algebra: Algebra[V],
  kernel: Kernel,
  numbers: KernelParams,
  extents: Mapping[str, int],
  tensors: Mapping[str, V],
) -> KernelFold[V]:
  ranks = numbers.cluster if kernel.cluster else 1
  iterations = 1
  if kernel.loop is not None:
    whole = {kernel.loop: extents[kernel.loop]}
    piece = _tile(kernel, numbers, whole, kernel.grid, kernel.cluster, None)[kernel.loop]
    iterations = -(-piece // numbers.loop_tile)
  values: list[V] = []
  sizes: list[dict[str, int]] = []
  for op in kernel.ops:
    args = [values[a] for a in op.args]
    size = {a: n for i in op.args for a, n in sizes[i].items() if a not in op.reduced}
    counts = {a: n for i in op.args for a, n in sizes[i].items() if a in op.reduced}
    kind = kind_of(op.op)
    if kind is Kind.LOAD:
      whole = {a: extents[a] for a in op.axes}
      size = _tile(kernel, numbers, whole, op.imap, op.cmap, op.fmap)
      values.append(tensors[op.tensor])
    elif kind is None:
      values.append(algebra.elementwise(op.op, args))
    else:
      values.append(_RULES[kind](algebra, op, args, _Times(counts, iterations, ranks)))
    sizes.append(size)
  return KernelFold(kernel, tuple(values), iterations, ranks)


def _tile(
  kernel: Kernel,
  numbers: KernelParams,
  whole: Mapping[str, int],
  imap: Sequence[str | None],
  cmap: str | None,
  fmap: str | None,
) -> dict[str, int]:
  """Axis -> the most elements that a block, rank and iteration has of it."""
  size = dict(whole)
  for axis, tile in zip(imap, numbers.tile, strict=True):
    if axis in size:
      size[axis] = min(size[axis], tile)
  if cmap in size:
    size[cmap] = -(-size[cmap] // numbers.cluster)
  if fmap in size:
    size[fmap] = min(size[fmap], numbers.loop_tile)
  return size


@dataclass(frozen=True, slots=True)
class _Times:
  """Elements of each axis that an operator goes over, iterations and ranks."""

  counts: Mapping[str, int]
  iterations: int
  ranks: int


def _constant(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  return algebra.extent(op.reduced) if op.value is None else algebra.constant(op.value)


def _pointwise(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  return algebra.power(args[0], op.value) if isinstance(op.value, Fraction) else args[0]


def _product(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  return algebra.total(algebra.elementwise("mul", args), times.counts)


def _reduction(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  over = algebra.total if merge_of(op.op) is SUM else algebra.highest
  return over(args[0], times.counts)


def _accumulator(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  return algebra.repeated(merge_of(op.op), args[0], times.iterations)


def _rescaled(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  return algebra.rescaled(args[0], args[1], times.iterations)


def _running(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  """What it begins with is one of its values."""
  return algebra.repeated(merge_of(op.op), args[0], times.iterations + 1)


def _previous(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  return args[0]


def _cluster(algebra: Algebra[V], op: BlockOp, args: Sequence[V], times: _Times) -> V:
  return algebra.repeated(merge_of(op.op), args[0], times.ranks)


#: Kind of operator -> its value, by algebra, operator, values of the arguments and counts.
_RULES: Mapping[Kind, Callable[..., Any]] = covered("verify/fold.py", {
  Kind.CONSTANT: _constant,
  Kind.POINTWISE: _pointwise,
  Kind.CONTRACTION: _product,
  Kind.REDUCTION: _reduction,
  Kind.ACCUMULATOR: _accumulator,
  Kind.RESCALED: _rescaled,
  Kind.RUNNING: _running,
  Kind.PREVIOUS: _previous,
  Kind.CLUSTER: _cluster,
}, {*Kind} - {Kind.LOAD})  # fmt: skip


def repeats(folded: KernelFold[V], index: int) -> int:
  """How many values one element of a block value stands for, over iterations and ranks."""
  kernel = folded.kernel
  op = kernel.ops[index]
  # A value over the loop axis has each element in one iteration, any other in all of them.
  looped = op.phase is Phase.LOOP and kernel.loop not in op.axes
  ranked = kernel.cluster is not None and kernel.cluster not in op.axes
  return (folded.iterations if looped else 1) * (folded.ranks if ranked else 1)
