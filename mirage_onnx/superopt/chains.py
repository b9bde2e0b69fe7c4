"""The elementwise closure of places: all minimal chains down to loads and heavy values.

A chain of elementwise operations is one step of the search: what matters is which heavy values it
needs, so of two chains with equal needs the one with less work stays.
"""

from dataclasses import dataclass
from itertools import product

from mirage_onnx.ir.term import CONST, EXTENT
from mirage_onnx.superopt.choices import Choice, Place, RoleSetting
from mirage_onnx.superopt.egraph import HEAVY, RUN


@dataclass(frozen=True, slots=True)
class Chain:
  """What an elementwise chain picks and which heavy values it needs.

  ``ops``: the elementwise work of its operations (``RoleSetting.work``).
  """

  ops: int
  needs: frozenset[Place]
  choices: tuple[tuple[Place, Choice], ...]


class Chains:
  """The chains of the places of one setting.

  ``kept``: chains of a place that are offered, fewest needs first; ``parts``: chains of each
  operand that are combined, least work first. None keeps all.
  """

  def __init__(self, setting: RoleSetting, *, kept: int | None, parts: int | None) -> None:
    self.setting, self.kept, self.parts = setting, kept, parts
    self._known: dict[Place, dict[frozenset[Place], Chain]] = {}

  def at(self, place: Place) -> list[Chain]:
    """The chains that compute ``place``, fewest needs first."""
    if place not in self._known:
      self._fix(place)
    found = self._known[place].values()
    ranked = sorted(found, key=lambda c: (len(c.needs), c.ops, sorted(c.needs)))
    return ranked[: self.kept]

  def _fix(self, goal: Place) -> None:
    """Least fixpoint over the (possibly cyclic) elementwise spellings under ``goal``."""
    order: dict[Place, list[Choice]] = {}
    todo = [goal]
    while todo:
      place = todo.pop()
      if place in order or place in self._known:
        continue
      order[place] = self._elementwise(place)
      for choice in order[place]:
        todo += choice.needs
    fresh: dict[Place, dict[frozenset[Place], Chain]] = {p: {} for p in order}
    users: dict[Place, list[Place]] = {p: [] for p in order}
    for p in order:
      for choice in order[p]:
        for q in choice.needs:
          if q in users:
            users[q].append(p)
    for place in order:
      if self.setting.is_heavy(place):
        fresh[place][frozenset({place})] = Chain(0, frozenset({place}), ())
    # A place is looked at again only when a place it is computed from has grown.
    dirty = dict.fromkeys(reversed(order))
    while dirty:
      current, dirty = list(dirty), {}
      for place in current:
        grown = False
        for choice in order[place]:
          tables = [fresh.get(q) or self._known.get(q, {}) for q in choice.needs]
          if all(tables):
            grown |= self._extend(fresh[place], place, choice, tables)
        if grown:
          dirty.update(dict.fromkeys(users[place]))
    self._known.update(fresh)

  def _extend(
    self,
    table: dict[frozenset[Place], Chain],
    place: Place,
    choice: Choice,
    tables: list[dict[frozenset[Place], Chain]],
  ) -> bool:
    work = self.setting.work(place, choice)
    grown = False
    ranked = [sorted(t.values(), key=lambda c: (c.ops, sorted(c.needs)))[: self.parts] for t in tables]
    for parts in product(*ranked):
      needs = frozenset().union(*(part.needs for part in parts))
      ops = work + sum(part.ops for part in parts)
      old = table.get(needs)
      if old is not None and ops >= old.ops:
        continue
      if any(place == q for part in parts for q, _ in part.choices):
        continue
      if any(n < needs and c.ops <= ops for n, c in table.items()):
        continue
      picked: dict[Place, Choice] = {place: choice}
      for part in parts:
        for q, c in part.choices:
          picked.setdefault(q, c)
      table[needs] = Chain(ops, needs, tuple(picked.items()))
      grown = True
    return grown

  def _elementwise(self, place: Place) -> list[Choice]:
    g, (c, phase) = self.setting.g, place
    reason = self.setting.refused(place)
    if reason:
      self.setting.counts.prune(reason)
      return []
    nodes = g.nodes(c)
    for n in nodes:
      if n.op in (CONST, EXTENT):
        return [Choice("scalar", n)]
    if c in self.setting.inputs:
      if self.setting.too_large(place):
        self.setting.counts.prune("a tile of a tensor that no block has the memory for")
        return []
      return [Choice("load", nodes[0])]
    return [
      Choice("pure", n, tuple((g.find(k), phase) for k in n.children))
      for n in nodes
      if n.op not in HEAVY and n.op != RUN
    ]
