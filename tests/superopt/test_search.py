"""What the search finds: golden programs, what an axiom is for, why it stops, determinism."""

import time
from dataclasses import replace

import numpy as np
import pytest
from region_data import exactly, relative_error
from search_programs import PROGRAMS as SEARCHED
from small_models import Net, region_of, search_region

from mirage_onnx.cost.tiled import MAX_REGISTERS
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import term
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.superopt import plans as plans_module
from mirage_onnx.superopt import units
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.choices import Counts, RoleSetting
from mirage_onnx.superopt.expected_time import expected_us
from mirage_onnx.superopt.plans import Plans
from mirage_onnx.superopt.result import default_bound
from mirage_onnx.superopt.search import SearchBound, Stop, search
from mirage_onnx.superopt.space import ALL, EMITTED
from mirage_onnx.superopt.units import Units
from mirage_onnx.target import H200
from mirage_onnx.verify.interpret_steps import interpret_steps
from mirage_onnx.verify.prover import prover


def norm_linear():
  net = Net()
  x = net.input(8, 512)
  return net.model(net.MatMul(net.rms(x, net.weight(512)), net.weight(512, 256)))


def gated():
  net = Net()
  x = net.input(8, 512)
  a, b = (net.MatMul(x, net.weight(512, 256)) for _ in range(2))
  return net.model(net.Mul(net.Mul(a, net.Sigmoid(a)), b))


def low_rank():
  net = Net()
  x = net.input(8, 512)
  down = net.MatMul(net.MatMul(x, net.weight(512, 8)), net.weight(8, 256))
  return net.model(net.Add(net.MatMul(x, net.weight(512, 256)), net.Mul(down, 2.0)))


def bias_erf():
  net = Net()
  y = net.Add(net.MatMul(net.input(8, 512), net.weight(512, 256)), net.weight(256))
  inner = net.Add(net.Erf(net.Div(y, float(np.sqrt(2)))), 1.0)
  return net.model(net.Mul(net.Mul(y, 0.5), inner))


def residual_norm():
  net = Net()
  total = net.Add(net.input(8, 512), net.input(8, 512))
  return net.model(total, net.rms(total, net.weight(512)))


def transposed():
  net = Net()
  y = net.Gemm(net.input(8, 512), net.weight(256, 512), net.weight(256), transB=1)
  return net.model(net.Relu(y))


PROGRAMS = [norm_linear, gated, low_rank, bias_erf, residual_norm, transposed]


def text_of(result):
  return print_ugraph(result.candidates[0].candidate.ugraph)


def large(region):
  sizes = {a: n if n == 8 else 4096 for a, n in region.extents.items()}
  return replace(region, extents=sizes)


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda f: f.__name__)
def test_best_program(build, golden):
  result = search_region(large(region_of(build())))
  assert result.report.stop is Stop.EXHAUSTED
  assert text_of(result) == golden
  assert len(result.candidates[0].candidate.ugraph.kernels) == 1


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda f: f.__name__)
def test_every_candidate_is_right(build, rng):
  region = region_of(build())
  values = {i.tensor.name: rng.standard_normal([int(d) for d in i.tensor.shape or ()]) for i in region.inputs}
  want = interpret_steps(region, values, rounded=False)
  result = search_region(region)
  costs = [v.candidate.predicted_us for v in result.candidates]
  assert costs == sorted(costs)
  assert len({print_ugraph(v.candidate.ugraph) for v in result.candidates}) >= 1
  for v in result.candidates[:3]:
    graph = v.candidate.ugraph
    assert parse_ugraph(print_ugraph(graph)) == graph
    assert v.proof.draws >= 2
    assert 0 <= v.proof.bound < 1e-9
    for name, got in exactly(region, v.candidate, values).items():
      assert relative_error(got, want[name]) < 1e-9


def two_stages(inner):
  net = Net()
  x = net.input(8, 256)
  a, b = (net.MatMul(x, net.weight(256, 32)) for _ in range(2))
  h = net.Mul(net.Mul(a, net.Sigmoid(a)), b)
  region = region_of(net.model(net.Add(net.MatMul(h, net.weight(32, 256)), x)))
  sizes = {8: 8, 32: inner, 256: 4096}
  return replace(region, extents={k: sizes[n] for k, n in region.extents.items()})


