"""Boxes of the model's tensors as views, which a region reads or yields.

Rows that a run picks of a table are a view too, whose first dimension is where the run says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import DType, Operand, Program, Step, Tensor, View
from mirage_onnx.ir.program import Dim as Extent
from mirage_onnx.match.boxes import Box, extents, is_whole, whole


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

  def emit(
    self, op: str, inputs: tuple[Operand, ...], name: str, shape: tuple[int, ...],
    dtype: DType | None, attr: object = None,
  ) -> str:  # fmt: skip
    """Add a step; returns the name of what it yields."""
    if op in ("reshape", "expand"):
      attr = shape
    elif op == "cast" and attr is None:
      attr = dtype
    self.steps.append(Step(op, inputs, Tensor(name, dtype, shape), attr))  # type: ignore[arg-type]
    return name


class Views:
  """Makes views of boxes, puts them into ``found`` and names them.

  ``makers``: the steps of the region by what they yield.
  """

  def __init__(self, program: Program, makers: Mapping[str, Step], found: Viewed) -> None:
    self.program, self.makers, self.found = program, makers, found

  def input(self, name: str, box: Box) -> str:
    """A box of an input of the region."""
    if name in self.program.constants:
      return name
    tensor, view = self.view(self.program.tensors[name], box)
    if view is None:
      self.found.inputs[tensor.name] = tensor
      return name
    return self._viewed(tensor, view, box)

  def picked(self, table: str, rows: str, box: Box) -> str:
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
    sizes = self.program.numbers(table) or ()
    tensor, view = self.view(source, (whole(sizes[0]), *box[1:]))
    shape = (self._count(by), *(tensor.shape or ())[1:])
    name = self.free(f"{tensor.name}[{rows}]")
    starts, fulls = (view.starts, view.fulls) if view else ((0,) * len(shape), source.shape or ())
    self.found.picks[rows] = by
    return self._viewed(replace(tensor, name=name, shape=shape), View(source, starts, fulls, rows), box)

  def stored(self, step: Step, box: Box) -> str:
    """A box of a weight that memory holds packed or in blocks (the step ``stored``).

    Raises:
        RejectionError: OP_FORM, it is computed; AXES_CONFLICT, an end of the box is inside a block.
    """
    name, dtype = str(step.inputs[0]), step.output.dtype
    if name in self.makers:
      raise RejectionError("OP_FORM", f"{name}, which has packed weights, is computed", (name,))
    assert isinstance(step.attr, tuple)
    rank = len(step.attr) // 2
    source, fulls, often = self.program.tensors[name], step.attr[:rank], step.attr[rank:]
    starts, sizes, memory, repeats = list[int](), list[Extent](), list[Extent](), list[int]()
    for dim, full, r in zip(box, fulls, often, strict=True):
      if not is_whole(dim) and (r > 1 or prod(f.full for f in dim) != full):
        reason = f"takes a part of a dimension of {name}, which memory holds in blocks"
        raise RejectionError("AXES_CONFLICT", reason, (name,))
      starts += [f.bounds[0] for f in dim]
      sizes += [f.size for f in dim]
      memory += [full] if is_whole(dim) else [f.full for f in dim]
      repeats += [r] * len(dim)
    tensor = Tensor(self.name(f"{name}.{dtype}", box), dtype, tuple(sizes))
    tensor = replace(tensor, name=self.free(tensor.name))
    view = View(source, tuple(starts), tuple(memory), "", tuple(repeats) if max(repeats) > 1 else ())
    if self.found.views.get(tensor.name, view) != view:
      raise RejectionError("OP_FORM", f"{name} is read in blocks of two sizes", (name,))
    return self._viewed(tensor, view, box)

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
    name = self.free(tensor.name + "'")
    return self.found.emit("reshape", (tensor.name,), name, extents(box), tensor.dtype)

  def view(self, source: Tensor, box: Box) -> tuple[Tensor, View | None]:
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
    tensor = Tensor(self.name(source.name, box), source.dtype, tuple(chain(*sizes)))
    return tensor, View(source, starts, tuple(chain(*fulls)))

  def name(self, name: str, box: Box) -> str:
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
    return self.free(f"{name}[{','.join(dims)}]")

  def free(self, name: str) -> str:
    """A name like this one that no tensor has."""
    while name in self.program.tensors or name in self.makers:
      name += "_"
    return name
