"""Axes that always occur side by side are one axis: regions are equal however dimensions were split."""

from collections.abc import Mapping, Set
from itertools import pairwise
from math import prod

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import EXTENT, REDUCTIONS, substitute, walk
from mirage_onnx.match.axes import Dims, NamedSteps
from mirage_onnx.match.views import Viewed

#: Elements of the longest row that one block holds.
ROW = 1 << 15


def places_in_memory(name: str, found: Viewed) -> tuple[int, ...]:
  """For every dimension a number that it shares with those that memory has beside it.

  A part of a dimension shares it with none: what lies behind it in memory is not in the view. Nor does
  one whose neighbours are one element.
  """
  shape = found.tensor(name).shape or ()
  view = found.views.get(name)
  fulls = view.fulls if view else shape
  parts = [n != full for n, full in zip(shape, fulls, strict=True)]
  if view and view.repeats:
    parts = [part or r > 1 for part, r in zip(parts, view.repeats, strict=True)]
  if name in found.views and found.views[name].picks:
    parts[0] = True
  return tuple(2 * sum(parts[:d]) + parts[d] for d in range(len(parts)))


def _row(dims: Dims, places: tuple[int, ...]) -> tuple[str, ...]:
  """The axes in memory order, with nothing between those that have other elements between."""
  found: list[str] = []
  for i, own in enumerate(dims):
    found += [""] if i and places[i] != places[i - 1] else []
    found += [a for a in own if a not in found]
  return tuple(found)


def join_axes(named: NamedSteps, places: Mapping[str, tuple[int, ...]], runtime: Set[str]) -> NamedSteps:
  """Join axes that every input, output and reduction has side by side, in this order.

  One that is joined with one in ``runtime``, which a run counts, is counted by it too.
  ``places``: of the inputs and outputs (``places_in_memory``).
  """
  while True:
    pair = _mergeable(named, places, runtime)
    if pair is None:
      return named
    first, second = pair
    axes = {
      k: tuple(tuple(dict.fromkeys(second if a == first else a for a in d)) for d in v)
      for k, v in named.axes.items()
    }
    extents = {k: v for k, v in named.extents.items() if k != first}
    extents[second] = named.extents[first] * named.extents[second]
    fresh = {i: t.input_(i, (a for d in axes[i] for a in d)) for i in places}
    names = list(named.terms)
    terms = substitute(named.terms.values(), fresh, {first: second})
    named = NamedSteps(axes, extents, dict(zip(names, terms, strict=True)))
    runtime = runtime - {first} | ({second} if runtime & set(pair) else set())


def _mergeable(
  named: NamedSteps, places: Mapping[str, tuple[int, ...]], runtime: Set[str]
) -> tuple[str, str] | None:
  rows = [_row(named.axes[x], own) for x, own in places.items()]
  reduced = [
    set(u.attr)  # type: ignore[arg-type]
    for u in walk(named.terms[x] for x in places)
    if u.op in (*REDUCTIONS, EXTENT)
  ]
  fixed = sum(a not in runtime for a in named.extents)  # threads share out one of these
  candidates = {pair for r in rows for pair in pairwise(r) if all(pair)}
  # First what a reshape split: without it, the region would be the same.
  split = {pair for x in places for d in named.axes[x] for pair in pairwise(d)}
  for pair in sorted(candidates, key=lambda pair: (pair not in split, pair)):
    first, second = pair
    mixed = (first in runtime) != (second in runtime)
    together = (not mixed or fixed > 1) and all(
      (first in r) == (second in r) and (first not in r or r.index(second) == r.index(first) + 1)
      for r in rows
    )
    together = together and all((first in s) == (second in s) for s in reduced)
    # Of two, one is for the grid and one for the threads.
    if together and (len(named.extents) > 2 or _is_short_row(named, pair, reduced, runtime)):
      return pair
  return None


def _is_short_row(
  named: NamedSteps, pair: tuple[str, str], reduced: list[set[str]], runtime: Set[str]
) -> bool:
  """Whether the last two axes are better one: both are reduced, and neither is one for the grid."""
  size = prod(named.extents[a] for a in pair)
  return any(pair[0] in s for s in reduced) and runtime.isdisjoint(pair) and size <= ROW