def test_two_kernels_where_one_cannot_hold_two_stages(golden):
  """From the terms alone: matching offers no such region, its inner value is too wide."""
  result = search_region(two_stages(8192))
  best = result.candidates[0].candidate
  assert [k.loop is not None for k in best.ugraph.kernels] == [True, True]
  assert [t.name for t in best.ugraph.tensors if t.role == "temp"] == ["t0"]
  assert text_of(result) == golden


def kernel_counts(result):
  return {len(v.candidate.ugraph.kernels) for v in result.candidates}


def streams_alone(result):
  graphs = [v.candidate.ugraph for v in result.candidates]
  return any(len(g.kernels) == 1 and g.kernels[0].loop for g in graphs)


def without(*names):
  assert set(names) <= {a.name for a in AXIOMS}
  return tuple(a for a in AXIOMS if a.name not in names)


class TestWhatAnAxiomIsFor:
  def test_pull_out(self):
    """Only with it the scale leaves the contraction, so that one kernel does both."""
    region = large(region_of(norm_linear()))
    with_it, less = (search_region(region, axioms=a) for a in (AXIOMS, without("pull-out")))
    assert len(with_it.candidates[0].candidate.ugraph.kernels) == 1
    assert kernel_counts(less) == {2}
    best = [r.candidates[0].candidate.predicted_us for r in (with_it, less)]
    assert best[0] < best[1]

  def test_without_axioms_there_still_is_a_program(self):
    region = region_of(norm_linear())
    result = search_region(region, axioms=())
    assert result.candidates
    assert not streams_alone(result)

  def test_pull_out_and_sum_of_add(self, net):
    """Centering: the mean, subtracted before a contraction, is taken out of it."""
    x = net.input(8, 512)
    centered = net.Sub(x, net.ReduceMean(x, [-1]))
    region = region_of(net.model(net.MatMul(centered, net.weight(512, 256))))
    assert streams_alone(search_region(region))
    for name in ("pull-out", "sum-of-add"):
      assert not streams_alone(search_region(region, axioms=without(name)))


