"""Axioms about exponentials, maxima, and reductions in parts: the rules behind ``axioms.py``.

A *shift* of exp(s - m) is a class m that is subtracted in the exponent. Where m is the maximum over
k, the shift can follow a running maximum (Milakov, Gimelshein 2018), be that of a part of k, or be
left out of a quotient.
"""

from collections.abc import Iterator
from fractions import Fraction

from mirage_onnx.ir.term import ADD, CONST, MAXR, MUL, POW, SUM
from mirage_onnx.superopt.egraph import (
  PMAX,
  PSCALED,
  PSUM,
  RUN,
  SCALED,
  EGraph,
  ENode,
  is_part,
  part_of,
)


def factors_of(g: EGraph, c: int) -> Iterator[tuple[int, ...]]:
  """The class as a product, in every way; a non-product is a product of one."""
  found = False
  for n in g.nodes(c):
    if n.op == MUL:
      found = True
      yield n.children
  if not found:
    yield (c,)


def _constant(g: EGraph, value: int) -> int:
  return g.insert(ENode(CONST, (), Fraction(value)))


def _negated(g: EGraph, c: int) -> Iterator[int]:
  """Classes x with c = (-1) * x."""
  minus = g.find(_constant(g, -1))
  for n in g.nodes(c):
    if n.op == MUL and len(n.children) == 2 and minus in map(g.find, n.children):
      yield next((x for x in map(g.find, n.children) if x != minus), minus)


def _minus(g: EGraph, c: int) -> int:
  return g.product((_constant(g, -1), c))


def _maxima(g: EGraph, c: int, op: str, axis: str) -> Iterator[int]:
  """What ``c`` is the maximum of, over exactly this axis."""
  for n in g.nodes(c):
    if n.op == op and n.attr == (axis,):
      yield g.find(n.children[0])


def _shifts(g: EGraph, c: int) -> Iterator[tuple[int, tuple[int, ...]]]:
  """(m, rest) for each way to write the class as exp(sum of rest - m)."""
  for n in g.nodes(c):
    if n.op != "exp":
      continue
    for total in g.nodes(n.children[0]):
      if total.op != ADD:
        continue
      for i, part in enumerate(total.children):
        for m in _negated(g, part):
          yield m, total.children[:i] + total.children[i + 1 :]


def _shifted(g: EGraph, rest: tuple[int, ...], m: int | None) -> int:
  """exp(rest - m)."""
  parts = rest if m is None else (*rest, _minus(g, m))
  return g.insert(ENode("exp", (g.total(parts),)))


def _shifted_terms(g: EGraph, body: int) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
  """(m, rest, others): the body of a sum as exp(rest - m) * others."""
  for factors in list(factors_of(g, body)):
    for i, f in enumerate(factors):
      for m, rest in list(_shifts(g, f)):
        yield m, rest, factors[:i] + factors[i + 1 :]


def running(g: EGraph, node: ENode) -> Iterator[int]:
  """A sum shifted by its maximum, as a running sum that is rescaled with a running maximum."""
  if node.op not in (SUM, PSUM) or len(node.over) != 1:
    return
  (k,) = node.over
  maximum, result = (MAXR, SCALED) if node.op == SUM else (PMAX, PSCALED)
  for m, rest, others in list(_shifted_terms(g, node.children[0])):
    if not any(True for _ in _maxima(g, m, maximum, k)):
      continue
    run = g.insert(ENode(RUN, (m,), (k,)))
    body = g.product((*others, _shifted(g, rest, run)))
    yield g.insert(ENode(result, (body, m), node.attr))


def part_shift(g: EGraph, node: ENode) -> Iterator[int]:
  """A sum shifted by a maximum of its own and others, shifted by its own and weighed."""
  if node.op != SUM or len(node.over) != 1:
    return
  (k,) = node.over
  for m, rest, others in list(_shifted_terms(g, node.children[0])):
    for own in list(_under_max(g, m)):
      if k in g.axes(m) or g.find(g.total(rest)) not in _maxima(g, own, MAXR, k):
        continue
      body = g.product((*others, _shifted(g, rest, own)))
      yield g.product((g.insert(ENode(SUM, (body,), node.attr)), _shifted(g, (own,), m)))


def _under_max(g: EGraph, c: int) -> Iterator[int]:
  """What ``c`` is the greatest of, elementwise."""
  for n in g.nodes(c):
    if n.op == "max":
      for x in map(g.find, n.children):
        yield x
        yield from _under_max(g, x)


