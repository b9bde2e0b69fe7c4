"""Verdicts of ``verify`` and ``check_terms``."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from goldens import edited, golden
from random_formulas import float64_error, pairs
from raw_programs import C, exp, graph_of, region_of, total
from raw_programs import X as X2

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Constant, functions, parse_ugraph, term
from mirage_onnx.verify.equivalence import Proof, check_terms, decide, verify
from mirage_onnx.verify.field import P
from mirage_onnx.verify.reduced import PRIMES
from mirage_onnx.verify.tiers import Tier


def test_a_rejection_holds_a_counterexample():
  given = golden("norm_linear")
  change = ("const[2748779/274877906944]", "const[1/1000000]")
  result = verify(given.region, edited(given.ugraph, change))
  assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"
  assert "output o0[a2=0, a1=0] is" in result.reason and "and should be" in result.reason


def test_an_ill_formed_graph_is_rejected_with_a_sentence():
  given = golden("norm_linear")
  result = verify(given.region, edited(given.ugraph, ("= acc_sum %5", "= cast %5")))
  assert str(result) == ("NOT_EQUIVALENT: ill-formed: kernel k0: %6 = cast: ['%5'] is not of phase post")


def test_a_literal_is_not_an_extent_even_where_they_are_equal():
  given = golden("norm_linear")
  for n in PRIMES:
    literal = edited(given.ugraph, ("extent[a0]", f"const[{n}]"))
    assert isinstance(verify(given.region, literal), Rejection)


SMALL = """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor o0 f16[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
{body}
  save o0 = %{last} omap=a0
"""


def judge(value, *lines):
  region = replace(golden("softmax_rows").region, terms=(value,))
  body = "\n".join(
    f"  %{i} = {line} : f32[{'' if line in SCALARS else 'a0,a1'}] post vector"
    for i, line in enumerate(lines, start=1)
  )
  return verify(region, parse_ugraph(SMALL.format(body=body, last=len(lines))))


SCALARS = ("const[0]", "const[1]", "const[pi]", "const[1/2]", "const[355/113]", "powr[1/2] %1")
X = term.input_("i0", ["a0", "a1"])
ONE, call = term.const(1), term.apply
HALF = Fraction(1, 2)


@pytest.mark.parametrize(
  ("value", "lines"),
  [
    (term.power(X, -HALF), ("rsqrt %0",)),
    (term.power(X, -HALF), ("sqrt %0", "recip %1")),
    (term.power(X, Fraction(3, 2)), ("sqrt %0", "square %1", "sqrt %0", "mul %2 %3")),
    (functions.to_term("sigmoid", X), ("neg %0", "exp %1", "const[1]", "add %2 %3", "recip %4")),
    (functions.to_term("sigmoid", X), ("sigmoid %0",)),
    (functions.to_term("relu", X), ("const[0]", "max %0 %1")),
    (functions.to_term("relu", X), ("relu %0",)),
    (term.mul(term.const("pi"), X), ("const[pi]", "mul %0 %1")),
    (term.mul(term.power(term.const(HALF), HALF), X),
     ("const[1/2]", "powr[1/2] %1", "mul %0 %2")),
    (term.add(term.power(X, 2), X), ("const[1]", "add %0 %1", "mul %0 %2")),
    (call("less", X, ONE), ("const[1]", "less %0 %1")),
    (call("select", call("less_equal", X, ONE), X, term.power(X, 2)),
     ("const[1]", "less_equal %0 %1", "square %0", "select %2 %0 %3")),
    (term.add(ONE, term.mul(term.const(-1), call("equal", X, ONE))),
     ("const[1]", "equal %0 %1", "sub %1 %2")),
    # by the laws of later tiers
    (term.power(X, -HALF), ("recip %0", "sqrt %1")),
    (term.power(term.apply("exp", X), 2), ("add %0 %0", "exp %1")),
  ],
)  # fmt: skip
def test_equal_programs_are_proven(value, lines):
  assert isinstance(judge(value, *lines), Proof)


@pytest.mark.parametrize(
  ("value", "lines"),
  [
    (term.power(X, -HALF), ("sqrt %0",)),
    (term.apply("abs", X), ("square %0", "sqrt %1", "neg %2")),
    (term.apply("erf", X), ("tanh %0",)),
    (term.apply("exp", X), ("neg %0", "exp %1")),
    (functions.to_term("relu", X), ("const[0]", "min %0 %1")),
    (functions.to_term("relu", X), ("abs %0",)),
    (term.mul(term.const("pi"), X), ("const[355/113]", "mul %0 %1")),
    (term.add(term.power(X, 2), X), ("square %0", "sub %1 %0")),
    (call("less", X, ONE), ("const[1]", "less %1 %0")),
    (call("less", X, ONE), ("const[1]", "less_equal %0 %1")),
    (call("less", X, ONE), ("const[1/2]", "less %0 %1")),
    (call("less", X, ONE), ("const[0]", "less %1 %0")),
    (call("select", X, X, ONE), ("const[1]", "select %0 %1 %0")),
    (call("select", X, X, ONE), ("const[2]", "select %0 %0 %1")),
    # right on the reals, but of a law that no tier has
    (call("select", call("less", X, ONE), X, ONE), ("const[1]", "min %0 %1")),
    (term.apply("abs", X), ("square %0", "sqrt %1")),
  ],
)  # fmt: skip
def test_other_programs_are_not(value, lines):
  result = judge(value, *lines)
  assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"


def test_a_division_by_zero_is_never_equal_to_anything():
  zero = ("sub %0 %0", "recip %1")
  for value in (term.power(X, -1), term.const(0), term.apply("exp", X)):
    result = judge(value, *zero)
    assert isinstance(result, Rejection) and result.code == "INCONCLUSIVE"
    assert "exists in only 0 of 3 draws" in result.reason


def test_degrees_beyond_the_field_are_inconclusive():
  result = judge(term.power(X, P), f"powr[{P}] %0")
  assert isinstance(result, Rejection) and result.code == "INCONCLUSIVE"


def test_a_constant_without_residue_is_refused():
  value = term.mul(term.const(Fraction(1, P)), X)
  assert isinstance(judge(value, f"const[1/{P}]", "mul %0 %1"), Rejection)


def test_a_program_of_many_exponentials_has_a_proof_without_a_bound():
  everything = total(exp(X2), "j")
  want = exp(X2) / total(everything, "i")
  shift = total(C, "i")
  got = exp(X2 - shift) / total(total(exp(X2 - shift)), "i")
  refused = verify(region_of(want), graph_of(got))
  assert isinstance(refused, Rejection) and refused.code == "INCONCLUSIVE"
  assert "no number of draws bounds the chance of an error" in refused.reason
  proof = verify(region_of(want), graph_of(got), accept_heuristic=True)
  assert isinstance(proof, Proof) and proof.heuristic and proof.bound == 1.0
  wrong = exp(X2 - C) / total(total(exp(X2 - C)), "i")
  result = verify(region_of(want), graph_of(wrong), accept_heuristic=True)
  assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"


def test_why_a_later_tier_could_not_decide_is_said():
  want, got = exp(exp(X2)) * exp(exp(X2 + 1)), exp(exp(X2) + exp(X2 + 1))
  result = verify(region_of(want), graph_of(got))
  assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"
  assert "an exponential stands inside another one" in result.reason


def test_a_verdict_is_the_same_in_every_run_and_its_numbers_are_not_in_every_seed():
  want, got = exp(X2), exp(X2) + 1
  first, again, other = (verify(region_of(want), graph_of(got), seed=s) for s in (0, 0, 1))
  assert first == again != other
  assert decide(region_of(want), graph_of(got)).difference is not None


def test_wrong_terms_are_found():
  region = golden("gated_mlp").region
  (value,) = region.terms
  for wrong in (term.mul(value, value), term.add(value, term.const(Fraction(1, 1000)))):
    result = check_terms(replace(region, terms=(wrong,)), np.random.default_rng(0))
    assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"
    assert "the terms of o0 differ from its steps" in result.reason


def test_a_wrong_step_is_found():
  region = golden("norm_linear").region
  for i, step in enumerate(region.steps):
    if step.op == "add":
      wrong = replace(step, inputs=(step.inputs[0], Constant(Fraction(1, 10))))
      steps = (*region.steps[:i], wrong, *region.steps[i + 1 :])
      result = check_terms(replace(region, steps=steps), np.random.default_rng(0))
      assert isinstance(result, Rejection)
  missing = replace(region, steps=region.steps[1:])
  assert isinstance(check_terms(missing, np.random.default_rng(0)), Rejection)


def test_steps_without_a_value_are_inconclusive():
  region = golden("softmax_rows").region
  zero = replace(region.steps[0], op="sub", inputs=("x0", "x0"))
  last = replace(region.steps[-1], op="log", inputs=(zero.output.name,), attr=None)
  result = check_terms(replace(region, steps=(zero, last)), np.random.default_rng(0))
  assert isinstance(result, Rejection) and result.code == "INCONCLUSIVE"


#: The seed, and how many pairs of formulas it stands for.
@pytest.mark.parametrize(("seed", "count"), [(0, 60), pytest.param(1, 3000, marks=pytest.mark.slow)])
def test_what_is_accepted_is_equal_in_float64(seed, count):
  outcomes = Counter()
  for want, got in islice(pairs(seed), count):
    error = float64_error(want, got)
    if error is None or error == np.inf:
      continue
    result = verify(region_of(want), graph_of(got))
    tier = str(result.tier) if isinstance(result, Proof) else "rejected"
    assert tier == "rejected" or error < 1e-6, f"{tier}: {want} and {got} differ by {error}"
    outcomes[tier, error < 1e-6] += 1
  print(dict(outcomes))
  assert min(outcomes["rejected", False], outcomes[Tier.FREE_EXPONENTIAL, True]) > count // 10
