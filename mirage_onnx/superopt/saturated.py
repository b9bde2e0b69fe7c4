"""A region with all spellings of its outputs, and what of it can be in memory."""

from collections.abc import Iterable
from math import prod

from mirage_onnx.cost.model import PARTS_ASSUMED
from mirage_onnx.ir import DType, KTensor, Region, RegionTensor, in_order
from mirage_onnx.ir.term import INPUT, SUM, walk
from mirage_onnx.superopt.axioms import Axiom, Saturation, saturate
from mirage_onnx.superopt.egraph import COPY, EGraph, ENode, depths, is_part
from mirage_onnx.superopt.readable import contraction_operands, readable_classes
from mirage_onnx.superopt.space import Space


class Saturated:
  """The saturated region: its classes, and their tensors where they are in memory."""

  def __init__(self, region: Region, axioms: tuple[Axiom, ...], space: Space, *, nodes: int) -> None:
    self.region = region
    self.graph = g = EGraph()
    roots = [g.insert_term(t) for t in region.terms]
    rules = tuple(a for a in axioms if a.is_in(space))
    self.saturation: Saturation = saturate(g, rules, max_nodes=nodes)
    self.outputs = self._written([g.find(c) for c in roots])
    #: The values that the region itself computes, and the exponentials among them.
    self.original = frozenset(g.find(g.insert_term(t)) for t in walk(region.terms))
    self.exponentials = frozenset(g.insert_term(t) for t in walk(region.terms) if t.op == "exp")
    self.inputs: dict[int, KTensor] = {}
    for c in g.classes():
      for n in g.nodes(c):
        if n.op == INPUT:
          self.inputs[c] = self._input_tensor(str(n.attr))
    parts = {a: PARTS_ASSUMED for c in g.classes() for a in g.axes(c) if is_part(a)}
    self.extents = {**region.extents, **parts}
    self._contracted = {a for c in g.classes() for n in g.nodes(c) if n.op == SUM for a in n.over}
    self._operands = contraction_operands(g, region.extents, batched=space.general)
    # Last, because operands that no axiom has spelled yet are classes from here on.
    self.depth = depths(g)
    most = self._most_elements()
    self.readable = frozenset(readable_classes(g, self.extents, self._operands, self.outputs, most)) - set(
      self.inputs
    )

  def _written(self, roots: list[int]) -> tuple[int, ...]:
    """The classes of the outputs; one that is another output too is a copy, and a part that is an input."""
    found: list[int] = []
    parts = any(x.windows for x in (*self.region.inputs, *self.region.outputs))
    for c, o in zip(roots, self.region.outputs, strict=True):
      held = c in found or (parts and any(n.op == INPUT for n in self.graph.nodes(c)))
      found.append(self.graph.insert(ENode(COPY, (c,), o.name)) if held else c)
    return tuple(found)

  def _most_elements(self) -> int:
    """Nothing larger is written between kernels: twice the largest activation, or a weight."""
    sizes: dict[str, int] = {"input": 1, "weight": 1, "output": 1}
    tensors = [(t.role, t.axes) for t in self.inputs.values()]
    for role, axes in (*tensors, *(("output", o.axes) for o in self.region.outputs)):
      sizes[role] = max(sizes[role], prod(self.extents[a] for a in axes))
    return max(2 * sizes["input"], 2 * sizes["output"], sizes["weight"])

  def picking(self, tensors: Iterable[KTensor]) -> tuple[KTensor, ...]:
    """What picks rows of ``tensors``."""
    names = {w.picks for t in tensors for w in t.windows}
    return tuple(KTensor(p.name, p.dtype, p.axes, "rows") for p in self.region.picks if p.name in names)

  def _input_tensor(self, name: str) -> KTensor:
    source = next(i for i in self.region.inputs if i.name == name)
    parts = [i for i in self.region.inputs if i.source.name == source.source.name]
    axes = source.axes
    if all(map(self._is_turned, parts)):  # what they are parts of is stored once
      axes = (axes[1], axes[0])
    role = "weight" if source.is_weight else "input"
    return KTensor(name, source.dtype, axes, role, in_order(source.windows, axes), band=source.band)

  def _is_turned(self, i: RegionTensor) -> bool:
    """Whether a weight is better stored along the axis that a contraction runs over."""
    if not i.is_weight or len(i.axes) != 2 or i.splits_dims:
      return False
    widened = i.dtype.is_packed or i.repeat > 1
    return _contracted_axis(self.region, i.name, inside=widened) == i.axes[0]

  def tensor(self, c: int) -> KTensor:
    """The tensor of a class in memory, named after the class.

    An axis that is contracted later comes last.
    """
    g = self.graph
    if c in self.outputs:
      o = self.region.outputs[self.outputs.index(c)]
      return KTensor(o.name, o.dtype, o.axes, "output", o.windows)
    axes = tuple(sorted(g.axes(c), key=lambda a: (a in self._contracted, a)))
    half = {o.dtype for o in self.region.outputs if o.dtype.is_half}
    # What a contraction reads is rounded to 16 bits in any case.
    operand = c in self._operands and len(axes) > 1 and axes[-1] in self._contracted
    dtype = next(iter(sorted(half)), DType.F32) if operand else DType.F32
    return KTensor(f"t{c}", dtype, axes, "temp")


def _contracted_axis(region: Region, name: str, *, inside: bool = False) -> str | None:
  """The axis of input ``name`` that a sum over a product with it (``inside`` an operand) reduces."""
  own = set(next(i for i in region.inputs if i.name == name).axes)
  for t in walk(region.terms):
    if t.op == SUM and any(u.op == INPUT and u.attr == name for u in walk(t.args)):
      hit = own & set(t.attr)  # type: ignore[arg-type]
      direct = t.args[0].args if t.args[0].op == "mul" else t.args
      if hit and (inside or any(u.op == INPUT and u.attr == name for u in direct)):
        return sorted(hit)[0]
  return None
