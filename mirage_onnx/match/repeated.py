"""Regions of programs that repeat themselves: equal cones are named and ordered once.

Layers of a model differ in the names of their tensors. Cones whose nodes, in order, do the same
with tensors of the same kind have the same *form*; the region of the first is made
(``canonical.py``), those of the others are copies of it with their own names, and are made when
somebody asks: of Qwen3's 10,000 cones a choice knows the key and what they read, and looks at few more.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mirage_onnx.ir import Constant, Operand, Program, Region, RegionTensor, Step, Tensor
from mirage_onnx.ir.program import is_places
from mirage_onnx.ir.term import walk
from mirage_onnx.match.canonical import make_region
from mirage_onnx.match.sinking import viewed
from mirage_onnx.match.ties import Ties

#: What the nodes of a cone do, over tensors that are numbered in the order of their first use.
Form = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Part:
  """A node: its tensors in the order of their first use, and the number of what it does."""

  names: tuple[str, ...]
  number: int


@dataclass(eq=False)
class _Made:
  """The region of the first cone of a form.

  ``place``: the numbers of its tensors. ``ends``: those of what the cone reads, and yields. ``kept``: which
  of the cone's steps it has, None for each that it has made. ``derived``: of those the names, each the
  name of a tensor of the cone ("" for none) and what is behind it; None until a copy asks.
  """

  region: Region
  place: dict[str, int]
  ends: tuple[tuple[int | str, ...], ...]
  kept: list[int | None]
  derived: list[tuple[str, str, str]] | None = None

  @cached_property
  def reads(self) -> tuple[int, ...]:
    """The numbers of what the region's node reads."""
    return tuple(self.place[name] for name in self.region.reads)


