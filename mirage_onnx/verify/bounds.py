"""How likely a random draw is to miss a difference: the error bound of docs/verification.md.

    miss <= (D + C(m, 2) 2 A) / p + (2 W + C(m, 2) 4 B) k

m counts the function evaluations *that an element depends on*: a maximum counts as four (two
images, one back, its exponent), and exp(0) = 1 as one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb, prod

from mirage_onnx.ir import term as t
from mirage_onnx.ir.block_ops import MAXIMA, Kind, kind_of
from mirage_onnx.ir.functions import ELEMENTWISE, EXPONENTS, evaluations
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.ugraph import KernelParams, UGraph, ugraph_extents
from mirage_onnx.verify.degree import Degree, DegreeAlgebra, Past, Size, exponential_size
from mirage_onnx.verify.exponential_terms import TermsAlgebra, differences
from mirage_onnx.verify.field import P, Q
from mirage_onnx.verify.fold import KernelFold, fold_terms, fold_ugraph, repeats


@dataclass(frozen=True, slots=True)
class DependenceBound:
  """What one output element of a program can depend on."""

  degree: Degree
  evaluations: int


def largest_root(n: int, k: int) -> int:
  """The largest N with N^k < n."""
  root = int(n ** (1 / k))
  while root**k >= n:
    root -= 1
  while (root + 1) ** k < n:
    root += 1
  return root


def sparse_zeros(terms: int) -> Fraction:
  """The share of omega's at which a sum of ``terms`` different powers of omega can vanish.

  Canetti et al., "On the statistical properties of Diffie-Hellman distributions" (2000), lemma 7;
  derived in docs/verification.md.
  """
  if terms <= 1:
    return Fraction(0)
  return min(Fraction(2, largest_root(Q, terms - 1)), Fraction(1)) if terms < 64 else Fraction(1)


def miss_probability(left: DependenceBound, right: DependenceBound, *, logs: bool = False) -> float:
  """The bound for one draw; ``logs``: values with equal exponentials are taken for equal."""
  x, y = left.degree, right.degree
  pairs = comb(left.evaluations + right.evaluations + 1, 2)
  past = x.past.union(y.past)
  value, shift = _difference(x.size, y.size)
  if logs:
    images = exponential_size(x.linear), exponential_size(y.linear)
    past = past.union(Past(scales=x.linear.scales | y.linear.scales))
    other = _difference(*images)
    value, shift = value + other[0], shift + other[1]
  k, collapse = _shift_zeros(past.scales, max(shift, 2 * past.shift))
  risk = Fraction(value + pairs * 2 * past.value, P) + collapse
  risk += (2 * shift + pairs * 4 * past.shift) * k
  return float(min(risk, Fraction(1)))


def _difference(x: Size, y: Size) -> tuple[int, int]:
  """Value and shift degree of the numerator of x - y."""
  value = max(x.value.n + y.value.d, y.value.n + x.value.d)
  return value, max(x.shift.n + y.shift.d, y.shift.n + x.shift.d)


def _shift_zeros(scales: frozenset[tuple[Term, int]], weight: int) -> tuple[Fraction, Fraction]:
  """k, and the chance that different combinations of the scales fall on one residue modulo q."""
  if len(scales) <= 1:
    return Fraction(1, Q), Fraction(0)
  degree = max(d for _, d in scales)
  combinations = (4 * weight + 1) ** len(scales)
  return Fraction(1, largest_root(Q, len(scales))), Fraction(combinations * degree, Q)


def pair_miss_probability(left: DependenceBound, right: DependenceBound, terms: tuple[int, int]) -> float:
  """The bound for one draw in Z_p x Z_q, where a difference has ``terms`` exponential terms.

  ``terms``: their number, and how many exponentials are multiplied in one of them. The exponents
  are quotients of degree <= A in Z_q; two of them agree with probability <= 2 J A / q.
  """
  count, factors = terms
  argument = left.degree.past.union(right.degree.past).value
  same = Fraction(comb(count, 2) * 2 * factors * argument, Q)
  plain = Fraction(miss_probability(left, right))
  return float(min(plain + same + sparse_zeros(count), Fraction(1)))


def exponential_terms(
  value: Term,
  graph: UGraph,
  output: str,
  params: Sequence[KernelParams],
  extents: Mapping[str, int],
) -> tuple[int, int]:
  """``terms`` of ``pair_miss_probability`` for one output."""
  mine = fold_terms(TermsAlgebra(), [value], extents)[value]
  theirs, _ = fold_ugraph(TermsAlgebra(), graph, params, extents)
  return differences(mine, theirs[output])


def root_miss_probability(risk: float, roots: int) -> float:
  """``risk`` where ``roots`` square roots are roots and not random functions.

  The product of a difference over all signs of its roots is a polynomial in the inputs, of
  2^roots times the degree. Inputs at which all roots exist are half as many for each (Weil's
  bound leaves out less than a tenth of that, at degrees far below the square root of p).
  """
  return min(risk * 5.0 ** min(roots, 32), 1.0)


def root_evaluations(
  value: Term,
  graph: UGraph,
  output: str,
  params: Sequence[KernelParams],
  extents: Mapping[str, int],
) -> int:
  """How many square roots an element of one output depends on, in both programs."""
  theirs = ugraph_bounds(graph, params, extents, shifts=False, calls=_root_calls)[output]
  return _term_evaluations(value, extents, _root_calls) + theirs.evaluations


def _calls(op: str, exponent: object, reduced: int) -> int:
  """Evaluations of random functions for one element; ``reduced``: arguments of a maximum."""
  if op in MAXIMA:
    return 2 + reduced
  if op in (t.POW, "powr"):
    return int(isinstance(exponent, Fraction) and exponent.denominator != 1)
  return evaluations(op) if op in ELEMENTWISE else 0


def _root_calls(op: str, exponent: object, reduced: int) -> int:
  exponent = EXPONENTS.get(op, exponent)
  return int(isinstance(exponent, Fraction) and exponent.denominator == 2)


Calls = Callable[[str, object, int], int]


def term_bound(root: Term, extents: Mapping[str, int], *, shifts: bool = True) -> DependenceBound:
  """The bound of an element of ``root``; ``shifts``: in the free exponential."""
  return _term_bound(root, tuple(sorted(extents.items())), shifts)


@lru_cache(maxsize=256)
def _term_bound(root: Term, items: tuple[tuple[str, int], ...], shifts: bool) -> DependenceBound:
  """One region is compared with many candidates."""
  extents = dict(items)
  degrees = fold_terms(DegreeAlgebra(shifts=shifts), [root], extents)
  return DependenceBound(degrees[root], _term_evaluations(root, extents, _calls))


def _term_evaluations(root: Term, extents: Mapping[str, int], calls: Calls) -> int:
  nodes = t.walk([root])
  reduced: dict[Term, set[str]] = {node: set() for node in nodes}
  evaluations = 0
  for node in reversed(nodes):
    gone = _axes(node) if node.op in t.REDUCTIONS else ()
    for a in node.args:
      reduced[a] |= {*reduced[node], *gone}
    count = calls(node.op, node.attr, prod(extents[a] for a in gone))
    evaluations += count * prod([extents[a] for a in node.axes if a in reduced[node]])
  return evaluations


def _axes(node: Term) -> tuple[str, ...]:
  assert isinstance(node.attr, tuple)
  return node.attr


def ugraph_bounds(
  graph: UGraph,
  params: Sequence[KernelParams],
  extents: Mapping[str, int],
  *,
  shifts: bool = True,
  calls: Calls = _calls,
) -> dict[str, DependenceBound]:
  """Tensor name -> bound of one of its elements; ``calls`` counts what is evaluated."""
  degrees, kernels = fold_ugraph(DegreeAlgebra(shifts=shifts), graph, params, extents)
  whole = ugraph_extents(graph, params, extents)
  bounds = {x.name: DependenceBound(degrees[x.name], 0) for x in graph.tensors if x.name in degrees}
  for folded in kernels:
    for save in folded.kernel.saves:
      count = _evaluations(folded, save.arg, bounds, whole, calls)
      bounds[save.tensor] = DependenceBound(degrees[save.tensor], count)
  return bounds


def _evaluations(
  folded: KernelFold[Degree],
  root: int,
  tensors: Mapping[str, DependenceBound],
  extents: Mapping[str, int],
  calls: Calls,
) -> int:
  """Evaluations under one element of block value ``root``, counted from above."""
  ops = folded.kernel.ops
  reduced: dict[int, set[str]] = {root: set()}
  count = 0
  for index in range(root, -1, -1):
    if index not in reduced:
      continue
    op = ops[index]
    for a in op.args:
      reduced.setdefault(a, set()).update(reduced[index] | set(op.reduced))
    times = {Kind.ACCUMULATOR: folded.iterations, Kind.CLUSTER: folded.ranks, Kind.RUNNING: 2}
    kind = kind_of(op.op)
    inside = times[kind] if kind in times else prod(extents[a] for a in op.reduced)
    here = tensors[op.tensor].evaluations if op.op == "load" else calls(op.op, op.value, inside)
    repeated = prod(extents[a] for a in op.axes if a in reduced[index])
    count += here * repeats(folded, index) * repeated
  return count
