"""µGraphs with all blocks and ranks at once, against one block, rank and iteration at a time."""

import random
from dataclasses import replace

import numpy as np
import pytest
from golden_texts import PROGRAMS
from goldens import GOLDENS
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_interpreter import interpret_plainly
from random_ugraphs import random_program

from mirage_onnx.ir import KernelParams, parse_ugraph, print_ugraph
from mirage_onnx.ir.spec import check_ugraph
from mirage_onnx.verify.domain import Field, Float64, Rounded
from mirage_onnx.verify.field import VOID
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.reduced import reduced_instantiations

RNG = np.random.default_rng(5)
REAL = Float64()


def over(axes, *shape):
  return NamedArray(RNG.standard_normal((1, *shape)), tuple(axes))


def reals(graph, extents, seed, rows=2):
  rng = np.random.default_rng(seed)
  return {
    t.name: NamedArray(rng.standard_normal((rows, *(extents[a] for a in t.axes))), t.axes)
    for t in graph.tensors
    if t.role in ("input", "weight")
  }


def residues(graph, extents, seed, zeros=0.0):
  rng = np.random.default_rng(seed)
  domain = Field(2, rng)
  inputs = {}
  for t in graph.tensors:
    if t.role in ("input", "weight"):
      data = domain.random(rng, tuple(extents[a] for a in t.axes))
      data[rng.random(data.shape) < zeros] = 0
      inputs[t.name] = NamedArray(data, t.axes)
  return inputs


def both(domains, program, inputs):
  """Tensor, plain value, value; two domains: one may remember what it has met."""
  want = interpret_plainly(domains[0], *program, inputs)
  got = interpret_ugraph(domains[1], *program, inputs)
  assert want.keys() == got.keys()
  for name, value in want.items():
    assert got[name].axes == value.axes
  return [(name, want[name].data, got[name].data) for name in want]


def fields(seed):
  return Field(2, np.random.default_rng(seed)), Field(2, np.random.default_rng(seed))


def equal_to_rounding(want, got, tolerance=1e-9):
  largest = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
  np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * largest)


def drawn(seed):
  program = random_program(random.Random(seed))
  assert check_ugraph(program.graph) is None, print_ugraph(program.graph)
  return program


seeds = st.integers(0, 2**32)


def check_in_the_field(seed):
  p = drawn(seed)
  inputs = residues(p.graph, p.extents, seed)
  for name, want, got in both(fields(seed), (p.graph, p.params, p.extents), inputs):
    assert np.array_equal(want, got), (seed, name)


@given(seeds)
@settings(max_examples=60)
def test_random_programs_in_the_field_bit_for_bit(seed):
  check_in_the_field(seed)


@given(seeds)
@settings(max_examples=40)
def test_quotients_that_do_not_exist_stay_where_they_are(seed):
  """Zeros in the inputs and reciprocals for other functions: void, and void at one place only."""
  p = drawn(seed)
  graph = parse_ugraph(print_ugraph(p.graph).replace("= tanh", "= recip").replace("= abs", "= recip"))
  inputs = residues(graph, p.extents, seed, zeros=0.2)
  for name, want, got in both(fields(seed), (graph, p.params, p.extents), inputs):
    assert np.array_equal(want, got), name