def split_sum(g: EGraph, node: ENode) -> Iterator[int]:
  """A reduction as that of its parts; not where its terms are shifted by its own maximum."""
  if node.op not in (SUM, MAXR) or len(node.over) != 1:
    return
  (k,) = node.over
  body = g.find(node.children[0])
  if is_part(k) or part_of(k) in g.axes(body):
    return
  if any(True for _ in _own_maxima(g, body, k)):
    return
  part = g.insert(ENode(PSUM if node.op == SUM else PMAX, (body,), node.attr))
  yield g.insert(ENode(node.op, (part,), (part_of(k),)))


def _own_maxima(g: EGraph, body: int, k: str) -> Iterator[int]:
  for m, _, _ in list(_shifted_terms(g, body)):
    if any(True for _ in _maxima(g, m, MAXR, k)):
      yield m


def split_shifted(g: EGraph, node: ENode) -> Iterator[int]:
  """A shifted sum in parts, each shifted by its own maximum, weighed when they are added."""
  if node.op != SUM or len(node.over) != 1:
    return
  (k,) = node.over
  if is_part(k) or part_of(k) in g.axes(node.children[0]):
    return
  for m, rest, others in list(_shifted_terms(g, node.children[0])):
    for s in list(_maxima(g, m, MAXR, k)):
      pm = g.insert(ENode(PMAX, (s,), node.attr))
      body = g.product((*others, _shifted(g, rest, pm)))
      part = g.insert(ENode(PSUM, (body,), node.attr))
      weight = _shifted(g, (pm,), m)
      yield g.insert(ENode(SUM, (g.product((part, weight)),), (part_of(k),)))


def drop_shift(g: EGraph, node: ENode) -> Iterator[int]:
  """A quotient of shifted values without the shift, which both have."""
  if node.op != MUL:
    return
  for i, f in enumerate(node.children):
    below = [n.children[0] for n in g.nodes(f) if n.op == POW and n.attr == Fraction(-1)]
    for total in below:
      for n in list(g.nodes(total)):
        if n.op != SUM or len(n.over) != 1:
          continue
        for m, plain in list(_unshifted(g, n)):
          yield from _numerators(g, node.children, i, n.over[0], m, plain)


def _unshifted(g: EGraph, node: ENode) -> Iterator[tuple[int, int]]:
  """(m, the sum without its shift by m) of a sum whose terms are shifted by a maximum m."""
  (k,) = node.over
  for m, rest, others in list(_shifted_terms(g, node.children[0])):
    if (
      k not in g.axes(m)
      and set(g.axes(m)) <= {a for c in rest for a in g.axes(c)}
      and any(n.op == MAXR for n in g.nodes(m))
    ):
      body = g.product((*others, _shifted(g, rest, None)))
      yield m, g.insert(ENode(SUM, (body,), node.attr))


def _numerators(
  g: EGraph, children: tuple[int, ...], below: int, k: str, m: int, plain: int
) -> Iterator[int]:
  """The product with its divisor and one other factor both without their shift by m."""
  divisor = g.insert(ENode(POW, (plain,), Fraction(-1)))
  for i, f in enumerate(children):
    if i == below:
      continue
    rest = [c for j, c in enumerate(children) if j not in (i, below)]
    for top, free in list(_shifts(g, f)):
      if g.find(top) == g.find(m) and set(g.axes(m)) <= {a for c in free for a in g.axes(c)}:
        yield g.product((*rest, divisor, _shifted(g, free, None)))
    for n in list(g.nodes(f)):
      if n.op == SUM and n.attr == (k,):
        for top, bare in list(_unshifted(g, n)):
          if g.find(top) == g.find(m):
            yield g.product((*rest, divisor, bare))


def exp_of_sum(g: EGraph, node: ENode) -> Iterator[int]:
  """Two exponentials of a product as that of the sum."""
  if node.op != MUL:
    return
  exponents = [(i, n.children[0]) for i, c in enumerate(node.children)
               for n in g.nodes(c) if n.op == "exp"]  # fmt: skip
  for at, (i, x) in enumerate(exponents):
    for j, y in exponents[at + 1 :]:
      if i != j:
        rest = [c for n, c in enumerate(node.children) if n not in (i, j)]
        yield g.product((*rest, g.insert(ENode("exp", (g.total((x, y)),)))))


def nested_sum(g: EGraph, node: ENode) -> Iterator[int]:
  """A sum of products over several axes, as one over an axis inside one over the rest."""
  if node.op != SUM or len(node.over) < 2:
    return
  body = node.children[0]
  if not any(n.op == MUL for n in g.nodes(body)):
    return
  for k in node.over:
    rest = tuple(a for a in node.over if a != k)
    yield g.insert(ENode(SUM, (g.insert(ENode(SUM, (body,), (k,))),), rest))
