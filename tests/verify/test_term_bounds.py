"""No value of a term ever leaves its interval, and the relations that plain intervals lose hold."""

from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest
from goldens import GOLDENS
from hypothesis import given, settings
from hypothesis import strategies as st
from interval_runs import CASES, Recorder, hard_inputs, labelled, widened
from mutations import mutants

from mirage_onnx.ir import interval as iv
from mirage_onnx.ir import term as t
from mirage_onnx.ir.functions import to_term
from mirage_onnx.ir.interval import Interval
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.verify.adversarial import even_instantiation
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.program_lines import ugraph_lines
from mirage_onnx.verify.ranges import follow
from mirage_onnx.verify.term_bounds import Bounds, Fact, measured

EXTENTS = {"a": 3, "k": 16, "b": 4}
X, Y, W, S = (
  t.input_("x", ["a", "k"]), t.input_("y", ["b", "k"]),
  t.input_("w", ["k", "b"]), t.input_("s", ["a"]),
)  # fmt: skip
HALF = Fraction(1, 2)
FREE = {"x": Fact(iv.REALS), "y": Fact(iv.REALS), "s": Fact(iv.REALS)}


def total(x, axis="k"):
  return t.reduce_(t.SUM, [axis], x)


def mean(x):
  return t.mul(t.power(t.extent(["k"]), -1), total(x))


def rms(x, eps=1e-3):
  return t.power(t.add(mean(t.power(x, 2)), t.const(Fraction(eps))), Fraction(-1, 2))


def exp(x):
  return t.apply("exp", x)


def top(x):
  return t.reduce_(t.MAXR, ["k"], x)


def minus(x, y):
  return to_term("sub", x, y)


def quotient(x, y):
  return to_term("div", x, y)


CENTRED = minus(X, mean(X))
SHIFTED = exp(minus(X, top(X)))
WEIGHT = Fact(Interval(-0.5, 0.5), {"k": 1.5, "b": 0.9})

