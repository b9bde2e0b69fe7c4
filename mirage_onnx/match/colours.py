"""Colours of terms and axes by how they are used, whatever they are called: colour refinement."""

import hashlib
from collections.abc import Mapping, Set

from mirage_onnx.ir.term import COMMUTATIVE, EXTENT, INPUT, REDUCTIONS, Term, walk

_EMPTY = hashlib.blake2b(digest_size=10)


def digest(*parts: object) -> str:
  return _digest(*map(str, parts))


def _digest(*parts: str) -> str:
  """Of texts. To keep the digests that regions share costs more than to make them again."""
  made = _EMPTY.copy()
  made.update("|".join(parts).encode())
  return made.hexdigest()


def colours(
  terms: tuple[Term, ...],
  start: Mapping[str, str],
  axes: Mapping[str, tuple[str, ...]],
  runtime: Set[str],
) -> tuple[dict[Term, str], dict[str, str]]:
  """Colours of all terms and axes after refinement: equal colours mean equal use."""
  nodes = walk(terms)
  place = {u: i for i, u in enumerate(nodes)}
  args = [[place[a] for a in u.args] for u in nodes]
  free = [u.op in COMMUTATIVE for u in nodes]
  reduced = [bound(u) for u in nodes]
  inputs = dict(start)
  names = sorted({a for u in nodes for a in u.axes} | {a for x in axes.values() for a in x})
  axis = {a: "runtime" if a in runtime else "" for a in names}
  down: list[str] = []
  for _ in range(4):
    # Of axes that terms share, and of heads without: found once a round.
    over = {x: sorted(axis[a] for a in x) for x in {u.axes for u in nodes}}
    up: list[str] = []
    for u, of, any_order, ends in zip(nodes, args, free, reduced, strict=True):
      seen = [up[a] for a in of]
      if any_order:
        seen.sort()
      if u.op == INPUT:
        own = inputs[str(u.attr)]
      else:
        own = _digest(*sorted(axis[a] for a in ends)) if ends else str(u.attr)
      up.append(_digest(u.op, own, *seen, *over[u.axes]))
    context: list[list[str]] = [[] for _ in nodes]
    for r in terms:
      context[place[r]].append("root")
    down = up  # in place, from the roots: the colour of a term is no longer read where it is replaced
    for i in range(len(nodes) - 1, -1, -1):
      context[i].sort()
      down[i] = _digest(up[i], *context[i])
      if free[i] and args[i]:  # no place of its own
        anywhere = _digest(down[i], "")
        for a in args[i]:
          context[a].append(anywhere)
        continue
      for k, a in enumerate(args[i]):
        context[a].append(_digest(down[i], str(k)))
    for u, colour in zip(nodes, down, strict=True):
      if u.op == INPUT:
        inputs[str(u.attr)] = colour
    use: dict[str, list[str]] = {a: [] for a in names}
    for u, colour, ends in zip(nodes, down, reduced, strict=True):
      if u.op == INPUT:
        held = axes[str(u.attr)]
        for x in u.axes:
          use[x].append(_digest("has", colour, str(held.index(x))))
      elif u.axes:
        has = _digest("has", colour, "")
        for x in u.axes:
          use[x].append(has)
      for x in ends:
        use[x].append(_digest("reduces", colour))
    axis = {a: _digest(axis[a], *sorted(use[a])) for a in names}
  return dict(zip(nodes, down, strict=True)), axis


def bound(u: Term) -> tuple[str, ...]:
  """The axes that a reduction or an extent names."""
  return u.attr if u.op in (*REDUCTIONS, EXTENT) and isinstance(u.attr, tuple) else ()
