"""Instructions as a check of registers sees them, of PTX and of machine code alike, and their loops."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class WgmmaStep:
  """A wgmma: ``columns``, its registers of operand A (none: shared memory), those of sums that it adds to."""

  columns: int
  a: tuple[str, ...]
  sums: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MachineStep:
  """An instruction.

  ``writes``: registers. ``source``: the one that it copies, if it does nothing else. ``plain``: a constant or
  what memory holds. ``may``: only if a predicate says so. ``to``: places in the list that it may jump to;
  ``falls``: whether the next one may follow. ``ends``: groups of wgmma that may be under way behind it.
  ``commits``: it ends a group. ``reads``: of what computes with floats, in machine code only.
  """

  writes: tuple[str, ...] = ()
  source: str | None = None
  plain: bool = False
  may: bool = False
  to: tuple[int, ...] = ()
  falls: bool = True
  product: WgmmaStep | None = None
  commits: bool = False
  ends: int | None = None
  reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineLoop:
  """``blocks``: of the flow, ``head`` first to run."""

  head: int
  blocks: frozenset[int]


class MachineFlow:
  """Steps in blocks: (first, end) of each, and the blocks that may follow it."""

  def __init__(self, steps: Sequence[MachineStep]) -> None:
    self.steps = steps
    heads = {0} | {t for s in steps for t in s.to}
    heads |= {n + 1 for n, s in enumerate(steps) if s.to or not s.falls}
    firsts = sorted(h for h in heads if h < len(steps))
    self.blocks = list(zip(firsts, [*firsts[1:], len(steps)], strict=True))
    at = {first: n for n, first in enumerate(firsts)}
    self.after: list[list[int]] = []
    for _, end in self.blocks:
      last = steps[end - 1]
      to = [at[t] for t in last.to]
      self.after.append(to + ([at[end]] if last.falls and end < len(steps) else []))
    self.before: list[list[int]] = [[] for _ in self.blocks]
    for n, to in enumerate(self.after):
      for t in to:
        self.before[t].append(n)

  def block_of(self, step: int) -> int:
    """The block of a step."""
    return bisect_right(self.blocks, (step, len(self.steps))) - 1

  @cached_property
  def registers_of_products(self) -> set[str]:
    """Those that products read, and those that are copied into them."""
    found = {r for s in self.steps if (p := s.product) is not None for r in (*p.a, *p.sums)}
    copies = [s for s in self.steps if s.source is not None]
    size = -1
    while size != len(found):
      size = len(found)
      found |= {s.source for s in copies if s.source is not None and s.writes[0] in found}
    return found

  @cached_property
  def dominators(self) -> dict[int, int]:
    """Of each block that can be reached, the blocks that every way to it passes: a bit for each."""
    order, todo = [0], [0]
    seen = {0}
    while todo:
      for t in self.after[todo.pop()]:
        if t not in seen:
          seen.add(t)
          order.append(t)
          todo.append(t)
    order.sort()
    every = (1 << len(self.blocks)) - 1
    found = dict.fromkeys(order, every)
    found[0] = 1
    changed = True
    while changed:
      changed = False
      for n in order[1:]:
        new = every
        for p in self.before[n]:
          new &= found.get(p, every)
        new |= 1 << n
        if new != found[n]:
          changed, found[n] = True, new
    return found

  @cached_property
  def loops(self) -> Sequence[MachineLoop]:
    """Natural loops, one of each head."""
    bodies: dict[int, set[int]] = {}
    for n, over in self.dominators.items():
      for head in (t for t in self.after[n] if over >> t & 1):
        body = bodies.setdefault(head, {head})
        todo = [n]
        while todo:
          if (b := todo.pop()) not in body:
            body.add(b)
            todo += [p for p in self.before[b] if p in self.dominators]
    return [MachineLoop(h, frozenset(b)) for h, b in sorted(bodies.items())]

  def loops_of(self, step: int) -> list[MachineLoop]:
    """Those around a step, the innermost first."""
    block = self.block_of(step)
    return sorted((x for x in self.loops if block in x.blocks), key=lambda x: len(x.blocks))
