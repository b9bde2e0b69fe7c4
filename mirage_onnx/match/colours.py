"""Colours of terms and axes by how they are used, whatever they are called: colour refinement."""

import hashlib
from collections.abc import Mapping, Set
from functools import lru_cache

from mirage_onnx.ir.term import COMMUTATIVE, EXTENT, INPUT, REDUCTIONS, Term, walk

#: Digests that are not made again: regions of one program share most of what they compute.
KEPT = 1 << 16


@lru_cache(KEPT, typed=True)
def digest(*parts: object) -> str:
  return hashlib.blake2b("|".join(map(str, parts)).encode(), digest_size=10).hexdigest()


def colours(
  terms: tuple[Term, ...],
  start: Mapping[str, str],
  axes: Mapping[str, tuple[str, ...]],
  runtime: Set[str],
) -> tuple[dict[Term, str], dict[str, str]]:
  """Colours of all terms and axes after refinement: equal colours mean equal use."""
  nodes = walk(terms)
  inputs = dict(start)
  names = sorted({a for u in nodes for a in u.axes} | {a for x in axes.values() for a in x})
  axis = {a: "runtime" if a in runtime else "" for a in names}
  down: dict[Term, str] = {}
  for _ in range(4):
    up: dict[Term, str] = {}
    for u in nodes:
      args = [up[a] for a in u.args]
      if u.op in COMMUTATIVE:
        args.sort()
      own = inputs[str(u.attr)] if u.op == INPUT else _attr_colour(u, axis)
      up[u] = digest(u.op, own, *args, *sorted(axis[a] for a in u.axes))
    context: dict[Term, list[str]] = {u: [] for u in nodes}
    for r in terms:
      context[r].append("root")
    for u in reversed(nodes):
      seen = digest(up[u], *sorted(context[u]))
      for i, a in enumerate(u.args):
        place = "" if u.op in COMMUTATIVE else str(i)
        context[a].append(digest(seen, place))
    down = {u: digest(up[u], *sorted(context[u])) for u in nodes}
    for u in nodes:
      if u.op == INPUT:
        inputs[str(u.attr)] = down[u]
    use: dict[str, list[str]] = {a: [] for a in names}
    for u in nodes:
      for x in u.axes:
        at = axes[str(u.attr)].index(x) if u.op == INPUT else ""
        use[x].append(digest("has", down[u], at))
      for x in bound(u):
        use[x].append(digest("reduces", down[u]))
    axis = {a: digest(axis[a], *sorted(use[a])) for a in names}
  return down, axis


def bound(u: Term) -> tuple[str, ...]:
  """The axes that a reduction or an extent names."""
  return u.attr if u.op in (*REDUCTIONS, EXTENT) and isinstance(u.attr, tuple) else ()


def _attr_colour(u: Term, axis: Mapping[str, str]) -> str:
  return digest(*sorted(axis[a] for a in bound(u))) if bound(u) else str(u.attr)