class LateRegion:
  """The region of a cone, which is made when it is asked for.

  ``names``: of the tensors of the cone, in the order of their numbers.
  """

  __slots__ = ("_made", "_maker", "_names", "_nodes", "_region")

  def __init__(
    self, maker: "RegionMaker", made: _Made, nodes: tuple[str, ...], names: tuple[str, ...],
    region: Region | None = None,
  ) -> None:  # fmt: skip
    self._maker, self._made, self._nodes, self._names, self._region = maker, made, nodes, names, region

  @property
  def region(self) -> Region:
    if self._region is None:
      self._region = self._maker.copy(self._made, self._nodes)
    return self._region

  @property
  def key(self) -> str:
    """As of the region."""
    return self._made.region.key

  @property
  def form(self) -> object:
    """The same one of regions that are copies of each other."""
    return self._made

  @property
  def extents(self) -> Mapping[str, int]:
    """As of the region."""
    return self._made.region.extents

  @property
  def reads(self) -> tuple[str, ...]:
    """The tensors of the program that its node reads, each once."""
    return tuple(self._names[i] for i in self._made.reads)

  @property
  def weights(self) -> tuple[RegionTensor, ...]:
    """Those of the region's inputs that no run changes."""
    place, names = self._made.place, self._names
    found = self._made.region.weights
    if made := {i.tensor.name for i in found if place[i.tensor.name] >= len(names)}:  # parts of some
      parts = self._maker.parts_of(self._made, names, made)
      if parts is None:
        return self.region.weights
      return tuple(_with_names(i, lambda x: parts.get(x) or names[place[x]]) for i in found)
    return tuple(_with_names(i, lambda x: names[place[x]]) for i in found)


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
    self._ties = Ties(program)

  def make(self, covered: frozenset[str], yielded: frozenset[str]) -> LateRegion:
    """The canonical region of the nodes ``covered`` that yields these of what they make.

    It reads what they do not make themselves. Nodes, inputs and outputs are in the program's order.

    Raises:
        RejectionError: TIED (``ties.py``), or as ``make_region``.
    """
    self._ties.check(covered, yielded)
    nodes = tuple(sorted(covered, key=self._order.__getitem__))
    made = dict.fromkeys(o for n in nodes for o in self._nodes[n].outputs)
    inputs = tuple(dict.fromkeys(i for n in nodes for i in self._reads[n] if i not in made))
    outputs = tuple(o for o in made if o in yielded)
    place: dict[str, int] = {}
    form: list[object] = []
    for name in nodes:
      part = self._part(name)
      form += [part.number, *(place.setdefault(x, len(place)) for x in part.names)]
    ends = tuple(tuple(place.get(x, x) for x in group) for group in (inputs, outputs))
    key = (*form, *ends)
    if (first := self._made.get(key)) is not None:
      return LateRegion(self, first, nodes, tuple(place))
    region = make_region(self._program, nodes, inputs, outputs, self._sizes, self._nodes)
    self.work += len(walk(region.terms))
    at = {s: i for i, s in enumerate(s for n in nodes for s in self._nodes[n].steps)}
    kept = [at.get(s) for s in region.steps]
    self._made[key] = _Made(region, self._numbered(nodes, region.steps), ends, kept)
    return LateRegion(self, self._made[key], nodes, tuple(place), region)

  def copy(self, first: _Made, nodes: tuple[str, ...]) -> Region:
    """The region of another cone of the form of ``first``: that of ``nodes``."""
    own = [s for n in nodes for s in self._nodes[n].steps]
    if None not in first.kept:
      return self._copy(first, nodes, tuple(own[i] for i in first.kept if i is not None))
    steps = self._renamed(first, own)
    if steps is None:
      names = tuple(dict.fromkeys(x for n in nodes for x in self._part(n).names))
      inputs, outputs = (tuple(names[i] if isinstance(i, int) else i for i in some) for some in first.ends)
      live = tuple(i for i in inputs if i not in self._program.constants)
      steps = tuple(viewed(self._program, own, live, outputs).steps)
    return self._copy(first, nodes, steps)

  def parts_of(self, first: _Made, names: tuple[str, ...], made: set[str]) -> dict[str, str] | None:
    """The names that a copy of ``first`` gives to these parts; None where ``copy`` must find them.

    ``names``: of the copy's tensors, by their numbers.
    """
    place = first.place
    found = self._derived_names(first, {*names}, lambda base: names[place[base]])
    if found is None:
      return None
    return {x: found[x] for x in made} if made <= found.keys() else None

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
    found = self._derived_names(first, {*same.values()}, lambda base: str(same[base]))
    if found is None:
      return None
    same.update(found.items())
    return tuple(
      Step(
        s.op,
        tuple([same.get(i, i) for i in s.inputs]),
        Tensor(str(same[s.output.name]), s.output.dtype, s.output.shape),
        s.attr,
      )
      for s in first.region.steps
    )

  def _derived_names(
    self, first: _Made, taken: set[Operand], name_of: Callable[[str], str]
  ) -> dict[str, str] | None:
    """The parts of tensors in ``first``, by the names they have in a copy; ``name_of``: of a tensor there.

    None where a name is no tensor's and what says which part, or somebody else has it: it is in ``taken``.
    """
    if first.derived is None:
      theirs = [s for n in first.region.nodes for s in self._nodes[n].steps]
      first.derived = _derived(first.place, [x for s in theirs for x in (*s.inputs, s.output.name)])
    found = dict[str, str]()
    for x, base, more in first.derived:
      name = f"{name_of(base)}{more}" if base else ""
      if not base or name in taken or name in self._program.tensors:
        return None
      taken.add(name)
      found[x] = name
    return found

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

    def renamed(x: RegionTensor) -> RegionTensor:
      return _with_names(x, own)

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


def _with_names(x: RegionTensor, own: Callable[[str], str]) -> RegionTensor:
  """An input or output of a copy, whose tensors have their ``own`` names."""
  view, tensor = x.view, x.tensor
  if view:
    source = Tensor(own(view.source.name), view.source.dtype, view.source.shape)
    view = replace(view, source=source, picks=own(view.picks) if view.picks else "")
  tensor = Tensor(own(tensor.name), tensor.dtype, tensor.shape)
  # Of thousands: replace() takes three times as long.
  return RegionTensor(x.name, x.dtype, x.axes, tensor, x.is_weight, x.dims, view, x.picks, x.band)


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