@pytest.mark.parametrize(("domain", "tolerance"), [(REAL, 1e-9), (Rounded(2), 1e-4)])
@given(seeds)
@settings(max_examples=30)
def test_random_programs_in_real_numbers(domain, tolerance, seed):
  p = drawn(seed)
  inputs = reals(p.graph, p.extents, seed)
  for _, want, got in both((domain, domain), (p.graph, p.params, p.extents), inputs):
    equal_to_rounding(want, got, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_random_programs(block):
  for seed in range(1000 * block, 1000 * block + 300):
    check_in_the_field(seed)


@pytest.mark.parametrize("golden", GOLDENS, ids=[g.name for g in GOLDENS])
def test_goldens_at_every_reduced_instantiation(golden):
  for sizes in reduced_instantiations(golden.ugraph, golden.region.extents):
    program = (golden.ugraph, sizes.params, sizes.extents)
    inputs = residues(golden.ugraph, sizes.extents, 1)
    for name, want, got in both(fields(1), program, inputs):
      assert np.array_equal(want, got), (name, sizes.to_text())
    # Masked rows, infinities and large numbers: the same NaN at the same places.
    wild = reals(golden.ugraph, sizes.extents, 2)
    for value in wild.values():
      value.data[RNG.random(value.data.shape) < 0.05] = -np.inf
      value.data[RNG.random(value.data.shape) < 0.05] *= 1e4
    for _, want, got in both((REAL, REAL), program, wild):
      equal_to_rounding(want, got)


COUNT = PROGRAMS["count"]


@pytest.mark.parametrize(
  ("extent", "ranks", "step", "iterations"),
  [(7, 2, 2, 4), (7, 1, 3, 3), (6, 2, 3, 2), (7, 3, 3, 3), (4, 3, 1, 4), (5, 4, 2, 3)],
)
def test_iterations_of_all_ranks(extent, ranks, step, iterations):
  """Pieces of ceil(size / ranks) elements, in steps; the last pieces may be short or empty."""
  params = [KernelParams(tile=(2,), cluster=ranks, loop_tile=step)]
  inputs = {"i0": over("ab", 3, extent)}
  sizes = {"a": 3, "b": extent}
  got = interpret_ugraph(REAL, parse_ugraph(COUNT), params, sizes, inputs)
  want = inputs["i0"].data[0].sum(axis=1) + iterations
  assert np.allclose(got["o0"].data[0], want)


RUNNING = PROGRAMS["running"]


def test_running_values_by_hand():
  """Tiles of 2 of five numbers: maxima 3, 2, 5; running 3, 3, 5; before them the lowest, 3, 3."""
  data = np.array([[[1.0, 3.0, 2.0, -1.0, 5.0], [-np.inf] * 5]])
  got = interpret_ugraph(
    REAL, parse_ugraph(RUNNING), [KernelParams((1,), loop_tile=2)], {"a": 2, "b": 5},
    {"i0": NamedArray(data, ("a", "b"))},
  )  # fmt: skip
  lowest = -float(np.finfo(np.float32).max)
  assert got["o0"].data.tolist() == [[11.0, 3 * lowest]]
  assert got["o1"].data.tolist() == [[3.0, lowest]]
  assert got["o2"].data.tolist() == [[(3.0 / 2 + 2.0) / 2 + 5.0, -np.inf]]


def test_a_scaled_sum_starts_from_zero_times_the_factor():
  """exp(m - prev(m)) is infinite in the first iteration: that is no sum."""
  text = RUNNING.replace("%6 = const[1/2] : f32[] loop uniform", "%6 = sub %2 %3 : f32[a] loop row")
  text = text.replace("%7 = acc_scaled %1 %6", "%7 = exp %6 : f32[a] loop row\n  %8 = acc_scaled %1 %7")
  got = interpret_ugraph(
    REAL, parse_ugraph(text.replace("o2 = %7", "o2 = %8")), [KernelParams((1,), loop_tile=2)],
    {"a": 2, "b": 5}, {"i0": over("ab", 2, 5)},
  )  # fmt: skip
  assert np.isnan(got["o2"].data).all()


PARTS = PROGRAMS["largest_of_parts"]


def test_every_block_saves_its_part():
  data = np.arange(14.0).reshape(1, 2, 7)
  params = [KernelParams((3, 1)), KernelParams((2,), loop_tile=2)]
  got = interpret_ugraph(
    REAL, parse_ugraph(PARTS), params, {"a": 2, "b": 7}, {"i0": NamedArray(data, ("a", "b"))}
  )
  assert got["t0"].data.tolist() == [[[2.0, 9.0], [5.0, 12.0], [6.0, 13.0]]]
  assert got["o0"].data.tolist() == [[13.0, 34.0]]


def run(text, **numbers):
  params = [replace(KernelParams(tile=(2,), cluster=2, loop_tile=2), **numbers)]
  sizes = {"a": 3, "b": 5}
  return interpret_ugraph(REAL, parse_ugraph(text), params, sizes, {"i0": over("ab", 3, 5)})


def test_ranks_that_disagree_are_found():
  with pytest.raises(ValueError, match="two blocks or ranks write different values to o0"):
    run(COUNT.replace("save o0 = %5", "save o0 = %4"))
  run(COUNT.replace("save o0 = %5", "save o0 = %4"), cluster=1)


def test_blocks_that_disagree_are_found():
  whole = COUNT.replace("f32[a] output", "f32[] output").replace("omap=a", "omap=-")
  last = "  %6 = {} : f32[] post uniform\n  save o0 = %6"
  differ, agree = last.format("sum[a] %5"), last.format("extent[a]")
  with pytest.raises(ValueError, match="two blocks or ranks write different values to o0"):
    run(whole.replace("  save o0 = %5", differ))
  assert run(whole.replace("  save o0 = %5", agree))["o0"].data.tolist() == [3.0]


def test_nan_is_the_same_nan_in_all_ranks():
  nan = COUNT.replace("%5 = red_sum %4", "%5 = sqrt %4").replace("const[1]", "const[-9999]")
  assert np.isnan(run(nan)["o0"].data).all()


TOO_MANY = """\
ugraph 1
tensor i0 f32[a,b] input
tensor o0 f32[a] output
kernel k0 grid=a cluster=- loop=-
  %0 = load i0 imap=a cmap=- fmap=- : f32[a,b] post shared
  save o0 = %0 omap=a
"""
WHOLE = "%2 = load i0 imap=- cmap=- fmap=- : f32[a,b] loop shared"


@pytest.mark.parametrize(
  ("text", "sentence"),
  [
    (COUNT.replace("omap=a", "omap=-"), "%5 has a cut by grid x; o0 takes all of a"),
    (COUNT.replace("f32[a] output", "f32[a,c] output"), "%5 has no c; o0 takes all of c"),
    (COUNT.replace("imap=a", "imap=b"), "i0 over ('a', 'b') is cut over b, not a"),
    (COUNT.replace("%2 = const[1] : f32[] loop uniform", WHOLE).replace("add %1", "add %0"),
     "%3 meets a cut by grid x and all of a"),
    (TOO_MANY, "%0 is over ('@x', 'a', 'b'), o0 over ('a',)"),
  ],
)  # fmt: skip
def test_tiles_that_do_not_fit_are_found(text, sentence):
  cluster = 2 if "cluster=b" in text else 1
  with pytest.raises(ValueError) as error:
    run(text, cluster=cluster)
  assert sentence in str(error.value)


@pytest.mark.parametrize("numbers", [{"tile": (0,)}, {"tile": ()}, {"cluster": 0}, {"loop_tile": 0}])
def test_numbers_must_be_positive(numbers):
  with pytest.raises(ValueError, match="numbers"):
    run(COUNT, **numbers)


def test_padding_computes_nothing_that_the_elements_do_not():
  """A domain that watches its arguments (of exp, say) sees no number from outside the tiles."""

  seen = set()

  class Watching(Float64):
    def elementwise(self, op, *args):
      seen.update(float(x) for a in args for x in a.flat if op == "exp")
      return super().elementwise(op, *args)

  softmax = next(g for g in GOLDENS if g.name == "softmax_rows")
  uneven, _, whole = reduced_instantiations(softmax.ugraph, softmax.region.extents)
  inputs = reals(softmax.ugraph, uneven.extents, 3, rows=1)
  for sizes in (uneven, whole):
    seen.clear()
    interpret_ugraph(Watching(), softmax.ugraph, sizes.params, sizes.extents, inputs)
    assert seen and max(seen) <= 0.0


def test_void_is_not_made_up_in_empty_ranks():
  """5 elements in 4 ranks of 2: the last has none, and its empty sum is 0."""
  domain = Field(2, np.random.default_rng(0))
  params = [KernelParams(tile=(2,), cluster=4, loop_tile=2)]
  graph, sizes = parse_ugraph(COUNT), {"a": 3, "b": 5}
  got = interpret_ugraph(domain, graph, params, sizes, residues(graph, sizes, 0))
  assert not (got["o0"].data == VOID).any()
