"""Derivations: every way one kernel can compute its targets, given the roles of the dimensions.

A derivation picks, for each value it needs and for the phase it needs it in, one spelling of the
value's class. It is found backwards from the targets, so every prefix is a subexpression of
something equal to the target (the pruning by abstract expressions holds by construction).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import inf

from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.superopt.chains import Chains
from mirage_onnx.superopt.choices import Choice, Place, RoleSetting
from mirage_onnx.superopt.result import SearchBound

Derivation = Mapping[Place, Choice]


@dataclass(frozen=True, slots=True)
class SearchStep:
  """One step of the search: a heavy choice with the elementwise chains that feed it.

  ``needs``: the heavy places of these chains, ``work``: of the chains.
  """

  choice: Choice | None
  chains: tuple[tuple[Place, Choice], ...]
  needs: frozenset[Place]
  work: int


class Steps:
  """The steps that give a place its value; found once for each place of a setting."""

  def __init__(self, setting: RoleSetting, goal: tuple[Place, ...], bound: SearchBound) -> None:
    self.setting, self.goal, self.bound = setting, goal, bound
    self.chains = Chains(setting, kept=bound.chains, parts=bound.parts)
    self._known: dict[Place, tuple[SearchStep, ...]] = {}

  def first(self) -> tuple[SearchStep, ...]:
    """The chains that feed the targets."""
    return tuple(self._fed(None, self.goal))

  def at(self, place: Place) -> tuple[SearchStep, ...]:
    """The steps of a heavy place, in a canonical order.

    Of steps of one kind over the same axes with the same needs, those with the least
    elementwise work stay: factors of a contraction go to the operand where they cost least.
    """
    if place not in self._known:
      found: dict[tuple[object, ...], list[SearchStep]] = {}
      for choice in self.setting.heavy(place):
        if choice.kind == "read" and place in self.goal:
          continue  # A target is computed here.
        for step in self._fed(choice, choice.needs):
          key = (choice.kind, choice.axis, choice.node.attr, step.needs)
          found.setdefault(key, []).append(step)
      kept: list[SearchStep] = []
      for own in found.values():
        own.sort(key=lambda s: s.work)
        if self.bound.groupings is not None and len(own) > self.bound.groupings:
          self.setting.counts.prune("factors of a contraction that cost more there")
          del own[self.bound.groupings :]
        kept += own
      self._known[place] = tuple(kept)
    return self._known[place]

  def _fed(self, choice: Choice | None, places: tuple[Place, ...]) -> Iterator[SearchStep]:
    """Every way to feed ``places`` by chains."""
    for chains in product(*(self.chains.at(p) for p in places)):
      picked: dict[Place, Choice] = {}
      for chain in chains:
        for p, c in chain.choices:
          picked.setdefault(p, c)
      needs = frozenset(n for chain in chains for n in chain.needs)
      yield SearchStep(choice, tuple(picked.items()), needs, sum(chain.ops for chain in chains))


def derivations(
  setting: RoleSetting,
  targets: tuple[int, ...],
  bound: SearchBound,
  floor_us: Callable[[frozenset[int], frozenset[int]], float] = lambda reads, loads: 0.0,
  most_us: float = inf,
) -> Iterator[Derivation]:
  """All acyclic derivations of ``targets`` (after the loop) within the bound.

  ``floor_us``: of reading values of earlier kernels and loading inputs; those where that is more
  than ``most_us`` are put off (``Counts.put_off_us``).
  """
  counts = setting.counts
  goal = tuple((setting.g.find(t), Phase.POST) for t in targets)
  steps = Steps(setting, goal, bound)

  def expand(
    chosen: dict[Place, Choice],
    agenda: list[Place],
    seen: set[Place],
    used: int,
    reads: frozenset[int],
    loads: frozenset[int],
  ) -> Iterator[Derivation]:
    """``agenda``: places that are needed, to be looked at unless they are ``seen``."""
    counts.visit()
    while agenda:
      place = agenda.pop()
      if place in seen:
        continue
      if place not in chosen:
        break
      seen.add(place)
      agenda.extend(reversed(chosen[place].needs))
    else:
      yield from finish(chosen)
      return
    fed: set[frozenset[tuple[Place, Choice]]] = set()
    for step in steps.at(place):
      assert step.choice is not None
      if used + step.choice.weight > bound.operators:
        counts.prune("more contractions, reductions and accumulators than the bound")
        continue
      wanted = reads | {place[0]} if step.choice.kind == "read" else reads
      if len(wanted) > bound.reads:
        counts.prune("more values of earlier kernels than the bound")
        continue
      merged = {**dict(step.chains), **chosen, place: step.choice}
      # What is chosen already stays: steps may differ in chains that this makes equal.
      feeding = _fed_by((place,), merged, chosen)
      if feeding in fed:
        counts.prune("the same derivation twice")
        continue
      fed.add(feeding)
      needed = loads.union(p[0] for p, c in feeding if c.kind == "load")
      if (least := floor_us(wanted, needed)) > most_us:
        counts.put_off_us = min(counts.put_off_us, least)
        continue
      more = used + step.choice.weight
      yield from expand(merged, [*agenda, place], set(seen), more, wanted, needed)

  def finish(chosen: dict[Place, Choice]) -> Iterator[Derivation]:
    order = order_places(chosen, goal)
    if order is None:
      counts.prune("a value that depends on itself")
    elif _is_sound(setting, order, chosen):
      yield {p: chosen[p] for p in order}

  firsts: set[frozenset[tuple[Place, Choice]]] = set()
  for step in steps.first():
    feeding = _fed_by(goal, dict(step.chains), {})
    if feeding in firsts:
      counts.prune("the same derivation twice")
      continue
    firsts.add(feeding)
    loads = frozenset(p[0] for p, c in feeding if c.kind == "load")
    yield from expand(dict(step.chains), list(reversed(goal)), set(), 0, frozenset(), loads)


def _fed_by(
  places: tuple[Place, ...], merged: Mapping[Place, Choice], chosen: Mapping[Place, Choice]
) -> frozenset[tuple[Place, Choice]]:
  """The choices of new places, and the elementwise ones that are new with them."""
  found: dict[Place, Choice] = {}
  agenda = list(places)
  while agenda:
    p = agenda.pop()
    if p not in found and p in merged and p not in chosen:
      found[p] = merged[p]
      agenda += merged[p].needs
  return frozenset(found.items())


def _is_sound(setting: RoleSetting, order: list[Place], chosen: Mapping[Place, Choice]) -> bool:
  """Whether a complete derivation is a kernel of its own; why not is counted."""
  counts, loop = setting.counts, setting.roles.loop
  if loop is None:
    return True
  looped = [
    (p, chosen[p]) for p in order if chosen[p].weight and any(q[1] is Phase.LOOP for q in chosen[p].needs)
  ]
  if not any(p[1] is Phase.POST for p, _ in looped):
    counts.prune("a loop that accumulates nothing")
    return False
  if not setting.space.general and not any(c.kind == "contract" for _, c in looped):
    counts.prune("a loop without a contraction: a row kernel computes the same")
    return False
  return True


def order_places(chosen: Mapping[Place, Choice], goal: tuple[Place, ...]) -> list[Place] | None:
  """The places that the goal needs, each after what it needs; None where one needs itself."""
  done: dict[Place, None] = {}
  active: set[Place] = set()

  def visit(p: Place) -> bool:
    if p in done:
      return True
    if p in active:
      return False
    active.add(p)
    for q in chosen[p].needs:
      if not visit(q):
        return False
    done[p] = None
    return True

  return list(done) if all(visit(p) for p in goal) else None
