"""The value of a µGraph with numbers, as ``ir/ugraph.py`` says.

All blocks and cluster ranks run at once: a value has the array axes of those that it varies over
(``tiles``), and only the for-loop is a loop here. A value that is the same in all blocks is
computed once; one that is the same in all iterations, in the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from mirage_onnx import deadline
from mirage_onnx.ir.block_ops import ACCUMULATORS, MAX, Kind, kind_of, merge_of
from mirage_onnx.ir.rows import covered
from mirage_onnx.ir.ugraph import (
  BlockOp,
  Kernel,
  KernelParams,
  KTensor,
  Phase,
  Save,
  UGraph,
  part_axis,
  ugraph_extents,
)
from mirage_onnx.verify import named
from mirage_onnx.verify.domain import Domain
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.tiles import BLOCK_AXES, RANK_AXIS, AxisCut, Tiling, tiling


def interpret_ugraph(
  domain: Domain,
  graph: UGraph,
  params: Sequence[KernelParams],
  extents: Mapping[str, int],
  inputs: Mapping[str, NamedArray],
) -> dict[str, NamedArray]:
  """Tensor name -> value, for all tensors.

  ``graph`` is well-formed (``ir/spec.py``); of other graphs some are found out here too.

  Raises:
      ValueError: tiles do not fit together, or blocks or ranks write one element differently.
  """
  extents = ugraph_extents(graph, params, extents)
  items = tuple(sorted(extents.items()))
  tensors = {t.name: t for t in graph.tensors}
  env: dict[str, NamedArray] = {}
  for t in graph.tensors:
    if t.role in ("input", "weight"):
      env[t.name] = NamedArray(inputs[t.name].aligned(t.axes), t.axes)
  for kernel, numbers in zip(graph.kernels, params, strict=True):
    tiles = tiling(kernel, numbers, items, domain.xp)
    _Launch(domain, kernel, tiles, tensors, env).run()
  return env


@dataclass(frozen=True)
class _Launch:
  """One kernel: ``values`` holds what every block value is now, by index."""

  domain: Domain
  kernel: Kernel
  tiles: Tiling
  tensors: Mapping[str, KTensor]
  env: dict[str, NamedArray]
  values: dict[int, NamedArray] = field(default_factory=dict)
  running: dict[int, NamedArray] = field(default_factory=dict)
  sums: dict[int, NamedArray] = field(default_factory=dict)

  def run(self) -> None:
    for iteration in range(self.tiles.iterations):
      self._iterate(iteration)
    for index, op in enumerate(self.kernel.ops):
      if op.op in ACCUMULATORS:
        self.values[index] = self.sums[index]
      elif op.phase is Phase.POST:
        self.values[index] = self._value(index, op, 0)
    saved = {s.tensor: self._save(s) for s in self.kernel.saves}
    self.env.update(saved)

  def _iterate(self, iteration: int) -> None:
    active = self.tiles.active(iteration)
    before = dict(self.running)
    for index, op in enumerate(self.kernel.ops):
      if op.op in ACCUMULATORS:
        self._accumulate(index, op, active)
      elif op.phase is Phase.POST or (iteration and not self.tiles.varies[index]):
        continue
      elif kind_of(op.op) is Kind.RUNNING:
        x, merge = self.values[op.args[0]], merge_of(op.op)
        if index not in before:
          start = self.domain.lowest() if merge is MAX else self.domain.neutral(merge.name)
          first = self._round(op, NamedArray(start, ()))
          before[index] = named.expand(self.domain, first, named.sizes([x]))
        new = named.elementwise(self.domain, merge.function, before[index], x)
        new = self.values[index] = self._round(op, new)
        self.running[index] = self._keep(active, new, before[index])
      elif kind_of(op.op) is Kind.PREVIOUS:
        self.values[index] = before[op.args[0]]
      else:
        self.values[index] = self._value(index, op, iteration)

  def _accumulate(self, index: int, op: BlockOp, active: NamedArray | None) -> None:
    merge = merge_of(op.op)
    old = self.sums.get(index, NamedArray(self.domain.neutral(merge.name), ()))
    new = self.values[op.args[0]]
    if kind_of(op.op) is Kind.RESCALED:
      scaled = named.elementwise(self.domain, "mul", old, self.values[op.args[1]])
      new = named.elementwise(self.domain, merge.function, scaled, new)
    elif index in self.sums:
      new = named.elementwise(self.domain, merge.function, old, new)
    self.sums[index] = self._keep(active, self._round(op, new), old)

  def _keep(self, active: NamedArray | None, new: NamedArray, old: NamedArray) -> NamedArray:
    """``new`` for the ranks that make this iteration."""
    return new if active is None else named.where(self.domain, active, new, old)

  def _value(self, index: int, op: BlockOp, iteration: int) -> NamedArray:
    deadline.check()
    args = [self.values[a] for a in op.args]
    kind = kind_of(op.op)
    if kind is None:
      return self._round(op, named.elementwise(self.domain, op.op, *args))
    return self._round(op, _RULES[kind](self, index, op, args, iteration))

  def _constant(self, index: int, op: BlockOp, args: list[NamedArray], iteration: int) -> NamedArray:
    if op.value is not None:
      return NamedArray(self.domain.constant(op.value), ())
    return NamedArray(self.domain.extent({a: self.tiles.extents[a] for a in op.reduced}), ())

  def _pointwise(self, index: int, op: BlockOp, args: list[NamedArray], iteration: int) -> NamedArray:
    return named.power(self.domain, args[0], op.value) if isinstance(op.value, Fraction) else args[0]

  def _product(self, index: int, op: BlockOp, args: list[NamedArray], iteration: int) -> NamedArray:
    x, y = (self._masked(op, at, "sum", iteration) for at in (0, 1))
    return named.matmul(self.domain, x, y, op.reduced[0])

  def _reduction(self, index: int, op: BlockOp, args: list[NamedArray], iteration: int) -> NamedArray:
    merge = merge_of(op.op)
    x = self._masked(op, 0, merge.name, iteration)
    return named.reduce_(self.domain, merge.reduction, op.reduced, x)

  def _cluster(self, index: int, op: BlockOp, args: list[NamedArray], iteration: int) -> NamedArray:
    x = named.expand(self.domain, args[0], {RANK_AXIS: self.tiles.ranks})
    return named.reduce_(self.domain, merge_of(op.op).reduction, (RANK_AXIS,), x)

  def _load(self, index: int, op: BlockOp, args: list[NamedArray], iteration: int) -> NamedArray:
    result = self.env[op.tensor]
    for axis, cut in self.tiles.cuts[index].items():
      if cut != AxisCut(axis):
        at = self.tiles.tile(cut, iteration).index
        result = named.take(result, axis, at, cut.block_axes)
    return result

  def _masked(self, op: BlockOp, position: int, kind: str, iteration: int) -> NamedArray:
    """An argument of a reduction, with what the reduction ignores where nothing is."""
    arg = op.args[position]
    result = self.values[arg]
    for axis in op.reduced:
      cut = self.tiles.cuts[arg].get(axis, AxisCut(axis))
      valid = self.tiles.tile(cut, iteration).valid
      if valid is not None:
        ignored = NamedArray(self.domain.neutral(kind), ())
        result = named.where(self.domain, valid, result, ignored)
    return result

  def _round(self, op: BlockOp, x: NamedArray) -> NamedArray:
    data = self.domain.round(x.data, op.dtype)
    return x if data is x.data else NamedArray(data, x.axes)

  def _save(self, save: Save) -> NamedArray:
    """The whole tensor: tiles of a grid dimension are joined to the axis that it splits."""
    tensor, value = self.tensors[save.tensor], self.values[save.arg]
    cuts, blocks = self.tiles.cuts[save.arg], self.tiles.blocks
    parts: list[tuple[str, ...]] = []
    for axis in tensor.axes:
      dim = save.omap.index(axis) if axis in save.omap else None
      partial = dim is not None and axis == part_axis(self.kernel.grid[dim], self.kernel.name)
      wanted = None if partial else AxisCut(axis, dim)
      if cuts.get(axis) != wanted:
        found = cuts.get(axis, f"no {axis}")
        raise ValueError(f"%{save.arg} has {found}; {tensor.name} takes {wanted}")
      block = () if dim is None else (BLOCK_AXES[dim],)
      parts.append(block if partial else (*block, axis))
    split = {BLOCK_AXES[i]: n for i, n in enumerate(blocks) if save.omap[i] in tensor.axes}
    value = named.expand(self.domain, value, split)
    joined = [a for part in parts for a in part]
    # Blocks and ranks that write the same elements.
    writers = [a for a in value.axes if a not in joined]
    if not set(writers) <= {RANK_AXIS, *BLOCK_AXES}:
      raise ValueError(f"%{save.arg} is over {value.axes}, {tensor.name} over {tensor.axes}")
    size = named.sizes([value])
    shape = [size[a] for a in writers] + [prod(size[a] for a in part) for part in parts]
    data = value.aligned([*writers, *joined]).reshape(-1, *shape)
    whole = [slice(None)] * len(writers) + [slice(self.tiles.extents[a]) for a in tensor.axes]
    data = self.domain.round(data[(slice(None), *whole)], tensor.dtype)
    for _ in writers:
      first = data[:, :1]
      # NaN, the only value that is not itself, equals NaN here.
      if bool(((data != first) & ((data == data) | (first == first))).any()):
        raise ValueError(f"two blocks or ranks write different values to {save.tensor}")
      data = data[:, 0]
    return NamedArray(data, tensor.axes)


#: Kind of operator -> its value; what lives through the loop is ``_iterate``'s.
_RULES = covered("verify/interpret_ugraph.py", {
  Kind.LOAD: _Launch._load,
  Kind.CONSTANT: _Launch._constant,
  Kind.POINTWISE: _Launch._pointwise,
  Kind.CONTRACTION: _Launch._product,
  Kind.REDUCTION: _Launch._reduction,
  Kind.CLUSTER: _Launch._cluster,
}, {*Kind} - {Kind.ACCUMULATOR, Kind.RESCALED, Kind.RUNNING, Kind.PREVIOUS})  # fmt: skip
