"""Regions of programs that repeat themselves: equal cones are named and ordered once.

Layers of a model differ in the names of their tensors. Cones whose nodes, in order, do the same
with tensors of the same kind have the same *form*; the region of the first is made
(``canonical.py``), those of the others are copies of it with their own names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mirage_onnx.ir import Constant, Operand, Program, Region, RegionTensor, Step, Tensor
from mirage_onnx.ir.program import is_places
from mirage_onnx.ir.term import walk
from mirage_onnx.match.canonical import make_region
from mirage_onnx.match.sinking import viewed

#: What the nodes of a cone do, over tensors that are numbered in the order of their first use.
Form = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Part:
  """A node: its tensors in the order of their first use, and the number of what it does."""

  names: tuple[str, ...]
  number: int


@dataclass(slots=True)
class _Made:
  """The region of the first cone of a form.

  ``place``: the numbers of its tensors. ``kept``: which of the cone's steps it has, None for each that it
  has made. ``derived``: of those the names, each the name of a tensor of the cone ("" for none) and what is
  behind it; None until a copy asks.
  """

  region: Region
  place: dict[str, int]
  kept: list[int | None]
  derived: list[tuple[str, str, str]] | None = None


class RegionMaker:
  """``make_region`` of one program, which does not do the same work twice.

  ``work``: terms of all regions that were made and not copied.
  """

  def __init__(self, program: Program, sizes: Mapping[str, int] | None = None) -> None:
    self._program, self._sizes = program, sizes
    self.work = 0
    self._numbers: dict[Form, int] = {}
    self._nodes = {n.name: n for n in program.nodes}
    self._order = {n.name: i for i, n in enumerate(program.nodes)}
    self._reads = {n.name: n.operands for n in program.nodes}
    self._parts: dict[str, _Part] = {}
    self._made: dict[Form, _Made] = {}

  def make(self, covered: frozenset[str], yielded: frozenset[str]) -> Region:
    """The canonical region of the nodes ``covered`` that yields these of what they make.

    It reads what they do not make themselves. Nodes, inputs and outputs are in the program's order.

    Raises:
        RejectionError: as ``make_region``.
    """
    nodes = tuple(sorted(covered, key=self._order.__getitem__))
    made = dict.fromkeys(o for n in nodes for o in self._nodes[n].outputs)
    inputs = tuple(dict.fromkeys(i for n in nodes for i in self._reads[n] if i not in made))
    outputs = tuple(o for o in made if o in yielded)
    place: dict[str, int] = {}
    form: list[object] = []
    for name in nodes:
      part = self._part(name)
      form += [part.number, *(place.setdefault(x, len(place)) for x in part.names)]
    ends = ([place.get(x, x) for x in group] for group in (inputs, outputs))
    key = (*form, *map(tuple, ends))
    own = [s for n in nodes for s in self._nodes[n].steps]
    if (first := self._made.get(key)) is None:
      region = make_region(self._program, nodes, inputs, outputs, self._sizes)
      self.work += len(walk(region.terms))
      at = {s: i for i, s in enumerate(own)}
      kept = [at.get(s) for s in region.steps]
      self._made[key] = _Made(region, self._numbered(nodes, region.steps), kept)
      return region
    if None not in first.kept:
      return self._copy(first, nodes, tuple(own[i] for i in first.kept if i is not None))
    steps = self._renamed(first, own)
    if steps is None:
      live = tuple(i for i in inputs if i not in self._program.constants)
      steps = tuple(viewed(self._program, own, live, outputs).steps)
    return self._copy(first, nodes, steps)

  def _renamed(self, first: _Made, own: list[Step]) -> tuple[Step, ...] | None:
    """The steps of a copy of ``first`` that computes parts of tensors: their names are new ones.

    Each is the name of a tensor of the cone and what says which part (``views.py``). ``own``: the steps of
    the copy's nodes. None where it is no such name, or somebody else has it.
    """
    theirs = [s for n in first.region.nodes for s in self._nodes[n].steps]
    same: dict[Operand, Operand] = {}
    for s, mine in zip(theirs, own, strict=True):
      for x, y in zip((*s.inputs, s.output.name), (*mine.inputs, mine.output.name), strict=True):
        if same.setdefault(x, y) != y:
          return None
    if first.derived is None:
      first.derived = _derived(first.place, same)
    taken = {*same.values()}
    for x, base, more in first.derived:
      name = f"{same[base]}{more}" if base else ""
      if not base or name in taken or name in self._program.tensors:
        return None
      taken.add(name)
      same[x] = name
    return tuple(
      Step(
        s.op,
        tuple([same.get(i, i) for i in s.inputs]),
        Tensor(str(same[s.output.name]), s.output.dtype, s.output.shape),
        s.attr,
      )
      for s in first.region.steps
    )

  def _numbered(self, nodes: tuple[str, ...], steps: tuple[Step, ...]) -> dict[str, int]:
    """The numbers of a region's tensors and of those of the model: its form decides them."""
    own = (x for n in nodes for x in self._part(n).names)
    read = (i for s in steps for i in s.inputs if isinstance(i, str))
    order = dict.fromkeys((*own, *read, *(s.output.name for s in steps)))
    return {x: i for i, x in enumerate(order)}

  def _part(self, name: str) -> _Part:
    if name not in self._parts:
      node = self._nodes[name]
      place: dict[str, int] = {}
      form: list[object] = []
      for s in node.steps:
        read = [place.setdefault(x, len(place)) if isinstance(x, str) else _value(x) for x in s.inputs]
        out = place.setdefault(s.output.name, len(place))
        form.append((s.op, s.attr, *read, out, s.output.dtype, s.output.shape))
      key = (*form, *map(self._kind, place))
      self._parts[name] = _Part(tuple(place), self._numbers.setdefault(key, len(self._numbers)))
    return self._parts[name]

  def _kind(self, name: str) -> Form:
    """What ``make_region`` can know of a tensor besides its name."""
    program = self._program
    tensor, constant = program.tensors.get(name), program.constants.get(name)
    shown = (tensor.dtype, tensor.shape) if tensor else None
    known = constant and _value(constant), program.bands.get(name), is_places(name)
    return shown, name in program.weights, *known

  def _copy(self, made: _Made, nodes: tuple[str, ...], steps: tuple[Step, ...]) -> Region:
    """The region of a form with these names instead of the first ones."""
    first, place = made.region, made.place
    constants, names = self._program.constants, tuple(self._numbered(nodes, steps))

    def own(name: str) -> str:
      return names[place[name]]

    def renamed(x: RegionTensor) -> RegionTensor:  # of thousands: replace() takes three times as long
      view, tensor = x.view, x.tensor
      if view:
        source = Tensor(own(view.source.name), view.source.dtype, view.source.shape)
        view = replace(view, source=source, picks=own(view.picks) if view.picks else "")
      tensor = Tensor(own(tensor.name), tensor.dtype, tensor.shape)
      return RegionTensor(x.name, x.dtype, x.axes, tensor, x.is_weight, x.dims, view, x.picks, x.band)

    copy = replace(
      first,
      nodes=nodes,
      steps=tuple(_named(s, like) for s, like in zip(steps, first.steps, strict=True)),
      constants={own(k): constants[own(k)] for k in first.constants},
      inputs=tuple(map(renamed, first.inputs)),
      picks=tuple(map(renamed, first.picks)),
      outputs=tuple(map(renamed, first.outputs)),
      inner_dims={own(k): v for k, v in first.inner_dims.items()},
    )
    # No tensor of the model is in them; to find them again takes as long as all above.
    vars(copy).update(structure=first.structure, text=first.text, key=first.key)
    return copy


def _derived(place: Iterable[str], same: Iterable[Operand]) -> list[tuple[str, str, str]]:
  """Names of ``place`` that are not in ``same``, each with the longest there that begins it, and the rest."""
  known, found = {x for x in same if isinstance(x, str)}, []
  for x in place:
    if x not in known:
      base = next((x[:n] for n in range(len(x), 0, -1) if x[:n] in known), "")
      found.append((x, base, x.removeprefix(base)))
  return found


def _value(x: Constant) -> Form:
  return x.base, x.exponent


def _named(step: Step, like: Step) -> Step:
  """``step``, over the shapes of ``like``, which may be others where sizes are not known."""
  if like.output.shape == step.output.shape and like.attr == step.attr:
    return step
  return replace(like, inputs=step.inputs, output=replace(like.output, name=step.output.name))