class TestWhyItStops:
  def test_exhausted(self):
    report = search_region(region_of(norm_linear())).report
    assert report.stop is Stop.EXHAUSTED
    assert 0 < report.verified <= SearchBound().verified
    assert report.built > 0
    assert 0 < report.states <= SearchBound().states

  def test_state_limit(self):
    """The limit is one of each assignment of roles, so that it cuts none off for another."""
    region, bound = region_of(gated()), SearchBound(states=3)
    report = search_region(region, bound=bound).report
    assert report.stop is Stop.STATE_LIMIT
    units = Units(region, H200, bound, AXIOMS, EMITTED)
    outline = units.outline(units.outputs)
    assert not outline.complete
    assert 3 < outline.counts.states <= 4 * len(units.roles(units.outputs))
    assert outline.counts.states <= report.states < search_region(region).report.states

  def test_all_outlines_together(self, monkeypatch):
    """What was found before that counts."""
    region = region_of(norm_linear())
    whole = search_region(region)
    monkeypatch.setattr(units, "OUTLINED", whole.report.states // 2)
    cut = search_region(region)
    assert cut.report.stop is Stop.STATE_LIMIT and cut.report.states < whole.report.states
    monkeypatch.setattr(units, "OUTLINED", -1)
    assert search_region(region).report.states == 0

  def test_kernels_of_many_values_are_of_all_two_or_one(self, monkeypatch):
    region = region_of(norm_linear())
    found = Units(region, H200, SearchBound(), AXIOMS, EMITTED)
    plans = Plans(found, lambda *_: (), counts := Counts())
    some = frozenset(sorted(found.depth)[: plans_module.GROUPED + 1])
    assert len(some) > plans_module.GROUPED
    assert {len(g) for g in plans.groups(some)} <= {len(some), 2, 1}
    assert counts.pruned["a kernel of some of many values"] == 1
    fewer = frozenset(sorted(some)[:-1])
    assert len({*plans.groups(fewer)}) == 2 ** (len(fewer) - 1)

  def test_budget(self):
    start = time.process_time()
    result = search_region(region_of(gated()), budget_s=0.0)
    assert result.report.stop is Stop.BUDGET
    assert result.candidates == ()
    assert time.process_time() - start < 5

  def test_operators(self):
    report = search_region(region_of(norm_linear()), bound=SearchBound(operators=1, kernels=1)).report
    assert not report.verified
    assert dict(report.pruned)["more contractions, reductions and accumulators than the bound"]

  def test_candidates(self):
    region = region_of(norm_linear())
    assert len(search_region(region, bound=SearchBound(candidates=2)).candidates) == 2
    assert search_region(region, bound=SearchBound(verified=1)).report.verified == 1


@pytest.mark.parametrize("lost", [False, True], ids=["input", "select"])
def test_a_masked_softmax_adds_the_mask_before_it_subtracts_the_maximum(lost):
  """m - max(x + m) + x, with a mask m of the least finite value, is refused (verify/test_numeric.py)."""
  net = Net(np.float32)
  x, mask = net.Mul(net.input(4, 64), 0.25), net.input(64)
  if lost:
    mask = net.Where(net.Less(mask, 0.0), float(np.finfo(np.float32).min), 0.0)
  result = search_region(region_of(net.model(net.Softmax(net.Add(x, mask), axis=-1))))
  assert result.report.stop is Stop.EXHAUSTED and len(result.candidates[0].candidate.ugraph.kernels) == 1
  ops = result.candidates[0].candidate.ugraph.kernels[0].ops
  masked = next(o.args[0] for o in ops if o.op == "rmax")
  exponent = ops[next(o.args[0] for o in ops if o.op == "exp")]
  assert exponent.op == "add" and masked in exponent.args


def test_prunes_are_counted():
  report = search_region(region_of(gated())).report
  pruned = dict(report.pruned)
  assert list(pruned) == sorted(pruned)
  assert all(n > 0 for n in pruned.values())
  assert "the same grouping of factors twice" in pruned or len(pruned) > 2


def test_refusals_of_the_verifier_are_reported():
  calls = []

  def refuse(region, graph, params):
    calls.append(graph)
    return Rejection("NUMERICS", "it rounds badly")

  result = search(region_of(norm_linear()), H200, refuse, budget_s=900.0)
  assert result.candidates == ()
  assert result.report.verified == 0
  assert 0 < len(calls) <= SearchBound().tried
  assert len(set(map(print_ugraph, calls))) == len(calls)
  assert [r.code for r in result.report.refused].count("NUMERICS") == len(calls)


def test_an_output_that_is_an_input_has_no_program():
  region = region_of(bias_erf())
  copied = replace(region, terms=(term.input_(region.inputs[0].name, region.inputs[0].axes),))
  result = search_region(copied)
  assert result.candidates == ()
  assert ("an output that is a copy of an input", 1) in result.report.pruned


def test_no_numbers_fit_what_is_too_large(monkeypatch):
  """Kernels that are left out because the smallest tile of a value is too large have none."""
  large, seen = set(), 0
  too_large, least_registers = RoleSetting.too_large, RoleSetting._least_registers

  def note_tile(self, place):
    large.update([(self.roles, place)] if too_large(self, place) else ())
    return False

  def note_result(self, operands, axis):
    needed = least_registers(self, operands, axis)
    large.update([(self.roles, operands)] if needed > MAX_REGISTERS else ())
    return 0

  monkeypatch.setattr(RoleSetting, "too_large", note_tile)
  monkeypatch.setattr(RoleSetting, "_least_registers", note_result)
  units = Units(SEARCHED["groupnorm_linear"](), H200, default_bound(ALL), AXIOMS, ALL)
  for reads, every in units.outline(units.outputs, 0).derivations.items():
    out = tuple(
      (roles, d)
      for roles, d in every
      for found in ({(roles, p) for p in d} | {(roles, c.needs[:2]) for c in d.values()},)
      if found & large
    )
    units._made_of[units.outputs, reads] = out
    seen += len(out)
    assert not units.run(units.outputs, reads).kernels
  assert seen > 20


def test_what_is_not_worth_a_proof_is_not_proven():
  """As fast as the best, a program is proven; where all are slower, none is, and the report says so."""
  region, asked = SEARCHED["rmsnorm_linear"](), []

  def verify(*given):
    asked.append(given)
    return prover(region)(*given)

  every = search(region, H200, verify, budget_s=900.0)
  best_us = min(expected_us(region, v.candidate, H200) for v in every.candidates)
  asked.clear()
  assert (
    search(region, H200, verify, worth_us=best_us * 1.001, budget_s=900.0).candidates[0] in every.candidates
  )
  assert asked
  asked.clear()
  none = search(region, H200, verify, worth_us=best_us * 0.999, budget_s=900.0)
  assert not none.candidates and not asked and none.report.stop is Stop.EXHAUSTED
  assert none.report.refused_slow.reason.startswith(f"{best_us:.2f} us predicted")
