"""Choices: the ways one value can come about at one place of a kernel.

A *place* is a class and a phase: in every iteration of the loop, or once after it. Elementwise ways
are chained up by ``chains.py``; here are the heavy ones, which the operator bound counts: where a
reduction happens (over the tile, over the loop by an accumulator, over the loop with a running
maximum), how the factors of a contraction are grouped into its two operands, and reading the value
that an earlier kernel wrote.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf, prod

from mirage_onnx.cost.model import PARTS_ASSUMED
from mirage_onnx.cost.tiled import MAX_REGISTERS
from mirage_onnx.cost.tiled_block import BASE_REGISTERS
from mirage_onnx.ir.term import MAXR, MUL
from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.superopt.axioms import groupings
from mirage_onnx.superopt.egraph import HEAVY, PARTS, RUN, SCALED, EGraph, ENode, part_of
from mirage_onnx.superopt.roles import KernelRoles, unplaceable
from mirage_onnx.superopt.space import Space
from mirage_onnx.superopt.tiled_numbers import CLUSTERS, WARPS

#: As far as elementwise work goes: no tile is larger along an axis, a loop has so many iterations.
TILE, ITERATIONS = 64, 4

#: A value at a place: its class and the phase that computes it.
Place = tuple[int, Phase]


@dataclass(frozen=True, slots=True)
class Choice:
  """How a place gets its value from the places it ``needs``.

  ``kind``: ``load`` | ``scalar`` | ``pure`` (elementwise ``node``) | ``read`` (what an earlier
  kernel wrote) | ``tile`` (reduction of a tile, ``node``) | ``acc`` (reduction of ``node`` over
  the loop) | ``contract`` (two operands, over ``axis``; over the loop when the needed places are
  in it) | ``run`` (running maximum of what it needs) | ``rescale`` (the sum over the loop of
  what it needs, a value or two operands, whose last need is the running maximum).
  """

  kind: str
  node: ENode
  needs: tuple[Place, ...] = ()
  axis: str = ""
  #: What the operator bound counts: contractions, reductions, accumulators. Asked at every step of a walk.
  weight: int = field(init=False, compare=False, repr=False)

  def __post_init__(self) -> None:
    heavy = self.kind in ("acc", "tile", "contract", "run", "rescale")
    object.__setattr__(self, "weight", int(heavy))


@dataclass(slots=True)
class Counts:
  """States visited and prefixes pruned, by reason; the least floor of what is put off."""

  states: int = 0
  limit: int = 200_000
  pruned: Counter[str] = field(default_factory=Counter)
  put_off_us: float = inf

  def visit(self) -> None:
    """One more state.

    Raises:
        StateLimitError: that is one too many.
    """
    self.states += 1
    if self.states > self.limit:
      raise StateLimitError

  def prune(self, reason: str) -> None:
    """Count something that is left out."""
    self.pruned[reason] += 1


class StateLimitError(Exception):
  """The search has visited as many states as it may."""


@dataclass(frozen=True, slots=True)
class RoleSetting:
  """What all derivations under some roles share.

  ``reads``: classes that an earlier kernel can write, ``inputs``: those that are tensors of the
  region, ``original``: those of the terms of the region as it was written. ``held``: the
  elements of a tensor that a block has memory for. ``runtime``: axes that only a run counts.
  """

  g: EGraph
  roles: KernelRoles
  space: Space
  inputs: frozenset[int]
  reads: frozenset[int]
  original: frozenset[int]
  extents: Mapping[str, int]
  counts: Counts
  held: float = inf
  runtime: frozenset[str] = frozenset()

  def work(self, place: Place, choice: Choice) -> int:
    """Elementwise operations of a choice, in elements of a tile of usual size."""
    if choice.kind != "pure":
      return 0
    axes = self.roles.axes_in_block(self.g.axes(place[0]))
    elements = prod(min(self.extents.get(a, TILE), TILE) for a in axes)
    often = ITERATIONS if place[1] is Phase.LOOP else 1
    return elements * often * max(1, len(choice.node.children) - 1)

  def heavy_work(self, place: Place, choice: Choice) -> int:
    """The same of a heavy choice; a tensor core does the work of eight operations at once."""
    if not choice.weight:
      return 0
    axes = {*self.roles.axes_in_block(self.g.axes(place[0])), *choice.node.over}
    elements = prod(min(self.extents.get(a, TILE), TILE) for a in axes)
    in_loop = any(phase is Phase.LOOP for _, phase in choice.needs)
    contracted = choice.kind in ("contract", "rescale") and choice.axis
    return elements * (ITERATIONS if in_loop else 1) // (8 if contracted else 1)

  def refused(self, place: Place) -> str | None:
    """Why no kernel with these roles has a value here, or None."""
    return self.unplaceable(place[0], place[1])

  def unplaceable(self, c: int, phase: Phase) -> str | None:
    """The same of a class and a phase."""
    return unplaceable(self.g, c, phase, self.roles, self.space, self.runtime)

  @property
  def contracts_only(self) -> bool:
    """Whether what a contraction sums is not summed element by element too."""
    return self.space.general

  def too_large(self, place: Place) -> bool:
    """Whether no block can hold a tile of a tensor through an iteration of its loop."""
    looped = place[1] is Phase.LOOP
    return looped and self._least(self.g.axes(place[0]), Phase.LOOP) > self.held

  def is_heavy(self, place: Place) -> bool:
    """Whether some heavy choice may give this place its value."""
    if place[0] in self.inputs or self.refused(place):
      return False
    if place[0] in self.reads:
      return True
    return any(n.op in HEAVY or n.op == RUN for n in self.g.nodes(place[0]))

  def heavy(self, place: Place) -> list[Choice]:
    """The heavy choices of a place."""
    found: list[Choice] = []
    if place[0] in self.reads and not set(self.g.axes(place[0])) & {part_of(a) for a in self.roles.parts}:
      if self.too_large(place):
        self.counts.prune("a tile of a tensor that no block has the memory for")
      else:
        found.append(Choice("read", self.g.nodes(place[0])[0]))
    for n in self.g.nodes(place[0]):
      if n.op == RUN:
        found += self._running(n, place[1])
      elif n.op in HEAVY:
        found += self._reductions(n, place[1])
    return found

  def _running(self, n: ENode, phase: Phase) -> Iterator[Choice]:
    if phase is Phase.POST or n.attr != (self.roles.loop,):
      self.counts.prune("a running maximum outside of the loop over its axis")
      return
    for m in self.g.nodes(n.children[0]):
      if m.attr == n.attr and PARTS.get(m.op, m.op) == MAXR and self._own(m):
        yield Choice("run", n, ((self.g.find(m.children[0]), Phase.LOOP),))

  def _own(self, n: ENode) -> bool:
    """Whether a reduction is over what a block of this kernel has of its axes."""
    axes = set(n.over)
    if n.op in PARTS:
      return axes <= set(self.roles.parts)
    spread = {*self.roles.grid, *map(part_of, self.roles.parts)}
    return not axes & spread

  def _reductions(self, n: ENode, phase: Phase) -> Iterator[Choice]:
    bound, loop = set(n.over), self.roles.loop
    op = PARTS.get(n.op, n.op)
    child = self.g.find(n.children[0])
    if not self._own(n):
      self.counts.prune("a reduction over a dimension that the grid splits")
      return
    over_loop = loop in bound
    if over_loop and phase is Phase.LOOP:
      self.counts.prune("a reduction over the loop is needed inside it")
      return
    if op == SCALED and not over_loop:
      self.counts.prune("a rescaled sum outside of the loop over its axis")
      return
    inner = Phase.LOOP if over_loop else phase
    extra: tuple[Place, ...] = ()
    if op == SCALED:
      run = self.g.find_node(ENode(RUN, (self.g.find(n.children[1]),), n.attr))
      assert run is not None
      extra = ((run, Phase.LOOP),)
    contracted = False
    if op != MAXR and len(bound) == 1 and (loop is not None or self.space.general):
      (axis,) = bound
      if inner is Phase.LOOP and not over_loop and not self.space.general:
        self.counts.prune("a contraction in the loop over another axis than the loop's")
      else:
        for operands in self._contractions(child, axis, inner):
          contracted = True
          if self._least_registers(operands, axis) > MAX_REGISTERS:
            self.counts.prune("a result that no block has the registers for")
            continue
          kind = "rescale" if op == SCALED else "contract"
          yield Choice(kind, n, (*operands, *extra), axis)
    if contracted and self.contracts_only:
      self.counts.prune("a product summed element by element that a contraction sums")
    elif self.unplaceable(child, inner):
      self.counts.prune("a reduction of a tile that no layout holds")
    elif op == SCALED:
      yield Choice("rescale", n, ((child, inner), *extra))
    elif over_loop:
      yield Choice("acc", n, ((child, inner),), str(loop))
    else:
      yield Choice("tile", n, ((child, inner),))

  def _contractions(self, child: int, axis: str, inner: Phase) -> Iterator[tuple[Place, Place]]:
    """Group the factors of sum[axis](f0 * f1 * ...) into two operands."""
    seen: set[tuple[int, int]] = set()
    batch = {*self.roles.grid, self.roles.loop, axis}
    for m in self.g.nodes(child):
      if m.op != MUL:
        continue
      for a, b in groupings(self.g, m.children, axis, batched=self.space.general):
        if (a, b) in seen:
          self.counts.prune("the same grouping of factors twice")
          continue
        seen.add((a, b))
        if not set(self.g.axes(a)) & set(self.g.axes(b)) <= batch:
          self.counts.prune("operands that share an axis of the tile")
          continue
        yield (a, inner), (b, inner)

  def _least(self, axes: Iterable[str], phase: Phase) -> int:
    """Elements of the smallest tile over these axes that a block can have."""
    n, roles = 1, self.roles
    for a in set(roles.axes_in_block(axes)) - set(roles.grid):
      extent = self.extents.get(a, PARTS_ASSUMED)
      n *= ceil(extent / max(CLUSTERS)) if (a, phase) == (roles.loop, Phase.LOOP) else extent
    return n

  def _least_registers(self, operands: tuple[Place, Place], axis: str) -> int:
    """What a thread needs to hold a contraction over ``axis``, whatever the numbers are.

    Behind the loop of a streaming kernel results are not held: 0.
    """
    phase = operands[0][1]
    if phase is Phase.POST and self.roles.loop is not None:
      return 0
    a, b = (set(self.roles.axes_in_block(self.g.axes(c))) - {axis} for c, _ in operands)
    # A fragment has eight rows or columns at least; four lanes have a copy of a vector.
    sides = [max(8, self._least(own, phase)) for own in (a - b, b - a) if own]
    copies = 4 if len(sides) == 1 else 1
    slots = copies * prod(sides) * self._least(a & b, phase)
    return BASE_REGISTERS + slots // (32 * max(WARPS))
