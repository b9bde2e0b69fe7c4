"""Steps without slices and concatenations: slices sink to the inputs, concatenations rise.

Rows that a run picks of a table are a view too, whose first dimension is where the run says.

What is wanted are the outputs, cut where parts of a concatenation meet. A box of a tensor is
computed from boxes of what its step reads: a slice moves the box, a concatenation has it in one of
its parts, and at an input it is a ``View``. Where a contraction or a reduction runs over several
parts it is the sum (the maximum) of those of the parts, in a type so wide that this rounds nothing.

Every virtual tensor stands for itself from then on. That two may overlap in memory changes nothing:
what holds for all values of independent arrays holds for those that share elements.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Constant, DType, Operand, Program, Step, Tensor, View
from mirage_onnx.ir.program import Dim as Extent
from mirage_onnx.match.boxes import (
  Box,
  cells,
  extents,
  is_whole,
  moved,
  put,
  refined,
  reshaped,
  whole,
)
from mirage_onnx.match.partitions import Partitions, matmul_depth, matmul_dims

#: Most parts that one output is computed in.
PARTS = 8
#: Most equal parts of what is reduced that are loaded apart, because they are also sliced.
FOLDED = 4
SLICING = ("slice", "concat", "gather")


@dataclass(slots=True)
class Viewed:
  """Steps of a region, the tensors that they read and yield, and what picks rows of them, by name."""

  steps: list[Step] = field(default_factory=list)
  inputs: dict[str, Tensor] = field(default_factory=dict)
  outputs: dict[str, Tensor] = field(default_factory=dict)
  picks: dict[str, Tensor] = field(default_factory=dict)
  views: dict[str, View] = field(default_factory=dict)

  def tensor(self, name: str) -> Tensor:
    return self.inputs.get(name) or self.outputs[name]

  def source(self, name: str) -> Tensor:
    """The tensor of the model that holds the elements."""
    return self.views[name].source if name in self.views else self.tensor(name)


def viewed(program: Program, steps: list[Step], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Viewed:
  """``steps`` of a region with these inputs and outputs, without slices and concatenations.

  Raises:
      RejectionError: AXES_CONFLICT where a box is no view, or OP_FORM.
  """
  tensors = {x: program.tensors[x] for x in (*inputs, *outputs)}
  if not any(s.op in SLICING for s in steps):
    return Viewed(steps, {x: tensors[x] for x in inputs}, {x: tensors[x] for x in outputs})
  place = {s.output.name: i for i, s in enumerate(steps)}
  made = _Sinking(program, {s.output.name: s for s in steps})
  for x in sorted(outputs, key=place.__getitem__):
    made.output(x)
  read = {made.found.source(x).name for x in made.found.inputs} | {*made.found.picks}
  if unread := [x for x in inputs if x not in read and x not in program.constants]:
    reason = f"nothing that is wanted of it is made of {unread[0]}"
    raise RejectionError("OP_FORM", reason, (unread[0],))
  return made.found


class _Sinking:
  """Emits the steps of what is wanted; a value is asked for by its tensor and box."""

  def __init__(self, program: Program, makers: Mapping[str, Step]) -> None:
    self.program, self.makers = program, makers
    self.found = Viewed()
    self.partitions = Partitions(program, makers)
    self.shape = self.partitions.shape
    self._made: dict[tuple[str, Box], str] = {}

  def output(self, name: str) -> None:
    """Compute an output, in the parts that it has."""
    parts = self.partitions.boxes(name)
    if len(parts) > PARTS:
      reason = f"{name} is concatenated of {len(parts)} parts, more than {PARTS}"
      raise RejectionError("OP_FORM", reason, (name,))
    source = self.program.tensors[name]
    for box in parts:
      value = self.want(name, box)
      tensor, view = self._view(source, box)
      if any(len(d) > 1 for d in box):
        tensor = replace(tensor, name=self._free(tensor.name + "'"))
        self._emit("reshape", (value,), tensor.name, _split_shape(box), source.dtype)
      elif value != tensor.name:  # it is a box of another tensor
        self._emit("cast", (value,), tensor.name, _split_shape(box), source.dtype)
      self.found.outputs[tensor.name] = tensor
      if view:
        self.found.views[tensor.name] = view

  def want(self, name: str, box: Box) -> str:
    """The value of a box, whose dimensions are as many as the tensor's."""
    key = (name, box)
    if key not in self._made:
      step = self.makers.get(name)
      self._made[key] = self._step(step, box) if step else self._input(name, box)
    return self._made[key]

  def _input(self, name: str, box: Box) -> str:
    if name in self.program.constants:
      return name
    tensor, view = self._view(self.program.tensors[name], box)
    if view is None:
      self.found.inputs[tensor.name] = tensor
      return name
    return self._viewed(tensor, view, box)

  def _picked(self, table: str, rows: str, box: Box) -> str:
    """A box of the rows that ``rows`` names of ``table``, both tensors of the model.

    Raises:
        RejectionError: OP_FORM.
    """
    while (maker := self.makers.get(rows)) and maker.op == "reshape":
      rows = str(maker.inputs[0])  # the same numbers, in order
    source, by = self.program.tensors[table], self.program.tensors[rows]
    if made := [x for x in (table, rows) if x in self.makers]:
      raise RejectionError("OP_FORM", f"picks rows where {made[0]} is computed", (made[0],))
    if not is_whole(box[0]) or len(box[0]) > 1:
      raise RejectionError("OP_FORM", f"takes a part of the rows that {rows} names", (rows,))
    tensor, view = self._view(source, (whole(self.shape(table)[0]), *box[1:]))
    shape = (self._count(by), *(tensor.shape or ())[1:])
    name = self._free(f"{tensor.name}[{rows}]")
    starts, fulls = (view.starts, view.fulls) if view else ((0,) * len(shape), source.shape or ())
    self.found.picks[rows] = by
    return self._viewed(replace(tensor, name=name, shape=shape), View(source, starts, fulls, rows), box)

  def _count(self, rows: Tensor) -> Extent:
    """How many rows it names: a number, or the name of one that a run counts."""
    counts = [n for n in rows.shape or () if n != 1]
    if len(counts) < 2:
      return counts[0] if counts else 1
    number = prod(self.program.shape(rows) or ())
    if not self.program.is_symbolic(number):
      return number
    return next(name for name, n in self.program.symbols.items() if n == number)

  def _viewed(self, tensor: Tensor, view: View, box: Box) -> str:
    """The value of a view, whose dimensions are the factors of ``box``."""
    self.found.inputs[tensor.name] = tensor
    self.found.views[tensor.name] = view
    if all(len(d) == 1 for d in box):
      return tensor.name
    name = self._free(tensor.name + "'")
    return self._emit("reshape", (tensor.name,), name, extents(box), tensor.dtype)

  def _view(self, source: Tensor, box: Box) -> tuple[Tensor, View | None]:
    """A box of a tensor of the model; its dimensions are the factors."""
    if all(map(is_whole, box)):
      return source, None
    given = source.shape or ()
    sizes: list[list[Extent]] = [[f.size for f in d] for d in box]
    fulls: list[list[Extent]] = [[f.full for f in d] for d in box]
    for d, n in enumerate(given):
      if not isinstance(n, str):
        continue
      if not is_whole(box[d]) or len(box[d]) > 1:
        reason = f"slices or concatenates dimension {d} of {source.name}, counted in a run"
        raise RejectionError("DYNAMIC_DIM", reason, (source.name,))
      sizes[d] = fulls[d] = [n]
    starts = tuple(f.bounds[0] for d in box for f in d)
    tensor = Tensor(self._name(source.name, box), source.dtype, tuple(chain(*sizes)))
    return tensor, View(source, starts, tuple(chain(*fulls)))

  def _name(self, name: str, box: Box) -> str:
    if all(map(is_whole, box)):
      return name
    dims = (
      "*".join(
        (str(f.full) if f.size == f.full else f"{f.bounds[0]}:{f.bounds[-1]}")
        + (f"/{f.full}" if len(d) > 1 and f.size != f.full else "")
        for f in d
      ) if not is_whole(d) else ":"
      for d in box
    )  # fmt: skip
    return self._free(f"{name}[{','.join(dims)}]")

  def _free(self, name: str) -> str:
    while name in self.program.tensors or name in self.makers:
      name += "_"
    return name

  def _emit(
    self, op: str, inputs: tuple[Operand, ...], name: str, shape: tuple[int, ...],
    dtype: DType | None, attr: object = None,
  ) -> str:  # fmt: skip
    if op in ("reshape", "expand"):
      attr = shape
    elif op == "cast" and attr is None:
      attr = dtype
    self.found.steps.append(Step(op, inputs, Tensor(name, dtype, shape), attr))  # type: ignore[arg-type]
    return name

  def _step(self, step: Step, box: Box) -> str:
    """A box of what a step computes."""
    read = [i for i in step.inputs if isinstance(i, str)]
    attr = step.attr if isinstance(step.attr, tuple) else ()
    name, dtype = self._name(step.output.name, box), step.output.dtype
    match step.op:
      case "slice":
        axis, start, _ = attr
        return self._moved(read[0], box, axis, start)
      case "gather":
        return self._picked(read[0], read[1], box)
      case "concat":
        return self._part(read, box, attr[0])
      case "transpose":
        own: Box = tuple(box[attr.index(i)] for i in range(len(box)))
      case "reshape":
        own = reshaped(box, self.shape(step.output.name), self.shape(read[0]))
      case "sum" | "mean" | "rmax":
        return self._reduce(step, name, box)
      case "matmul":
        return self._matmul(step, name, box)
      case _:
        args = tuple(
          self.want(i, self.partitions.aligned(i, box)) if isinstance(i, str) else i for i in step.inputs
        )
        return self._emit(step.op, args, name, extents(box), dtype, step.attr)
    return self._emit(step.op, (self.want(read[0], own),), name, extents(box), dtype, step.attr)

  def _moved(self, name: str, box: Box, axis: int, by: int) -> str:
    dim = moved(box[axis], self.shape(name)[axis], by)
    if dim is None:
      reason = f"a box of dimension {axis} of {name} does not begin or end at its rows"
      raise RejectionError("AXES_CONFLICT", reason, (name,))
    return self.want(name, put(box, axis, dim))

  def _part(self, read: list[str], box: Box, axis: int) -> str:
    """Of the one part of a concatenation that has the box."""
    dim, offset = box[axis], 0
    inner = prod(f.full for f in dim[1:])
    for name in read:
      size = self.shape(name)[axis]
      bounds = dim[0].bounds
      if offset <= bounds[0] * inner and bounds[-1] * inner <= offset + size:
        return self._moved(name, box, axis, -offset)
      offset += size
    reason = f"a box of dimension {axis} lies across parts of a concatenation"
    raise RejectionError("AXES_CONFLICT", reason, tuple(read))

  def _reduce(self, step: Step, name: str, box: Box) -> str:
    x = str(step.inputs[0])
    assert isinstance(step.attr, tuple)
    over = cells([d for i, d in enumerate(self.partitions.parts(x)) if i in step.attr])
    folded = len(over) == 1
    if folded:
      finer = cells([d for i, d in enumerate(self.partitions.sliced(x)) if i in step.attr])
      if len(finer) <= FOLDED:
        over, folded = finer, len({extents(c) for c in finer}) == 1
    boxes = []
    for cell in over:
      rest = iter(cell)
      boxes.append(tuple(next(rest) if i in step.attr else d for i, d in enumerate(box)))
    if len(boxes) == 1:
      value = self.want(x, boxes[0])
      return self._emit(step.op, (value,), name, extents(box), step.output.dtype, step.attr)
    op = "sum" if step.op == "mean" else step.op
    values = [self.want(x, b) for b in boxes]
    if folded:  # as many elements in each: one reduction of their sums
      join, wide = _join(step)
      total = values[0]
      for k, value in enumerate(values[1:]):
        more = (total, value), self._free(f"{name}#{k}+")
        total = self._emit(join, *more, extents(boxes[0]), wide)
      values = [total]
    parts: list[tuple[str, ...]] = [(v,) for v in values]
    count = prod(self.shape(x)[i] for i in step.attr) if step.op == "mean" else 1
    return self._joined(replace(step, op=op), name, box, parts, count)

  def _matmul(self, step: Step, name: str, box: Box) -> str:
    a, b = map(str, step.inputs)
    shapes = self.shape(a), self.shape(b)
    depth = matmul_depth(*map(len, shapes))
    pairs = matmul_dims(*map(len, shapes))
    over = cells([refined(self.partitions.parts(a)[depth[0]], self.partitions.parts(b)[depth[1]])])
    parts = []
    for (cell,) in over:
      own = []
      for k, shape in enumerate(shapes):
        dims = [whole(1)] * len(shape)
        dims[depth[k]] = cell
        for j, pair in enumerate(pairs):
          if (i := pair[k]) is not None and shape[i] > 1:
            dims[i] = box[j]
        own.append(self.want((a, b)[k], tuple(dims)))
      parts.append(tuple(own))
    if len(parts) == 1:
      return self._emit("matmul", parts[0], name, extents(box), step.output.dtype)
    return self._joined(step, name, box, parts, 1)

  def _joined(self, step: Step, name: str, box: Box, parts: list[tuple[str, ...]], count: int) -> str:
    """Of what is reduced in parts; ``count``: divided by it."""
    dtype, shape = step.output.dtype, extents(box)
    join, wide = _join(step)
    attr = step.attr if step.op != "matmul" else None
    total = ""
    for k, args in enumerate(parts):
      part = self._emit(step.op, args, self._free(f"{name}#{k}"), shape, wide, attr)
      more = (total, part), self._free(f"{name}#0-{k}")
      total = self._emit(join, *more, shape, wide) if total else part
    if count > 1:
      by = Constant(Fraction(count))
      total = self._emit("div", (total, by), self._free(f"{name}#mean"), shape, wide)
    return self._emit("cast", (total,), name, shape, dtype)


def _join(step: Step) -> tuple[str, DType | None]:
  """The function that makes one of two parts of a reduction, and its type."""
  dtype = step.output.dtype
  if step.op == "rmax":
    return "max", dtype
  return "add", DType.F32 if dtype and dtype.is_half else DType.F64


def _split_shape(box: Box) -> tuple[int, ...]:
  return tuple(f.size for d in box for f in d)
