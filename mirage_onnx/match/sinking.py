"""Steps without slices and concatenations: slices sink to the inputs, concatenations rise.

What is wanted are the outputs, cut where parts of a concatenation meet. A box of a tensor is
computed from boxes of what its step reads: a slice moves the box, a concatenation has it in one of
its parts, and at an input it is a view (``views.py``). Where a contraction or a reduction runs over
several parts it is the sum (the maximum) of those of the parts, in a type so wide that this rounds
nothing.

Every virtual tensor stands for itself from then on. That two may overlap in memory changes nothing:
what holds for all values of independent arrays holds for those that share elements.
"""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Constant, DType, Program, Step
from mirage_onnx.match.boxes import (
  Box,
  cells,
  extents,
  moved,
  put,
  refined,
  reshaped,
  whole,
)
from mirage_onnx.match.partitions import Partitions, matmul_depth, matmul_dims
from mirage_onnx.match.quotients import defined
from mirage_onnx.match.views import Viewed, Views

#: Most parts that one output is computed in.
PARTS = 8
#: Most equal parts of what is reduced that are loaded apart, because they are also sliced.
FOLDED = 4
SLICING = ("slice", "concat", "gather", "stored")


def viewed(program: Program, steps: list[Step], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Viewed:
  """``steps`` of a region with these inputs and outputs, without slices and concatenations.

  Raises:
      RejectionError: AXES_CONFLICT where a box is no view, or OP_FORM.
  """
  tensors = {x: program.tensors[x] for x in (*inputs, *outputs)}
  finite = {x for x in inputs if (kind := tensors[x].dtype) and not kind.is_float} | {*program.constants}
  steps = defined(steps, outputs, finite)
  if not any(s.op in SLICING for s in steps):
    return Viewed(steps, {x: tensors[x] for x in inputs}, {x: tensors[x] for x in outputs})
  place = {s.output.name: i for i, s in enumerate(steps)}
  made = _Sinking(program, {s.output.name: s for s in steps})
  for x in sorted(outputs, key=place.__getitem__):
    made.output(x)
  read = {made.found.source(x).name for x in made.found.inputs} | {*made.found.picks}
  if unread := [x for x in inputs if x not in read and x not in program.constants]:
    # Of an operator with several outputs, of which some are wanted, the body reads all that it is given.
    several = {i for n in program.nodes if len(n.outputs) > 1 for i in n.operands}
    made.found.inputs.update({x: tensors[x] for x in unread if x in several})
  if unread := [x for x in unread if x not in made.found.inputs]:
    reason = f"nothing that is wanted of it is made of {unread[0]}"
    raise RejectionError("OP_FORM", reason, (unread[0],))
  return made.found


class _Sinking:
  """Emits the steps of what is wanted; a value is asked for by its tensor and box."""

  def __init__(self, program: Program, makers: Mapping[str, Step]) -> None:
    self.program, self.makers = program, makers
    self.found = Viewed()
    self.views = Views(program, makers, self.found)
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
      tensor, view = self.views.view(source, box)
      if any(len(d) > 1 for d in box):
        tensor = replace(tensor, name=self.views.free(tensor.name + "'"))
        self.found.emit("reshape", (value,), tensor.name, _split_shape(box), source.dtype)
      elif value != tensor.name:  # it is a box of another tensor
        self.found.emit("cast", (value,), tensor.name, _split_shape(box), source.dtype)
      self.found.outputs[tensor.name] = tensor
      if view:
        self.found.views[tensor.name] = view

  def want(self, name: str, box: Box) -> str:
    """The value of a box, whose dimensions are as many as the tensor's."""
    key = (name, box)
    if key not in self._made:
      step = self.makers.get(name)
      self._made[key] = self._step(step, box) if step else self.views.input(name, box)
    return self._made[key]

  def _step(self, step: Step, box: Box) -> str:
    """A box of what a step computes."""
    read = [i for i in step.inputs if isinstance(i, str)]
    attr = step.attr if isinstance(step.attr, tuple) else ()
    name, dtype = self.views.name(step.output.name, box), step.output.dtype
    match step.op:
      case "slice":
        axis, start, _ = attr
        return self._moved(read[0], box, axis, start)
      case "gather":
        return self.views.picked(read[0], read[1], box)
      case "stored":
        return self.views.stored(step, box)
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
        return self.found.emit(step.op, args, name, extents(box), dtype, step.attr)
    return self.found.emit(step.op, (self.want(read[0], own),), name, extents(box), dtype, step.attr)

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
      return self.found.emit(step.op, (value,), name, extents(box), step.output.dtype, step.attr)
    op = "sum" if step.op == "mean" else step.op
    values = [self.want(x, b) for b in boxes]
    if folded:  # as many elements in each: one reduction of their sums
      join, wide = _join(step)
      total = values[0]
      for k, value in enumerate(values[1:]):
        more = (total, value), self.views.free(f"{name}#{k}+")
        total = self.found.emit(join, *more, extents(boxes[0]), wide)
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
      return self.found.emit("matmul", parts[0], name, extents(box), step.output.dtype)
    return self._joined(step, name, box, parts, 1)

  def _joined(self, step: Step, name: str, box: Box, parts: list[tuple[str, ...]], count: int) -> str:
    """Of what is reduced in parts; ``count``: divided by it."""
    dtype, shape = step.output.dtype, extents(box)
    join, wide = _join(step)
    attr = step.attr if step.op != "matmul" else None
    total = ""
    for k, args in enumerate(parts):
      part = self.found.emit(step.op, args, self.views.free(f"{name}#{k}"), shape, wide, attr)
      more = (total, part), self.views.free(f"{name}#0-{k}")
      total = self.found.emit(join, *more, shape, wide) if total else part
    if count > 1:
      by = Constant(Fraction(count))
      total = self.found.emit("div", (total, by), self.views.free(f"{name}#mean"), shape, wide)
    return self.found.emit("cast", (total,), name, shape, dtype)


def _join(step: Step) -> tuple[str, DType | None]:
  """The function that makes one of two parts of a reduction, and its type."""
  dtype = step.output.dtype
  if step.op == "rmax":
    return "max", dtype
  return "add", DType.F32 if dtype and dtype.is_half else DType.F64


def _split_shape(box: Box) -> tuple[int, ...]:
  return tuple(f.size for d in box for f in d)