#: What must be known of a term whatever x, y and s are; w has entries in +-1/2 and columns of 1.5.
RELATIONS = {
  "normalised": (t.mul(X, rms(X)), iv.symmetric(sqrt(16))),
  "normalised without epsilon": (
    t.mul(X, t.power(total(t.power(X, 2)), Fraction(-1, 2))), iv.symmetric(1.0)
  ),
  "normalised, divided inside the sum": (
    t.mul(X, t.power(total(t.mul(t.power(X, 2), t.power(t.extent(["k"]), -1))), -HALF)),
    iv.symmetric(sqrt(16)),
  ),
  "square of it": (t.mul(t.power(X, 2), t.power(total(t.power(X, 2)), -1)), iv.UNIT),
  "scaled first": (t.mul(t.const(3), X, rms(t.mul(t.const(3), X))), iv.symmetric(sqrt(16))),
  "projected": (t.mul(total(t.mul(X, W)), rms(X)), iv.symmetric(4 * 1.5)),
  "norm inside the sum": (total(t.mul(X, W, rms(X))), iv.symmetric(4 * 1.5)),
  "cosine": (
    t.mul(total(t.mul(X, Y)), rms(X), rms(Y)), iv.symmetric(16.0)
  ),
  "layer norm": (
    t.mul(CENTRED, rms(CENTRED)), iv.symmetric(sqrt(16))
  ),
  "variance as a difference": (
    t.mul(CENTRED, t.power(t.add(
      mean(t.power(X, 2)), t.mul(t.const(-1), t.power(mean(X), 2)), t.const(Fraction(1, 9))
    ), Fraction(-1, 2))),
    iv.symmetric(sqrt(16)),
  ),
  "centred after the product": (
    t.mul(minus(total(t.mul(X, W)), t.mul(mean(X), total(W))), rms(CENTRED)),
    iv.symmetric(4 * 1.5),
  ),
  "shifted": (SHIFTED, iv.UNIT),
  "shifted late": (exp(t.mul(t.const(Fraction(1, 2)), minus(X, top(X)))), iv.UNIT),
  "shifted with a mask": (
    exp(minus(t.add(X, S, t.const(3)), top(t.add(X, S, t.const(3))))), iv.UNIT
  ),
  "sum of a shifted row": (total(SHIFTED), Interval(1.0, 16.0)),
  "log of it": (t.apply("log", total(SHIFTED)), Interval(0.0, float(np.log(16)))),
  "softmax": (quotient(SHIFTED, total(SHIFTED)), iv.UNIT),
  "softmax without shift": (quotient(exp(X), total(exp(X))), iv.UNIT),
  "mean of w": (quotient(total(t.mul(SHIFTED, W)), total(SHIFTED)), iv.symmetric(0.5)),
  "sum of a residual": (
    t.mul(t.add(X, total(t.mul(X, W))), rms(X)), iv.symmetric(4 + 4 * 1.5)
  ),
  "sum of projections": (
    t.mul(total(t.mul(total(t.mul(X, W)), t.input_("v", ["b"])), "b"), rms(X)),
    iv.symmetric(4 * 1.5 * sqrt(4) * 2),
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELATIONS)
def test_relations_hold_whatever_the_inputs_are(name):
  value, expected = RELATIONS[name]
  facts = {**FREE, "w": WEIGHT, "v": Fact(iv.SIGNED_UNIT, {"b": 2.0})}
  found = Bounds(EXTENTS, facts).interval(value)
  slack = 1e-9 * max(1.0, expected.magnitude)
  assert found.lo >= expected.lo - slack and found.hi <= expected.hi + slack, found


def test_relations_are_used_only_where_they_hold():
  bounds = Bounds(EXTENTS, {**FREE, "w": WEIGHT})
  other = t.input_("y", ["a", "k"])
  unrelated = {
    "another row's norm": t.mul(X, rms(other)),
    "the norm over another axis": t.mul(Y, t.power(total(t.power(Y, 2), "b"), -1)),
    "a difference that may be negative": t.mul(X, t.power(minus(total(X), top(X)), -1)),
    "the maximum of another row": exp(minus(X, top(other))),
    "the mean": exp(minus(X, mean(X))),
    "twice the values": exp(minus(t.mul(t.const(2), X), top(X))),
    "minus the maximum": exp(t.mul(t.const(-1), minus(X, top(X)))),
    "half a square root": t.mul(X, t.power(total(t.power(X, 2)), Fraction(-1, 4))),
    "a sum of cubes": t.mul(X, t.power(total(t.power(X, 3)), Fraction(-1, 3))),
  }
  for name, value in unrelated.items():
    assert bounds.interval(value).hi == inf, name


def test_a_maximum_of_parts_covers_only_its_parts():
  """y - m is not above 0 where y is in the part of m, and nowhere else."""
  run = t.apply("run", t.apply("part@loop/k0", top(X)))
  facts = {"x": Fact(iv.REALS)}
  inside = Bounds(EXTENTS, facts).within(["part@loop/k0"])
  assert inside.interval(exp(minus(X, run))).hi == 1
  assert Bounds(EXTENTS, facts).interval(exp(minus(X, run))).hi == inf
  before = t.apply("prev", run)
  assert inside.interval(exp(minus(X, before))).hi == inf
  assert inside.interval(exp(minus(before, run))).hi == 1
  assert inside.interval(exp(minus(run, before))).hi == inf
  part = t.apply("part@rank/k0", top(X))
  assert Bounds(EXTENTS, facts).interval(exp(minus(part, top(X)))).hi == 1
  assert Bounds(EXTENTS, facts).interval(exp(minus(top(X), part))).hi == inf
  # A maximum so far is above this iteration's, not below it.
  tile = t.apply("part@loop/k0", top(X))
  assert inside.interval(exp(minus(tile, run))).hi == 1
  assert inside.interval(exp(minus(run, tile))).hi == inf


BLOCKS = st.sampled_from([
  lambda x, y: t.add(x, y), lambda x, y: t.mul(x, y), lambda x, y: t.mul(x, rms(x)),
  lambda x, y: t.mul(x, rms(y)), lambda x, y: exp(minus(x, top(x)) if "k" in x.axes else x),
  lambda x, y: minus(x, mean(x)) if "k" in x.axes else t.apply("tanh", x),
  lambda x, y: quotient(exp(x), total(exp(x))) if "k" in x.axes else t.apply("erf", x),
  lambda x, y: total(t.mul(x, y)) if "k" in (*x.axes, *y.axes) else t.apply("abs", x),
  lambda x, y: to_term("sigmoid", x), lambda x, y: t.apply("max", x, y),
  lambda x, y: t.power(x, 2), lambda x, y: t.power(t.add(t.power(x, 2), t.const(1)), -HALF),
  lambda x, y: t.apply("log", t.add(t.power(x, 2), t.const(Fraction(1, 8)))),
  lambda x, y: top(x) if "k" in x.axes else to_term("neg", x),
  lambda x, y: t.mul(t.const(Fraction(-3, 4)), x),
])  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_no_value_of_a_random_term_leaves_its_interval(data):
  pool = [X, t.input_("y", ["a", "k"]), W, S]
  for _ in range(data.draw(st.integers(1, 7))):
    first, second = data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(pool))
    pool.append(data.draw(BLOCKS)(first, second))
  rng = np.random.default_rng(data.draw(st.integers(0, 99)))
  axes = {"x": ("a", "k"), "y": ("a", "k"), "w": ("k", "b"), "s": ("a",)}
  inputs, facts = {}, {}
  for name, over in axes.items():
    shape = (3, *(EXTENTS[a] for a in over))
    kind = data.draw(st.sampled_from(["normal", "ends", "equal", "offset"]))
    x = rng.standard_normal(shape)
    x = {"normal": x, "ends": np.sign(x) * 4, "equal": x * 0 + 3, "offset": x / 64 + 4}[kind]
    inputs[name] = NamedArray(x, over)
    facts[name] = Fact(iv.symmetric(float(np.abs(x).max())))
  facts["w"] = measured(inputs["w"].data[0], axes["w"])
  inputs["w"] = NamedArray(np.repeat(inputs["w"].data[:1], 3, 0), axes["w"])
  bounds = Bounds(EXTENTS, facts)
  for value, found in zip(pool, interpret_terms(Float64(3), pool, inputs, EXTENTS), strict=True):
    finite = found.data[np.isfinite(found.data)]
    if finite.size:
      known = bounds.interval(value)
      slack = 1e-9 * max(1.0, float(np.abs(finite).max()))
      assert known.lo - slack <= finite.min() and finite.max() <= known.hi + slack, value


