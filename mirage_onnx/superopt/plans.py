"""Plans: kernel graphs of a region, cheapest predicted first.

A plan is built backwards, from the kernel that writes the outputs: what it reads of earlier kernels
is still to be made, by one kernel or several. The frontier is walked best first with a bound from
below for what is missing (one launch, and the bytes that no plan can do without), so plans come out
in the order of their cost and the walk ends when nothing cheaper can follow.

A unit on the frontier is needed unless the walk ends before it gets there, so each is offered to
whoever can begin it ahead of time; that decides nothing about the walk itself.

The first floor of what is missing is low. When a plan is the cheapest by it, a better one is looked for
(``rest_floors.py``), and only if that is not higher the walk goes on with the plan.

The floors of a plan that is far from whole are low even so, so where there are many a walk may come to none
for long. After ``PATIENCE`` units a second one, which goes on with the plan of the most kernels,
yields a few plans: a search that ends early has those.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import inf

from mirage_onnx.ir.ugraph import KernelParams, KTensor, UGraph
from mirage_onnx.superopt.blame import Blame
from mirage_onnx.superopt.choices import Counts
from mirage_onnx.superopt.egraph import is_part
from mirage_onnx.superopt.rest_floors import RestFloors
from mirage_onnx.superopt.solved import together
from mirage_onnx.superopt.unit_worker import Job
from mirage_onnx.superopt.units import Built, Units

#: Runs a unit: the kernels that compute these classes from inputs and the second ones.
Run = Callable[[tuple[int, ...], tuple[int, ...]], tuple[Built, ...]]
#: Told a floor of the plan that needs a job, and the job.
Offer = Callable[[float, Job], None]
#: Units that are run before plans come before their turn, and how many of them at most.
PATIENCE, HASTY = 96, 16
#: Of more missing values than this one kernel computes all, two or one: the sets between are too many.
GROUPED = 5
#: Units that are run before better floors are looked for, and how much higher one is made at a time.
FEW, LOOKED = 32, 0.03
ROLES = ("input", "weight", "rows", "temp", "output")


@dataclass(frozen=True, slots=True)
class KernelPlan:
  """Kernels, the last one first, with the classes each one computes."""

  cost_us: float
  kernels: tuple[tuple[tuple[int, ...], Built], ...] = ()


@dataclass(frozen=True, slots=True)
class _Open:
  """A plan with values still ``missing``, and how far the choice of its next kernel is.

  Nothing is chosen, or the ``group`` of values that it computes (and its outline is looked at to
  this ``depth``), or also what it ``reads``; then that kernel has the floor ``own_us``.
  """

  plan: KernelPlan
  missing: frozenset[int]
  group: tuple[int, ...] = ()
  depth: int = 0
  reads: tuple[int, ...] | None = None
  own_us: float = 0.0


class _Walk:
  """A frontier of plans of at most so many kernels: the cheapest first, or if ``hasty`` the most kernels."""

  def __init__(self, offer: Callable[[float, _Open], None] | None, most: int, *, hasty: bool) -> None:
    self._offer, self.most, self.hasty = offer, most, hasty
    #: Whether it has left out what the bound has no room for.
    self.is_cut = False
    self.heap: list[tuple[int, float, int, _Open]] = []
    self._pushed = 0
    #: What the kernels of a group read, of those groups and reads that have kernels.
    self.opened: dict[tuple[int, ...], set[tuple[int, ...]]] = {}

  def push(self, floor_us: float, node: _Open) -> None:
    if self._offer and node.group:
      self._offer(floor_us, node)
    left = -len(node.plan.kernels) if self.hasty else 0
    heapq.heappush(self.heap, (left, floor_us, self._pushed, node))
    self._pushed += 1


class Plans:
  """The plans of the units of one search. ``found``: one was verified.

  What ``blame`` learns of plans that were refused ends those that have the same in them.
  """

  def __init__(self, units: Units, run: Run, counts: Counts, offer: Offer | None = None) -> None:
    self.units, self.run, self.counts, self._offer = units, run, counts, offer
    # One kernel does not compute outputs over different axes, parts of a concatenation.
    kinds = {units.graph.axes(c) for c in units.outputs}
    #: Kernels of a plan.
    self.most = units.bound.kernels + len(kinds) - 1
    self._ran, self.found = 0, False
    self._rests = RestFloors(self._rest_floors)
    self.blame = Blame(units.original, units.exponentials)

  def cheapest_first(self) -> Iterator[tuple[KernelPlan, bool]]:
    """All plans within the bound of kernels, in the order of their cost.

    The second: whether it comes before its turn; such a plan comes again.
    """
    start = frozenset(self.units.outputs)
    if start & set(self.units.inputs):
      self.counts.prune("an output that is a copy of an input")
      return
    offer = self._offer_jobs if self._offer else None
    waiting = True
    for plan in self._walk(_Walk(offer, self.most, hasty=False), start):
      if plan is not None:
        waiting = False
        yield plan, False
      elif waiting and self._ran >= PATIENCE:
        waiting = False
        early = filter(None, self._walk(_Walk(None, self.most, hasty=True), start))
        for plan in islice(early, HASTY):
          yield plan, True
          if self.found:
            break

  def _walk(self, walk: _Walk, start: frozenset[int]) -> Iterator[KernelPlan | None]:
    """The plans, and None after every other step."""
    walk.push(0.0, _Open(KernelPlan(0.0), start))
    while walk.heap:
      _, floor_us, _, node = heapq.heappop(walk.heap)
      if reason := self.blame.reason(b for _, b in node.plan.kernels):
        self.counts.prune(reason)
        walk.is_cut = True
        continue
      if not node.missing:
        yield node.plan
        continue
      if not walk.hasty and (least_us := self._least_us(node, floor_us, walk)) > floor_us:
        opened = walk.opened.setdefault(node.group, set())
        if node.reads is not None and len(opened) < (self.units.bound.units or inf):
          opened.add(node.reads)  # its turn has come: those after it do not take its place
        walk.push(least_us, node)
        continue
      if not node.group:
        self._open_groups(node, walk)
      elif node.reads is None:
        self._open_reads(node, walk)
      else:
        self._open_kernels(node, walk)
      yield None

  def _least_us(self, node: _Open, floor_us: float, walk: _Walk) -> float:
    """A floor of a plan by what it takes to make its missing values, a little above ``floor_us`` at most."""
    rest, before_us = node.missing, node.plan.cost_us
    left = walk.most - len(node.plan.kernels)
    if node.reads is not None:
      rest = node.missing.difference(node.group).union(node.reads)
      before_us, left = before_us + node.own_us, left - 1
    elif not node.plan.kernels:
      return floor_us  # that is this walk itself
    if self._ran < FEW:
      return floor_us
    rest_us = self._rests.least_us(rest, left, (1 + LOOKED) * floor_us - before_us)
    return max(floor_us, before_us + rest_us)

  def _rest_floors(self, c: int, kernels: int) -> Iterator[float]:
    """As of ``rest_floors.Begin``."""
    walk = _Walk(None, kernels, hasty=False)
    for plan in self._walk(walk, frozenset((c,))):
      if walk.is_cut:
        return  # what is left out may be cheaper, and another walk has room for it
      if plan is not None:
        yield plan.cost_us
        return
      yield walk.heap[0][1] if walk.heap else inf
      if walk.heap and walk.heap[0][3].depth and walk.heap[0][3].reads is None:
        return  # a deeper outline takes longer than it spares
    if not walk.is_cut:
      yield inf

  def _offer_jobs(self, floor_us: float, node: _Open) -> None:
    assert self._offer is not None
    for job in self._jobs(node):
      self._offer(floor_us, job)

  def _jobs(self, node: _Open) -> tuple[Job, ...]:
    """What the walk needs when it comes to a node with a group."""
    if node.reads is not None:
      return ((node.group, node.reads),)
    return self.units.jobs(node.group, self._depth(node))

  def _open_groups(self, node: _Open, walk: _Walk) -> None:
    if len(node.plan.kernels) == walk.most:
      self.counts.prune("more kernels than the bound")
      return
    floor_us, slack = self.units.floors.rest_us, self.units.bound.slack
    for group in self.groups(node.missing):
      rest = node.missing - set(group)
      least = floor_us(frozenset(group)) + floor_us(rest)
      walk.push(node.plan.cost_us + slack * least, _Open(node.plan, node.missing, group))

  def _open_reads(self, node: _Open, walk: _Walk) -> None:
    made = {c for g, _ in node.plan.kernels for c in g} | set(node.group)
    slack = self.units.bound.slack
    if node.depth and self._has_enough(node.group, walk):
      return
    depth = self._depth(node)
    outline = self.units.outline(node.group, depth)
    walk.is_cut |= not outline.complete
    is_last = len(node.plan.kernels) + 1 >= walk.most
    # What reads nothing has the least floor.
    if depth is not None and outline.beyond_us < inf and not is_last:
      deeper = replace(node, depth=depth + 1)
      walk.push(node.plan.cost_us + slack * outline.beyond_us, deeper)
    for reads in outline.derivations:
      if made & set(reads):
        self.counts.prune("a value that is needed before it is made")
        continue
      rest = (node.missing - set(node.group)) | set(reads)
      if rest and is_last:
        self.counts.prune("more kernels than the bound")
        continue
      least = outline.floor_us[reads] + self.units.floors.rest_us(rest)
      opened = replace(node, reads=reads, own_us=slack * outline.floor_us[reads])
      walk.push(node.plan.cost_us + slack * least, opened)

  def _depth(self, node: _Open) -> int | None:
    """How deep the outline is wanted; at once, if there is no limit of the sets of values."""
    return None if self.units.bound.units is None else node.depth

  def _open_kernels(self, node: _Open, walk: _Walk) -> None:
    assert node.reads is not None
    opened = walk.opened.setdefault(node.group, set())
    if node.reads not in opened and self._has_enough(node.group, walk):
      return
    kernels = self.run(node.group, node.reads)
    self._ran += walk.most == self.most  # no patience is lost by walks for floors
    if kernels:
      opened.add(node.reads)
    rest = (node.missing - set(node.group)) | set(node.reads)
    for b in kernels:
      plan = KernelPlan(node.plan.cost_us + b.cost_us, (*node.plan.kernels, (node.group, b)))
      floor_us = self.units.bound.slack * self.units.floors.rest_us(rest)
      walk.push(plan.cost_us + floor_us, _Open(plan, rest))

  def _has_enough(self, group: tuple[int, ...], walk: _Walk) -> bool:
    most = self.units.bound.units
    if most is None or len(walk.opened.get(group, ())) < most:
      return False
    self.counts.prune("more sets of values to read than the bound")
    walk.is_cut = True
    return True

  def groups(self, missing: frozenset[int]) -> Iterator[tuple[int, ...]]:
    """The sets of missing values that one kernel may compute, with the deepest among them.

    Parts of one axis come from one kernel: their number is a number of its grid.
    """
    g, depth = self.units.graph, self.units.depth
    ordered = sorted(missing, key=lambda c: (-depth[c], c))
    first, others = ordered[0], ordered[1:]
    counts: Sequence[int] = range(len(others), -1, -1)
    if len(missing) > GROUPED:
      self.counts.prune("a kernel of some of many values")
      counts = (len(others), 1, 0)
    for count in counts:
      for more in combinations(others, count):
        group = (first, *more)
        inside = {a for c in group for a in g.axes(c) if is_part(a)}
        outside = {a for c in missing - set(group) for a in g.axes(c) if is_part(a)}
        if not inside & outside:
          yield tuple(sorted(group))

  # -- as µGraphs

  def ugraph(self, plan: KernelPlan) -> UGraph:
    """The µGraph of a plan: kernels k0, k1, ... in launch order, tensors by what they are."""
    order = list(reversed(plan.kernels))
    names: dict[str, str] = {}
    for i, (group, _) in enumerate(order):
      for c in group:
        names.update({a: f"{a}k{i}" for a in self.units.graph.axes(c) if is_part(a)})
    temps: dict[str, str] = {}
    tensors: dict[str, KTensor] = {t.name: t for t in self.units.inputs.values()}
    for group, _ in order:
      for c in group:
        t = self.units.tensor(c)
        if t.role == "temp":
          temps[t.name] = f"t{len(temps)}"
        tensors[t.name] = t.renamed(temps.get(t.name, t.name), names)
    kernels = tuple(b.kernel.renamed(f"k{i}", names, temps) for i, (_, b) in enumerate(order))
    used = {name for k in kernels for name in k.touched}
    touched = [t for t in tensors.values() if t.name in used]
    kept = sorted(
      (*touched, *self.units.picking(touched)),
      key=lambda t: (ROLES.index(t.role), t.name),
    )
    return UGraph(tuple(kept), kernels)

  def numbers(self, plan: KernelPlan) -> Iterator[tuple[float, tuple[KernelParams, ...]]]:
    """The numbers of all kernels together, with their cost, best first."""
    return together([(b.cost_us, b.params) for _, b in reversed(plan.kernels)])
