"""The axioms: which spellings of a value are equal, as a table with the algebra on the line.

Commutativity, associativity, constant folding, powers and the mean are already in the normal form
of terms. Each axiom maps one node of a class to classes that are equal to it; ``saturate`` applies
all of them until nothing new appears.

There is no cancellation (x * y / y is not x): it fails where y = 0, and with it every term would be
a spelling of every class, so that nothing could be pruned. A shift that leaves a quotient is the
one exception: exp(-m) has no zero.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from mirage_onnx import deadline
from mirage_onnx.ir.term import ADD, MUL, SUM
from mirage_onnx.superopt import shift_axioms as shift
from mirage_onnx.superopt.egraph import PARTS, SCALED, EGraph, ENode, is_part
from mirage_onnx.superopt.shift_axioms import factors_of as _factors
from mirage_onnx.superopt.space import Space

Apply = Callable[[EGraph, ENode], Iterator[int]]
NO_NEEDS = Space(general=False, split=False)


@dataclass(frozen=True, slots=True)
class Axiom:
  """``lhs = rhs`` where ``condition`` holds; ``apply`` yields classes equal to a lhs node."""

  name: str
  lhs: str
  rhs: str
  condition: str
  apply: Apply
  #: Its right side is a program of a space with general kernels or parts only.
  needs: Space = NO_NEEDS

  def is_in(self, space: Space) -> bool:
    return self.needs.general <= space.general and self.needs.split <= space.split


def _spellings(g: EGraph, c: int, op: str) -> Iterator[tuple[int, ...]]:
  """The argument lists of all ``op`` spellings of a class."""
  for n in g.nodes(c):
    if n.op == op:
      yield n.children


def _pull_out(g: EGraph, node: ENode) -> Iterator[int]:
  """Every factor that does not vary over k: to leave some inside only makes more work."""
  if node.op != SUM:
    return
  axes = set(node.attr)  # type: ignore[arg-type]
  for factors in list(_factors(g, node.children[0])):
    for k in sorted(axes):
      inner = [f for f in factors if k in g.axes(f)]
      outer = [f for f in factors if k not in g.axes(f)]
      if not outer or not inner:
        continue
      core = g.insert(ENode(SUM, (g.product(inner),), (k,)))
      rest = tuple(sorted(axes - {k}))
      body = g.product([*outer, core])
      yield g.insert(ENode(SUM, (body,), rest)) if rest else body


def _push_in(g: EGraph, node: ENode) -> Iterator[int]:
  if node.op != SUM:
    return
  axes = set(node.attr)  # type: ignore[arg-type]
  if any(map(is_part, axes)):
    return  # Parts are added up last.
  for factors in list(_factors(g, node.children[0])):
    for i, f in enumerate(factors):
      others = factors[:i] + factors[i + 1 :]
      outer_axes = {a for o in others for a in g.axes(o)}
      for inner in g.nodes(f):
        if inner.op != SUM:
          continue
        bound = set(inner.attr)  # type: ignore[arg-type]
        if not others or bound & (outer_axes | axes) or any(map(is_part, bound)):
          continue
        for parts in list(_factors(g, inner.children[0])):
          body = g.product([*others, *parts])
          yield g.insert(ENode(SUM, (body,), tuple(sorted(axes | bound))))


def _sum_of_add(g: EGraph, node: ENode) -> Iterator[int]:
  if node.op != SUM:
    return
  axes = set(node.attr)  # type: ignore[arg-type]
  for factors in list(_factors(g, node.children[0])):
    for i, f in enumerate(factors):
      others = [*factors[:i], *factors[i + 1 :]]
      for terms in list(_spellings(g, f, ADD)):
        if len({g.axes(t) for t in terms}) < 2:
          continue
        parts = []
        for t in terms:
          body = g.product([*others, t])
          missing = axes - set(g.axes(body))
          if missing:
            break
          parts.append(g.insert(ENode(SUM, (body,), node.attr)))
        else:
          yield g.total(parts)


def _collect(g: EGraph, node: ENode) -> Iterator[int]:
  if node.op != ADD:
    return
  spelled = [list(_factors(g, t)) for t in node.children]
  if any(len(s) > 4 for s in spelled):
    return
  first = {f for fs in spelled[0] for f in fs}
  for common in sorted(first):
    rests: list[int] | None = []
    for options in spelled:
      hit = next((fs for fs in options if common in fs and len(fs) > 1), None)
      if hit is None:
        rests = None
        break
      at = hit.index(common)
      rests.append(g.product(hit[:at] + hit[at + 1 :]))  # type: ignore[union-attr]
    if rests:
      yield g.product([common, g.total(rests)])


def _flatten(g: EGraph, node: ENode) -> Iterator[int]:
  if node.op not in (MUL, ADD):
    return
  for i, f in enumerate(node.children):
    for inner in list(_spellings(g, f, node.op)):
      if f in inner:
        continue
      children = [*node.children[:i], *node.children[i + 1 :], *inner]
      if len(children) <= 8:
        yield g.product(children) if node.op == MUL else g.total(children)


def groupings(
  g: EGraph, factors: tuple[int, ...], axis: str, *, batched: bool = False
) -> Iterator[tuple[int, int]]:
  """Ways to write a product as the two operands of a contraction over ``axis``.

  They share ``axis`` and have at most one other axis each; a ``batched`` contraction may have
  more axes, also shared ones, but one operand at least has an axis that the other lacks.
  Operands that no node spells yet are inserted.
  """
  seen: set[tuple[int, int]] = set()
  if is_part(axis):
    return  # Parts are added up in fp32, one by one.
  # Scalars stay together, on either side.
  scalars = tuple(f for f in factors if not g.axes(f))
  first, *rest = [f for f in factors if g.axes(f)] or [factors[0]]
  if not 1 <= len(rest) <= 5:
    return
  for sides in product((0, 1), repeat=len(rest) + bool(scalars)):
    left = [first, *(f for f, s in zip(rest, sides, strict=False) if s == 0)]
    right = [f for f, s in zip(rest, sides, strict=False) if s == 1]
    if not right:
      continue
    (right if scalars and sides[-1] else left).extend(scalars)
    axes = [{a for f in side for a in g.axes(f)} for side in (left, right)]
    if axis not in axes[0] & axes[1] or axes[0] == axes[1]:
      continue
    if not batched and (axes[0] & axes[1] != {axis} or max(map(len, axes)) > 2):
      continue
    a, b = sorted((g.find(g.product(left)), g.find(g.product(right))))
    if (a, b) not in seen:
      seen.add((a, b))
      yield a, b


def _group(g: EGraph, node: ENode) -> Iterator[int]:
  yield from _grouped(g, node, batched=False)


def _group_batched(g: EGraph, node: ENode) -> Iterator[int]:
  yield from _grouped(g, node, batched=True)


def _grouped(g: EGraph, node: ENode, *, batched: bool) -> Iterator[int]:
  """Products are flat, so what appears are the classes of the two operands."""
  if node.op not in (SUM, SCALED, *PARTS) or len(node.attr) != 1:  # type: ignore[arg-type]
    return
  for factors in list(_factors(g, node.children[0])):
    for a, b in list(groupings(g, factors, node.attr[0], batched=batched)):  # type: ignore[index]
      product_ = g.product((a, b))
      yield g.insert(ENode(node.op, (product_, *node.children[1:]), node.attr))


_GENERAL, _SPLIT = Space(general=True, split=False), Space(general=True, split=True)

AXIOMS: tuple[Axiom, ...] = (
  Axiom("pull-out", "sum[k](x*y)", "x * sum[k](y)", "k not in x", _pull_out),
  Axiom("push-in", "sum[k](x * sum[j](y))", "sum[k,j](x*y)", "j not in x, j != k", _push_in),
  Axiom(
    "sum-of-add",
    "sum[k](f * (x+y))",
    "sum[k](f*x) + sum[k](f*y)",
    # Over equal axes it only doubles the contractions; otherwise pull-out then applies.
    "x and y vary over different axes",
    _sum_of_add,
  ),
  Axiom("collect", "x*y + x*z", "x * (y+z)", "", _collect),
  Axiom("flatten", "(x*y)*z, (x+y)+z", "x*y*z, x+y+z", "", _flatten),
  Axiom(
    "group",
    "sum[k](x*y*z)",
    "sum[k]((x*y)*z)",
    "operands share k only, operands differ in an axis, operands have at most two axes",
    _group,
  ),
  Axiom(
    "group-batched",
    "sum[k](x*y*z)",
    "sum[k]((x*y)*z)",
    "operands share k, operands differ in an axis",
    _group_batched,
    _GENERAL,
  ),
  Axiom("nested-sum", "sum[j,k](x*y)", "sum[j](sum[k](x*y))", "", shift.nested_sum, _GENERAL),
  Axiom("exp-of-sum", "exp(x)*exp(y)", "exp(x+y)", "", shift.exp_of_sum, _GENERAL),
  Axiom(
    "running-maximum",
    "sum[k](y * exp(s-rmax[k](s))), psum[k](y * exp(s-pmax[k](s)))",
    "scaled[k](y * exp(s-run(rmax[k](s))); rmax[k](s)), pscaled[k](y * exp(s-run(pmax[k](s))); pmax[k](s))",
    "",
    shift.running,
    _GENERAL,
  ),
  Axiom(
    "part-shift",
    "sum[k](y * exp(s-max(rmax[k](s),p)))",
    "sum[k](y * exp(s-rmax[k](s))) * exp(rmax[k](s)-max(rmax[k](s),p))",
    "k not in p",
    shift.part_shift,
    _GENERAL,
  ),
  Axiom(
    "drop-shift",
    "sum[k](y * exp(s-m)) / sum[k](z * exp(s-m)), exp(s-m) / sum[k](z * exp(s-m))",
    "sum[k](y * exp(s)) / sum[k](z * exp(s)), exp(s) / sum[k](z * exp(s))",
    "m = rmax[k](c), m varies over axes of s only",
    shift.drop_shift,
    _GENERAL,
  ),
  Axiom(
    "split",
    "sum[k](x), rmax[k](x)",
    "sum[k'](psum[k](x)), rmax[k'](pmax[k](x))",
    "k' not in x",
    shift.split_sum,
    _SPLIT,
  ),
  Axiom(
    "split-shifted",
    "sum[k](y * exp(s-m))",
    "sum[k'](psum[k](y * exp(s-pmax[k](s))) * exp(pmax[k](s)-m))",
    "m = rmax[k](s), k' not in y, k' not in s",
    shift.split_shifted,
    _SPLIT,
  ),
)


class Saturation(StrEnum):
  """Why saturation stopped."""

  SATURATED = "SATURATED"
  ITERATIONS = "ITERATIONS"
  NODES = "NODES"


def saturate(
  g: EGraph, axioms: tuple[Axiom, ...] = AXIOMS, *, max_iterations: int = 4, max_nodes: int = 400
) -> Saturation:
  """Apply ``axioms`` to all nodes, breadth first, until nothing changes or a limit is reached."""
  for _ in range(max_iterations):
    before = (len(g), g.size)
    for c in list(g.classes()):
      deadline.check()
      for node in g.nodes(c):
        for axiom in axioms:
          for equal in list(axiom.apply(g, node)):
            g.union(c, equal)
          if g.size > max_nodes:
            g.rebuild()
            return Saturation.NODES
    g.rebuild()
    if (len(g), g.size) == before:
      return Saturation.SATURATED
  return Saturation.ITERATIONS
