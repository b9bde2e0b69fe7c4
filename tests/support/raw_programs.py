"""Two spellings of a formula: a region's terms, and a µGraph that computes exactly what is written.

``x - top(x)`` builds a tree without any normal form. Inputs: x, y over rows i and columns j, c over
i, w over j.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mirage_onnx.ir import (
  BlockOp,
  DType,
  Kernel,
  KTensor,
  Layout,
  Phase,
  Region,
  RegionTensor,
  Save,
  Tensor,
  UGraph,
  functions,
  term,
)

EXTENTS = {"i": 16, "j": 64}
INPUTS = {"x": ("i", "j"), "y": ("i", "j"), "c": ("i",), "w": ("j",)}


@dataclass(frozen=True)
class Raw:
  op: str
  args: tuple[Raw, ...] = ()
  attr: object = None
  axes: tuple[str, ...] = ()

  def __repr__(self):
    attr = ",".join(self.attr) if isinstance(self.attr, tuple) else self.attr
    inner = ", ".join(map(repr, self.args))
    return f"{self.op}[{attr}]({inner})" if attr is not None else f"{self.op}({inner})"

  def __add__(self, other):
    return call("add", self, lift(other))

  def __radd__(self, other):
    return lift(other) + self

  def __sub__(self, other):
    return call("sub", self, lift(other))

  def __mul__(self, other):
    return call("mul", self, lift(other))

  def __rmul__(self, other):
    return lift(other) * self

  def __truediv__(self, other):
    return call("div", self, lift(other))

  def __rtruediv__(self, other):
    return lift(other) / self

  def __neg__(self):
    return call("neg", self)

  def __pow__(self, exponent):
    return Raw("powr", (self,), Fraction(exponent), self.axes)


def lift(value):
  if isinstance(value, Raw):
    return value
  return Raw("const", attr=value if isinstance(value, str) else Fraction(value))


def call(op, *args):
  return Raw(op, args, axes=tuple(sorted({a for x in args for a in x.axes})))


def total(x, axis="j"):
  return Raw("sum", (x,), (axis,), tuple(a for a in x.axes if a != axis))


def top(x, axis="j"):
  return Raw("rmax", (x,), (axis,), tuple(a for a in x.axes if a != axis))


def size(axis="j"):
  return Raw("extent", attr=(axis,))


def exp(x):
  return call("exp", x)


def log(x):
  return call("log", x)


def sqrt(x):
  return call("sqrt", x)


X, Y, C, W = (Raw("input", attr=name, axes=axes) for name, axes in INPUTS.items())


def to_term(x):
  args = [to_term(a) for a in x.args]
  match x.op, x.attr:
    case "input", str(name):
      return term.input_(name, x.axes)
    case "const", Fraction() | str() as value:
      return term.const(value)
    case "extent", tuple(axes):
      return term.extent(axes)
    case "powr", Fraction() as e:
      return term.power(args[0], e)
    case ("sum" | "rmax") as op, tuple(axes):
      return term.reduce_(op, axes, args[0])
  return functions.to_term(x.op, *args)


def region_of(x):
  inputs = tuple(_tensor(n, a) for n, a in INPUTS.items())
  outputs = (_tensor("o", x.axes),)
  return Region(("node",), (), {}, inputs, outputs, (to_term(x),), EXTENTS)


def _tensor(name, axes):
  shape = tuple(EXTENTS[a] for a in axes)
  return RegionTensor(name, DType.F32, axes, Tensor(f"onnx_{name}", DType.F32, shape))


def graph_of(x):
  """One kernel, a block per tile of the first axis of the output; a load per use of an input.

  Where that axis is reduced over, there is one block.
  """
  grid = tuple(a for a in x.axes[:1] if a not in _reduced(x))
  values = []

  def visit(node):
    args = tuple(visit(a) for a in node.args)
    fields = {}
    op = node.op
    if op == "input":
      cut = tuple(a if a in node.axes else None for a in grid)
      op, fields = "load", {"tensor": node.attr, "imap": cut}
    elif op in ("const", "powr"):
      fields = {"value": node.attr}
    elif op in ("extent", "sum", "rmax"):
      fields = {"reduced": node.attr}
    made = BlockOp(op, args, node.axes, DType.F32, Phase.POST, Layout.ELEMENT, **fields)
    values.append(made)
    return len(values) - 1

  save = Save("o", visit(x), grid)
  read = {o.tensor for o in values if o.op == "load"}
  tensors = [KTensor(n, DType.F32, a, "input") for n, a in INPUTS.items() if n in read]
  tensors.append(KTensor("o", DType.F32, x.axes, "output"))
  return UGraph(tuple(tensors), (Kernel("k0", grid, None, None, tuple(values), (save,)),))


def _reduced(x):
  own = set(x.attr) if x.op in ("sum", "rmax") else set()
  return own.union(*map(_reduced, x.args))
