"""The three tests of equivalence, from the most to the least general.

free exponential   any program; the shift of a softmax cancels (``free_exponential``)
square root        programs with roots: sqrt(x)^2 = x, sqrt(x) sqrt(y) = sqrt(x y) (``square_root``)
exponent pair      exponentials that do not nest: exp(a) exp(b) = exp(a + b) (``exponent_pair``)

Each takes enough draws for its bound (``bounds``), or says that no number of draws is enough.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import chain
from math import ceil, log

import numpy as np

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Kernel, KernelParams, Region, UGraph
from mirage_onnx.ir import term as t
from mirage_onnx.ir.block_ops import MAXIMA
from mirage_onnx.ir.functions import ELEMENTWISE, opaque_parts
from mirage_onnx.verify import bounds
from mirage_onnx.verify.domain import Field
from mirage_onnx.verify.exponent_pair import ExponentPair
from mirage_onnx.verify.free_exponential import FreeExponential
from mirage_onnx.verify.random_test import Agreement, Difference, compare, random_inputs
from mirage_onnx.verify.reduced import Instantiation, reduced_instantiations
from mirage_onnx.verify.square_root import FreeExponentialRoots, SquareRoots, redraw, root_arguments

#: A valid element must be seen in this many draws.
LEAST_VALID = 2
ACCEPTED_RISK = 1e-9
#: Fewest and most draws at one instantiation.
DRAWS, MOST_DRAWS = 3, 24
MOST_ROOT_DRAWS, MOST_PAIR_DRAWS = 24, 96
#: Draws of a proof that has no bound.
HEURISTIC_DRAWS = 8


class Tier(StrEnum):
  """Which laws of the exponential and of the root a proof uses."""

  FREE_EXPONENTIAL = "free exponential"
  SQUARE_ROOT = "square root"
  EXPONENT_PAIR = "exponent pair"


@dataclass(frozen=True, slots=True)
class Proof:
  """Equivalence was tested in ``draws`` draws; a false accept has probability <= ``bound``.

  ``instantiation``: the extents and numbers of every test, one line each. ``heuristic``: no
  number of draws gives a bound (which is 1 then), and ``verify`` rejects unless told not to.
  ``partial``: a prover that knows several instances found it unsafe with the weights of some.
  ``graph``: what was proven, where the prover put factors in (``rescale.py``).
  """

  draws: int
  bound: float
  instantiation: str
  tier: Tier = Tier.FREE_EXPONENTIAL
  heuristic: bool = False
  partial: bool = False
  graph: UGraph | None = None


Outcome = Proof | Difference | Rejection


def functions(region: Region, graph: UGraph) -> frozenset[str]:
  """The opaque functions of both programs, with one name for all kinds of max and square root."""
  nodes = ((n.op, n.attr) for n in t.walk(region.terms))
  ops = ((o.op, o.value) for k in graph.kernels for o in k.ops)
  return frozenset().union(*(_heads(op, attr) for op, attr in chain(nodes, ops)))


def _heads(op: str, attr: object) -> frozenset[str]:
  if op in (t.POW, "powr"):
    return frozenset({"sqrt"} if isinstance(attr, Fraction) and attr.denominator == 2 else ())
  if op in MAXIMA:
    return frozenset({"max"})
  return opaque_parts(op) if op in ELEMENTWISE else frozenset()


@dataclass(frozen=True)
class Case:
  """A region and a µGraph to be compared."""

  region: Region
  graph: UGraph
  seed: int

  def generator(self, *salt: int) -> np.random.Generator:
    return np.random.default_rng([self.seed, 0x6D7567, *salt])

  @cached_property
  def instantiations(self) -> tuple[Instantiation, ...]:
    return reduced_instantiations(self.graph, self.region.extents)


def free_exponential(case: Case, heads: frozenset[str]) -> Outcome:
  """Tier 1: at every reduced instantiation, with a bound at each."""
  logs = {"exp", "log"} <= heads
  shifts = logs or {"exp", "max"} <= heads
  records = []
  for number, sizes in enumerate(case.instantiations):
    mine, theirs = _output_bounds(case, sizes, shifts=shifts)
    risk = max(bounds.miss_probability(x, y, logs=logs) for x, y in zip(mine, theirs, strict=True))
    draws = draws_for(risk)
    if draws > MOST_DRAWS:
      reason = f"one draw may miss a difference with chance {risk:.1e}"
      return Rejection("INCONCLUSIVE", f"the degrees are too high: {reason}")
    rng = case.generator(number)
    domain = FreeExponential(draws, rng, logs=logs) if shifts else Field(draws, rng)
    inputs = random_inputs(case.region, domain, sizes.extents, rng)
    found = compare(case.region, case.graph, sizes, domain, inputs)
    if isinstance(found, Difference):
      return found
    if found.valid < LEAST_VALID or risk**found.valid > ACCEPTED_RISK:
      reason = f"an output element exists in only {found.valid} of {draws} draws"
      return Rejection("INCONCLUSIVE", f"{reason}; {sizes.to_text()}")
    records.append((found.valid, risk**found.valid, sizes.to_text()))
  return _proof(records, Tier.FREE_EXPONENTIAL)


def square_root(case: Case, heads: frozenset[str]) -> Outcome:
  """Tier 1 with roots of squares, at inputs where the arguments of roots are squares."""
  logs = {"exp", "log"} <= heads
  shifts = logs or {"exp", "max"} <= heads
  arguments = root_arguments(case.region.terms, case.graph)

  def test(draws: int, sizes: Instantiation, number: int) -> Agreement | Difference:
    rng = case.generator(1, number)
    domain = FreeExponentialRoots(draws, rng, logs=logs) if shifts else SquareRoots(draws, rng)
    inputs = random_inputs(case.region, domain, sizes.extents, rng)
    inputs = redraw(domain, inputs, arguments, sizes.extents, rng)
    return compare(case.region, case.graph, sizes, domain, inputs)

  def risk(sizes: Instantiation) -> float:
    mine, theirs = _output_bounds(case, sizes, shifts=shifts)
    outputs = zip(case.region.outputs, case.region.terms, mine, theirs, strict=True)
    return max(
      bounds.root_miss_probability(
        bounds.miss_probability(x, y, logs=logs),
        bounds.root_evaluations(v, case.graph, o.name, sizes.params, sizes.extents),
      )
      for o, v, x, y in outputs
    )

  return _with_small(case, Tier.SQUARE_ROOT, test, risk, MOST_ROOT_DRAWS)


def exponent_pair(case: Case, heads: frozenset[str]) -> Outcome:
  """Tier 2: exponentials as powers of omega, at an instantiation with few of them.

  Raises:
      RejectionError: INCONCLUSIVE, an exponential stands inside another one.
  """

  def test(draws: int, sizes: Instantiation, number: int) -> Agreement | Difference:
    rng = case.generator(2, number)
    domain = ExponentPair(draws, rng)
    inputs = random_inputs(case.region, domain, sizes.extents, rng)
    return compare(case.region, case.graph, sizes, domain, inputs)

  def risk(sizes: Instantiation) -> float:
    mine, theirs = _output_bounds(case, sizes, shifts=False)
    outputs = zip(case.region.outputs, case.region.terms, mine, theirs, strict=True)
    return max(
      bounds.pair_miss_probability(
        x, y, bounds.exponential_terms(v, case.graph, o.name, sizes.params, sizes.extents)
      )
      for o, v, x, y in outputs
    )

  return _with_small(case, Tier.EXPONENT_PAIR, test, risk, MOST_PAIR_DRAWS)


def _with_small(
  case: Case,
  tier: Tier,
  test: Callable[[int, Instantiation, int], Agreement | Difference],
  risk: Callable[[Instantiation], float],
  most: int,
) -> Outcome:
  """Tests at the reduced instantiations, and the bound at a smaller one where it holds.

  Every output element must be compared at each of them: one that is void for some number of
  ranks or blocks hides what the programs do there.
  """
  shown = []
  for number, sizes in enumerate(case.instantiations):
    found = _compared(test, DRAWS, sizes, number, LEAST_VALID, most)
    if not isinstance(found, Agreement):
      return found
    shown.append(sizes.to_text())
  small = small_instantiation(case.region, case.graph)
  chance = risk(small)
  needed = max(LEAST_VALID, _needed(chance))
  heuristic = draws_for(chance) > most
  draws = HEURISTIC_DRAWS if heuristic else draws_for(chance)
  found = _compared(test, draws, small, len(shown), LEAST_VALID if heuristic else needed, most)
  if not isinstance(found, Agreement):
    return found
  bound = 1.0 if heuristic else chance**found.valid
  return Proof(found.valid, bound, "\n".join([small.to_text(), *shown]), tier, heuristic)


def _compared(
  test: Callable[[int, Instantiation, int], Agreement | Difference],
  draws: int,
  sizes: Instantiation,
  number: int,
  needed: int,
  most: int,
) -> Agreement | Difference | Rejection:
  """A test in which every output element exists in at least ``needed`` draws.

  Where ``draws`` are too few for that, ``most``: a root of roots is void in half of them.
  """
  valid = 0
  for taken in (draws, most):
    found = test(taken, sizes, number)
    if isinstance(found, Difference) or found.valid >= needed:
      return found
    valid = found.valid
  reason = f"an output element exists in only {valid} of {most} draws"
  return Rejection("INCONCLUSIVE", f"{reason}; {sizes.to_text()}")


def draws_for(risk: float) -> int:
  """Draws until ``risk ** draws`` is accepted; very many if it is 1."""
  return max(DRAWS, _needed(risk))


def _needed(risk: float) -> int:
  if risk >= 1:
    return 1 << 30
  return ceil(log(ACCEPTED_RISK) / log(risk)) if risk > 0 else 1


def _proof(records: list[tuple[int, float, str]], tier: Tier) -> Proof:
  draws, risks, texts = zip(*records, strict=True)
  return Proof(min(draws), max(risks), "\n".join(texts), tier)


def _output_bounds(
  case: Case, sizes: Instantiation, *, shifts: bool
) -> tuple[list[bounds.DependenceBound], list[bounds.DependenceBound]]:
  theirs = bounds.ugraph_bounds(case.graph, sizes.params, sizes.extents, shifts=shifts)
  mine = [bounds.term_bound(v, sizes.extents, shifts=shifts) for v in case.region.terms]
  return mine, [theirs[o.name] for o in case.region.outputs]


def small_instantiation(region: Region, graph: UGraph) -> Instantiation:
  """Two unequal blocks, two ranks, iterations of one element, over as few elements as that takes.

  Axes that are summed up come first: 3 elements, then 4, ...
  """
  cut = [a for k in graph.kernels for a in {*k.grid, k.cluster, k.loop} if a is not None]
  summed = {a for n in t.walk(region.terms) if n.op in t.REDUCTIONS for a in _axes(n)}
  order = sorted(region.extents, key=lambda a: (a not in summed, cut.count(a), a))
  extents = {a: 3 + i for i, a in enumerate(order)}
  return Instantiation(extents, tuple(_small_numbers(k, extents) for k in graph.kernels))


def _axes(node: t.Term) -> tuple[str, ...]:
  assert isinstance(node.attr, tuple)
  return node.attr


def _small_numbers(kernel: Kernel, extents: dict[str, int]) -> KernelParams:
  # A part axis has two elements.
  sizes = (extents.get(a, 2) for a in kernel.grid)
  tile = tuple(min(n - 1, n - n // 3) for n in sizes)
  return KernelParams(tile, 2 if kernel.cluster else 1, 1 if kernel.loop else 0)


def tiers(heads: frozenset[str]) -> Iterator[Callable[[Case, frozenset[str]], Outcome]]:
  """The tests that may accept a program, in the order in which they are tried."""
  yield free_exponential
  if "sqrt" in heads:
    yield square_root
  if "exp" in heads:
    yield exponent_pair
