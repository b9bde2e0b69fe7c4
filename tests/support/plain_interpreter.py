"""The meaning of a µGraph spelled out: one block, rank and iteration after the other.

The oracle of ``verify/interpret_ugraph.py``: tails are cut off instead of masked, and empty pieces
have no iterations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Phase, part_axis, ugraph_extents
from mirage_onnx.verify import named
from mirage_onnx.verify.domain import Domain
from mirage_onnx.verify.named import NamedArray

ACCUMULATORS = ("acc_sum", "acc_max", "acc_scaled")


def interpret_plainly(domain, graph, params, extents, inputs):
  """Tensor name -> value, for all tensors.

  Raises:
      ValueError: tiles do not fit together, or an element is written never or differently twice.
  """
  extents = ugraph_extents(graph, params, extents)
  tensors = {t.name: t for t in graph.tensors}
  env = {}
  for t in graph.tensors:
    if t.role in ("input", "weight"):
      env[t.name] = NamedArray(inputs[t.name].aligned(t.axes), t.axes)
  for kernel, numbers in zip(graph.kernels, params, strict=True):
    _Run(domain, kernel, numbers, extents, tensors, env).run()
  return env


@dataclass(frozen=True)
class _Run:
  domain: Domain
  kernel: Kernel
  params: KernelParams
  extents: Mapping[str, int]
  tensors: Mapping[str, KTensor]
  env: dict[str, NamedArray]

  def run(self):
    numbers = [*self.params.tile, self.params.cluster]
    numbers += [self.params.loop_tile] if self.kernel.loop else []
    if len(self.params.tile) != len(self.kernel.grid) or min(numbers) < 1:
      raise ValueError(f"kernel {self.kernel.name} has numbers {self.params.to_text()}")
    sinks = {}
    written = {}
    for save in self.kernel.saves:
      shape = tuple(self.extents[a] for a in self.tensors[save.tensor].axes)
      written[save.tensor] = np.zeros(shape, dtype=bool)
    tiles = zip(self.kernel.grid, self.params.tile, strict=True)
    counts = [-(-self.extents[axis] // tile) for axis, tile in tiles]
    for block in product(*map(range, counts)):
      for values in self._block(block):
        for save in self.kernel.saves:
          self._save(block, save.tensor, save.omap, values[save.arg], sinks, written)
    for name, mask in written.items():
      if not mask.all():
        where = tuple(int(i) for i in np.argwhere(~mask)[0])
        raise ValueError(f"element {where} of {name} is never written")
      self.env[name] = NamedArray(sinks[name], self.tensors[name].axes)

  def _save(self, block, name, omap, value, sinks, written):
    tensor = self.tensors[name]
    for axis, mapped in zip(self.kernel.grid, omap, strict=True):
      if mapped == part_axis(axis, self.kernel.name):
        value = NamedArray(value.data[..., None], (*value.axes, mapped))
    data = self.domain.round(value.aligned(tensor.axes), tensor.dtype)
    ranges = [self._range(a, block, omap) for a in tensor.axes]
    if data.shape[1:] != tuple(stop - start for start, stop in ranges):
      raise ValueError(f"a tile of shape {data.shape[1:]} is saved into {ranges} of {name}")
    slot = tuple(slice(*r) for r in ranges)
    if name not in sinks:
      sinks[name] = np.empty((data.shape[0], *written[name].shape), dtype=data.dtype)
    # The ellipsis makes it a view, also where the tensor is a scalar.
    inner = (..., *slot)
    old, mask = sinks[name][(slice(None), *slot)], written[name][inner]
    both_nan = (old != old) & (data != data)
    if (mask & ((old != data) & ~both_nan)).any():
      raise ValueError(f"two blocks or ranks write different values to {name}")
    old[...] = data
    mask[...] = True

  def _range(self, axis, block, maps):
    """The part of ``axis`` that a block has, where ``maps`` is an imap or omap."""
    for i, mapped in enumerate(maps):
      if axis == part_axis(self.kernel.grid[i], self.kernel.name):
        return block[i], block[i] + 1
      if mapped == axis:
        tile = self.params.tile[i]
        return block[i] * tile, min((block[i] + 1) * tile, self.extents[axis])
    return 0, self.extents[axis]

  def _piece(self, whole, rank):
    start, stop = whole
    size = -(-(stop - start) // self.params.cluster)
    return min(start + rank * size, stop), min(start + (rank + 1) * size, stop)

  def _walk(self, block, rank):
    loop = self.kernel.loop
    if loop is None:
      return [(0, 0)]
    whole = self._range(loop, block, self.kernel.grid)
    start, stop = self._piece(whole, rank) if loop == self.kernel.cluster else whole
    step = self.params.loop_tile
    return [(at, min(at + step, stop)) for at in range(start, stop, step)]

  def _block(self, block):
    """The values of every rank; those of the loop are those of its last iteration."""
    ranks = range(self.params.cluster if self.kernel.cluster else 1)
    values = [[] for _ in ranks]
    sums = [{} for _ in ranks]
    for rank in ranks:
      walk = self._walk(block, rank)
      # An empty piece has no iterations; one over no elements gives the shapes.
      running = {}
      for step in walk or [(0, 0)]:
        values[rank] = self._iterate(block, rank, step, running)
        self._accumulate(values[rank], sums[rank])
      if not walk:
        self._clear(sums[rank])
    for index, op in enumerate(self.kernel.ops):
      if op.op in ACCUMULATORS:
        results = [sums[rank][index] for rank in ranks]
      elif op.phase is Phase.LOOP:
        continue
      elif op.op in ("red_sum", "red_max"):
        parts = [values[rank][op.args[0]] for rank in ranks]
        fold = "add" if op.op == "red_sum" else "max"
        results = [self._round(op, named.fold(self.domain, fold, parts))] * len(ranks)
      else:
        results = [self._value(op, values[r], block, r, (0, 0)) for r in ranks]
      for rank in ranks:
        values[rank][index] = results[rank]
    return values

  def _iterate(self, block, rank, step, running):
    """``running``: of every run_max its value after the iterations so far."""
    missing = NamedArray(np.empty(0), ())
    values = [missing] * len(self.kernel.ops)
    before = dict(running)
    for index, op in enumerate(self.kernel.ops):
      if op.phase is not Phase.LOOP or op.op in ACCUMULATORS:
        continue
      if op.op == "run_max":
        x = values[op.args[0]]
        lowest = self.domain.lowest().reshape(-1, *[1] * len(x.axes))
        start = NamedArray(np.broadcast_to(lowest, x.data.shape), x.axes)
        before.setdefault(index, self._round(op, start))
        new = named.elementwise(self.domain, "max", before[index], x)
        values[index] = running[index] = self._round(op, new)
      elif op.op == "prev":
        values[index] = before[op.args[0]]
      else:
        values[index] = self._value(op, values, block, rank, step)
    return values

  def _accumulate(self, values, sums):
    for index, op in enumerate(self.kernel.ops):
      if op.op not in ACCUMULATORS:
        continue
      new = values[op.args[0]]
      if op.op == "acc_scaled":
        old = sums.get(index) or self._empty(op, new)
        scaled = named.elementwise(self.domain, "mul", old, values[op.args[1]])
        new = named.elementwise(self.domain, "add", scaled, new)
      elif index in sums:
        fold = "max" if op.op == "acc_max" else "add"
        new = named.elementwise(self.domain, fold, sums[index], new)
      sums[index] = self._round(op, new)

  def _clear(self, sums):
    for index, v in sums.items():
      sums[index] = self._empty(self.kernel.ops[index], v)

  def _empty(self, op, like):
    """What no iteration accumulates to: a reduction over no elements."""
    empty = np.empty((*like.data.shape, 0), dtype=like.data.dtype)
    kind = "rmax" if op.op == "acc_max" else "sum"
    return named.reduce_(self.domain, kind, ("none",), NamedArray(empty, (*like.axes, "none")))

  def _value(self, op, values, block, rank, step):
    args = [values[a] for a in op.args]
    match op.op:
      case "load":
        result = self._load(op, block, rank, step)
      case "const":
        assert op.value is not None
        result = NamedArray(self.domain.constant(op.value), ())
      case "extent":
        sizes = {a: self.extents[a] for a in op.reduced}
        result = NamedArray(self.domain.extent(sizes), ())
      case "cast":
        result = args[0]
      case "powr":
        result = named.power(self.domain, args[0], op.value)
      case "matmul":
        result = named.matmul(self.domain, args[0], args[1], op.reduced[0])
      case "sum" | "rmax":
        result = named.reduce_(self.domain, op.op, op.reduced, args[0])
      case _:
        result = named.elementwise(self.domain, op.op, *args)
    return self._round(op, result)

  def _load(self, op, block, rank, step):
    source = self.env[op.tensor]
    ranges = []
    for axis in source.axes:
      part = self._range(axis, block, op.imap)
      if op.cmap == axis:
        part = self._piece(part, rank)
      ranges.append(step if op.fmap == axis else part)
    cut = tuple(slice(*r) for r in ranges)
    return NamedArray(source.data[(slice(None), *cut)], source.axes)

  def _round(self, op, x):
    return NamedArray(self.domain.round(x.data, op.dtype), x.axes)
