"""From a saved graph and its reference to a draft: cuts, ties and the shapes that were recorded.

The inputs of the saved graph are those of the reference in the order of ``new_input``, its outputs
those of the reference in the order of ``mark_output``; shapes and element types must be equal.
Every recorded shape is computed again, and a graph that contradicts itself is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mirage_onnx.formats.mirage.draft import Draft, DraftKernel, DraftTensor, invalid, unsupported
from mirage_onnx.formats.mirage.factors import AxisFactors, Dim
from mirage_onnx.formats.mirage.graph import SavedBlock, SavedGraph, SavedOp, SavedTensor, Shape
from mirage_onnx.formats.mirage.ops import BLOCK, COMMON, Rule
from mirage_onnx.ir import DType, Program, Region, RegionTensor

GRID = ("x", "y", "z")


def read_draft(graph: SavedGraph, program: Program, region: Region) -> Draft:
  """The draft of ``graph``, whose interface is that of ``program``; ``region`` is its region.

  Raises:
      RejectionError: SAVED_INVALID or SAVED_UNSUPPORTED.
  """
  factors = AxisFactors()
  axes = {a: factors.new(n) for a, n in region.extents.items()}
  reader = _Reader(program, region, Draft(factors, axes))
  outputs = [op for op in graph.ops if op.op == "output"]
  reader.outputs = {t.guid: i for i, op in enumerate(outputs) for t in op.inputs}
  for what, wanted in (("input", program.inputs), ("output", program.outputs)):
    have = sum(op.op == what for op in graph.ops)
    if have != len(wanted):
      raise invalid(f"the graph has {have} {what}s, the reference {len(wanted)}")
  for op in graph.ops:
    reader.read(op)
  return reader.draft


def tensor_dims(factors: AxisFactors, axes: dict[str, Dim], tensor: RegionTensor) -> tuple[Dim, ...]:
  """The dimensions of a tensor of a region, whose axes may stand for several of them."""
  shape = [int(d) for d in tensor.tensor.shape or ()]
  last = {a: i for i, held in enumerate(tensor.dims) for a in held}
  rest = {a: axes[a] for a in last}
  result: list[Dim] = []
  for i, (size, held) in enumerate(zip(shape, tensor.dims, strict=True)):
    dim: Dim = ()
    for a in held:
      part = rest[a]
      if last[a] != i:  # the last axis of this dimension goes on in the next one
        part, rest[a] = factors.take(rest[a], size // factors.size(dim))
      dim = (*dim, *part)
    result.append(dim)
  return tuple(result)


@dataclass
class _Reader:
  program: Program
  region: Region
  draft: Draft
  outputs: dict[int, int] = field(default_factory=dict)
  #: guid -> name of a device tensor
  names: dict[int, str] = field(default_factory=dict)
  inputs_read: int = 0
  outputs_read: int = 0

  def read(self, op: SavedOp) -> None:
    if op.op == "input":
      self._input(op)
    elif op.op == "output":
      self._output(op)
    elif op.op == "customized":
      assert op.block is not None
      self._custom(op, op.block)
    else:
      self._library(op)

  # -- kernel level

  def _input(self, op: SavedOp) -> None:
    (saved,) = _count(op, 0, 1)
    index, self.inputs_read = self.inputs_read, self.inputs_read + 1
    name = self.program.inputs[index]
    mine = self.program.tensors[name]
    _same_type(f"input {index}", saved, mine.shape, mine.dtype)
    tensor = next((i for i in self.region.inputs if i.tensor.name == name), None)
    if tensor is not None:
      dims = tensor_dims(self.draft.factors, self.draft.axes, tensor)
      self._define(saved, DraftTensor(tensor.name, tensor.dtype, dims, "input"))

  def _output(self, op: SavedOp) -> None:
    (saved,) = _count(op, 1, 0)
    index, self.outputs_read = self.outputs_read, self.outputs_read + 1
    made = self._tensor(saved)
    name = self.program.outputs[index]
    tensor = next(o for o in self.region.outputs if o.tensor.name == name)
    _same_type(f"output {index}", saved, tensor.tensor.shape, tensor.dtype)
    if made.name != tensor.name:
      raise unsupported(f"output {index} is an input, or is another output as well")
    dims = tensor_dims(self.draft.factors, self.draft.axes, tensor)
    for a, b in zip(dims, made.dims, strict=True):
      self.draft.factors.tie(a, b)

  def _library(self, op: SavedOp) -> None:
    """A library operation: a kernel of one block."""
    arity, rule = _rule(COMMON, op)
    (out,) = _count(op, arity, 1)
    kernel = self._kernel()
    args = []
    for saved in op.inputs:
      t = self._tensor(saved)
      args.append(kernel.load(t.name, t.dims, post=True, looped=False))
    result = rule(kernel, tuple(args))
    _same_shape(op, kernel, result, out)
    self._save(kernel, result, out, kernel.values[result].dims)

  def _custom(self, op: SavedOp, block: SavedBlock) -> None:
    kernel = self._kernel()
    new = self.draft.factors.new
    x, y, z = (new(n) for n in block.grid)
    kernel.grid, kernel.loop, kernel.chunk = (x, y, z), new(block.loop), block.chunk
    loads = [o.tensor for o in block.ops if o.op == "input"]
    saves = [o.tensor for o in block.ops if o.op == "output"]
    if _named(loads) != _named(op.inputs) or _named(saves) != _named(op.outputs):
      raise invalid("a block graph reads or writes other tensors than its kernel")
    values: dict[int, int] = {}
    for inner in block.ops:
      if any(o.guid in values for o in inner.outputs):
        raise invalid(f"{inner.op} defines a block tensor for the second time")
      if inner.op == "input":
        (out,) = _count(inner, 0, 1)
        values[out.guid] = self._load(kernel, block, inner)
      elif inner.op == "output":
        _count(inner, 1, 0)
        self._store(kernel, block, inner, _value(values, kernel, inner.inputs[0]))
      else:
        arity, rule = _rule(BLOCK, inner)
        (out,) = _count(inner, arity, 1)
        args = tuple(_value(values, kernel, i) for i in inner.inputs)
        values[out.guid] = rule(kernel, args)
      for made in inner.outputs:
        _same_shape(inner, kernel, values[made.guid], made)
        if kernel.values[values[made.guid]].post != made.post:
          raise invalid(f"{inner.op} is recorded on the wrong side of the loop's end")

  # -- block level

  def _load(self, kernel: DraftKernel, block: SavedBlock, op: SavedOp) -> int:
    assert op.tensor is not None
    tensor = self._tensor(op.tensor)
    dims = list(tensor.dims)
    for g in _cut(block, op):
      outer, dims[op.maps[g]] = kernel.factors.take(dims[op.maps[g]], block.grid[g])
      kernel.factors.tie(outer, kernel.grid[g])
    looped = op.loop_dim >= 0 and block.loop > 1
    if looped:
      outer, dims[op.loop_dim] = kernel.factors.take(dims[op.loop_dim], block.loop)
      kernel.factors.tie(outer, kernel.loop)
    return kernel.load(tensor.name, tuple(dims), post=False, looped=looped)

  def _store(self, kernel: DraftKernel, block: SavedBlock, op: SavedOp, value: int) -> None:
    assert op.tensor is not None
    v = kernel.values[value]
    if not v.post:
      raise invalid("a value of the loop is stored before an accumulator")
    dims = list(v.dims)
    cut = _cut(block, op)
    for g, blocks in enumerate(block.grid):
      if blocks > 1 and g not in cut:
        raise invalid(f"the {blocks} blocks of grid {GRID[g]} all write one part")
    for g in cut:
      if op.maps[g] >= len(dims):
        raise invalid(f"an output map names dimension {op.maps[g]} of {len(dims)}")
      dims[op.maps[g]] = (*kernel.grid[g], *dims[op.maps[g]])
    shape = tuple(map(kernel.factors.size, dims))
    if shape != op.tensor.shape:
      raise invalid(f"the blocks write {shape}, recorded is {op.tensor.shape}")
    self._save(kernel, value, op.tensor, tuple(dims))

  # -- helpers

  def _kernel(self) -> DraftKernel:
    kernel = DraftKernel(f"k{len(self.draft.kernels)}", self.draft.factors)
    self.draft.kernels.append(kernel)
    return kernel

  def _save(self, kernel: DraftKernel, value: int, out: SavedTensor, dims: tuple[Dim, ...]) -> None:
    index = self.outputs.get(out.guid)
    if index is not None:
      want = self.program.outputs[index]
      name = next(o.name for o in self.region.outputs if o.tensor.name == want)
      role = "output"
    else:
      name, role = f"t{len(self.names)}", "temp"
    self._define(out, DraftTensor(name, out.dtype, dims, role))
    kernel.saves.append((name, value))

  def _define(self, saved: SavedTensor, tensor: DraftTensor) -> None:
    if saved.guid in self.names:
      raise invalid(f"tensor {saved.guid} is defined twice")
    self.names[saved.guid] = tensor.name
    self.draft.tensors[tensor.name] = tensor

  def _tensor(self, saved: SavedTensor) -> DraftTensor:
    if saved.guid not in self.names:
      raise invalid(f"tensor {saved.guid} is read before it is defined, or not an input")
    tensor = self.draft.tensors[self.names[saved.guid]]
    shape = tuple(map(self.draft.factors.size, tensor.dims))
    _same_type(f"tensor {saved.guid}", saved, shape, tensor.dtype)
    return tensor


def _named(tensors: Sequence[SavedTensor | None]) -> list[tuple[int, Shape, str]]:
  return sorted((t.guid, t.shape, t.dtype) for t in tensors if t is not None)


def _cut(block: SavedBlock, op: SavedOp) -> list[int]:
  """The grid dimensions of more than one block that the maps send to a dimension."""
  cut = [g for g in range(len(GRID)) if block.grid[g] > 1 and op.maps[g] >= 0]
  if len({op.maps[g] for g in cut}) != len(cut):
    raise unsupported("two grid dimensions are mapped to one dimension of a tensor")
  return cut


def _rule(table: dict[str, tuple[int, Rule]], op: SavedOp) -> tuple[int, Rule]:
  if op.op not in table:
    raise unsupported(f"there is no rule for the operator {op.op}")
  return table[op.op]


def _count(op: SavedOp, inputs: int, outputs: int) -> tuple[SavedTensor, ...]:
  if (len(op.inputs), len(op.outputs)) != (inputs, outputs):
    raise invalid(f"{op.op} has {len(op.inputs)} inputs and {len(op.outputs)} outputs")
  return op.outputs or op.inputs


def _value(values: dict[int, int], kernel: DraftKernel, saved: SavedTensor) -> int:
  if saved.guid not in values:
    raise invalid(f"block tensor {saved.guid} is read before it is defined")
  index = values[saved.guid]
  shape = tuple(map(kernel.factors.size, kernel.values[index].dims))
  if shape != saved.shape or kernel.values[index].post != saved.post:
    raise invalid(f"block tensor {saved.guid} is {shape}, its reader says {saved.shape}")
  return index


def _same_shape(op: SavedOp, kernel: DraftKernel, value: int, out: SavedTensor) -> None:
  shape = tuple(map(kernel.factors.size, kernel.values[value].dims))
  if shape != out.shape:
    raise invalid(f"{op.op} gives {shape}, recorded is {out.shape}")


def _same_type(what: str, saved: SavedTensor, shape: Sequence[int | str] | None, dtype: DType | None) -> None:
  if saved.shape != tuple(shape or ()) or saved.dtype is not dtype:
    mine = f"{tuple(shape or ())} of {dtype}"
    raise invalid(f"{what} is {saved.shape} of {saved.dtype}, not {mine}")