#: Quotients beyond this come from divisors that fp32 would round to 0 (see ``ranges``).
LARGEST = 1e37


def assert_sound(golden, graph):
  """Every elementwise block value stays in its interval; returns how many were compared."""
  if check_ugraph(graph) or check_interface(golden.region, graph):
    return 0
  graph = widened(graph)
  sizes = even_instantiation(graph, golden.region)
  inputs, facts = hard_inputs(golden.region, dict(sizes.extents), np.random.default_rng(1))
  domain = Recorder(CASES)
  try:
    interpret_ugraph(domain, labelled(graph), sizes.params, sizes.extents, inputs)
  except ValueError:
    return 0
  reach = follow(ugraph_lines(graph), Bounds(sizes.extents, facts))
  for site, (low, high) in domain.seen.items():
    known = reach[site]
    if max(abs(low), abs(high)) > LARGEST:
      continue
    slack = 1e-9 * max(1.0, abs(low), abs(high))
    holds = known.interval.lo - slack <= low and high <= known.interval.hi + slack
    assert known.lost or holds, (golden.name, site, low, high, known)
  return len(domain.seen)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: g.name)
def test_no_block_value_leaves_its_interval(golden):
  assert assert_sound(golden, golden.ugraph) > 0 or golden.name == "lora"


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: g.name)
def test_no_block_value_of_a_mutant_leaves_its_interval(golden):
  """Of wrong programs too: the analysis does not rely on the proof."""
  compared = [assert_sound(golden, graph) for _, graph in mutants(golden.ugraph)]
  assert sum(c > 0 for c in compared) > 20
