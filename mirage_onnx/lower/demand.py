"""Values as steps need them: what there is so far, and the steps that bring it where it is needed.

A value is in registers in forms, in a shared tile, or nowhere: then it is made where it is used.
"""

from dataclasses import dataclass, field
from math import prod

from mirage_onnx.ir import DType, Phase
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import Held, ThreadStep

#: Registers of a lane up to which a packed operand stays through the loop.
MOST_RESIDENT = 64


@dataclass(slots=True)
class Demand(Lowered):
  """Steps in the making, in three runs."""

  before: list[ThreadStep] = field(default_factory=list)
  body: list[ThreadStep] = field(default_factory=list)
  after: list[ThreadStep] = field(default_factory=list)

  def run_of(self, index: int) -> str:
    """The run that value ``index`` is made in."""
    if self.varies[index]:
      return "body"
    loop = self.ops[index].phase is Phase.LOOP
    return "before" if loop and self.kernel.loop is not None else "after"

  def steps(self, run: str) -> list[ThreadStep]:
    """The run of that name."""
    return {"before": self.before, "body": self.body, "after": self.after}[run]

  def need(self, index: int, form: Form, run: str) -> tuple[str, ...]:
    """Value ``index`` in this form for a step of this run; the tiles that the step reads."""
    op = self.ops[index]
    if constant(op, self.extents) is not None:
      return ()
    if self.in_place(index, form):
      if op.op == "load":
        return (self.homes[index],) if index in self.homes else ()
      touched = [t for a in op.args for t in self.need(a, form.of(self.own(a).values()), run)]
      return tuple(dict.fromkeys(touched))
    held = Held(index, form)
    if self.made.get(held) in (run, "before"):
      return ()
    own_run = self.run_of(index)
    if op.op == "load":
      self.steps(own_run).append(do.Fetch(index, held))
    else:
      tile = self.spill(index, run)
      self.steps(own_run).append(do.Read(index, tile, held))
    self.made[held] = own_run
    return ()

  def operand(self, index: int, form: Form, run: str) -> tuple[str, ...]:
    """Value ``index`` as an operand of a contraction.

    One that the loop does not change is packed before it, if that takes few registers.
    """
    held = Held(index, form, packed=True)
    if self.made.get(held) in (run, "before"):
      return ()
    own_run = self.run_of(index)
    small = self.warps.registers(form) // 2 <= MOST_RESIDENT
    if own_run == "before" and run == "body" and small:
      touched = self._operand(index, form, own_run)
      self.before.append(do.Pack(index, held, touched=touched))
      self.made[held] = own_run
      return ()
    return self._operand(index, form, run)

  def _operand(self, index: int, form: Form, run: str) -> tuple[str, ...]:
    op = self.ops[index]
    if op.op == "load" or self.forms[index] == form:
      return self.need(index, form, run)
    return (self.spill(index, run),)

  def spill(self, index: int, run: str) -> str:
    """The shared tile that holds value ``index``."""
    if index in self.homes:
      return self.homes[index]
    if index not in self.spilled:
      op = self.ops[index]
      form = self.forms[index] if index in self.forms else self.form_of_load(index)
      touched = self.need(index, form, run)
      name = self.spilled[index] = f"s{index}"
      dtype = op.dtype if op.dtype.is_half else DType.F32
      self.tiles[name] = SharedTile(name, dtype, form.rest + form.g + form.t)
      own = self.run_of(index)
      self.steps(own).append(do.Spill(index, name, Held(index, form), touched=touched))
    return self.spilled[index]

  def exchange(self, name: str, form: Form) -> None:
    """A tile with a slot per register of a form and thread."""
    slots = prod(self.warps.shape(form)) * self.warps.slots * self.warps.total
    self.tiles[name] = SharedTile(name, DType.F32, (), slots=slots)
