"""Programs that no code names: random ones, and two whose kernels are checked to the end."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_models import float64_feeds, in_float64, random_model, swapped
from region_data import device_outputs, device_tensors, exactly, relative_error, sources_of
from small_models import Net, check_kernels, feeds, largest, matches, run_model, search_region

import mirage_onnx
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import REJECTIONS
from mirage_onnx.ir.term import walk
from mirage_onnx.verify.equivalence import check_terms
from mirage_onnx.verify.interpret_steps import interpret_steps

EXAMPLES, MANY = 60, 200
#: fp32 sums and 16-bit roundings of the program's own intermediates.
KERNEL_TOLERANCE = 8e-3


@st.composite
def programs(draw):
  return random_model(lambda options: draw(st.sampled_from(options)), draw(st.integers(3, 8)))


def check_result(model, region, result):
  """Whether a program came out; it is right, or there is a typed reason."""
  if not result.candidates:
    assert result.report.refused or result.report.pruned
    assert all(r.code in REJECTIONS and r.reason for r in result.report.refused)
    return False
  rng = np.random.default_rng(1)
  values = in_float64(model, float64_feeds(model, rng))
  for verified in result.candidates[:2]:
    for name, got in exactly(region, verified.candidate, values).items():
      want = values[name]
      defined = np.abs(want) < 1e150  # what the norm can square
      assert relative_error(got[defined], want[defined]) < 1e-6
  return True


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_random_regions(model):
  check_regions(model)


@pytest.mark.slow
@settings(max_examples=MANY, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_many_random_regions(model):
  check_regions(model)


def check_regions(model):
  found = matches(model)
  if not found.candidates:
    assert found.rejections
    return
  for candidate in found.candidates:
    reason = check_terms(candidate.region, np.random.default_rng(0))
    assert reason is None or reason.code == "INCONCLUSIVE", reason
  region = largest(found).region
  check_result(model, region, search_region(region, budget_s=900))


def inputs_of(region):
  return {str(t.attr) for t in walk(region.terms) if t.op == "input"}


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(programs())
def test_other_names_and_operand_orders_give_the_same_regions(model):
  keys = []
  for spelling in (model, swapped(model)):
    regions = [c.region for c in matches(spelling).candidates]
    # An input that cancels (x - x) has no place in the terms, hence no canonical number.
    keys.append(sorted(r.key for r in regions if len(r.inputs) == len(inputs_of(r))))
  assert keys[0] == keys[1]


def test_most_random_programs_become_kernels_that_run():
  """The same programs, down to CUDA text on the emulator."""
  cases = []
  searched = 0
  for seed in range(40):
    pick = random.Random(seed)
    model = random_model(pick.choice, pick.randint(3, 8))
    found = matches(model)
    if not found.candidates or len(cases) == 15:
      continue
    searched += 1
    region = largest(found).region
    result = search_region(region, budget_s=900)
    if check_result(model, region, result):
      candidate = result.candidates[0].candidate
      sources = sources_of(region, candidate, f"random{seed}")
      if sources:
        cases.append((seed, model, region, candidate, sources))
  assert len(cases) >= 0.75 * searched
  module = compile_kernels([s for *_, sources in cases for s in sources])
  start = 0
  for seed, model, region, candidate, sources in cases:
    inputs = float64_feeds(model, np.random.default_rng(seed))
    values = in_float64(model, inputs)
    own = {i.tensor.name: round16(values[i.tensor.name]) for i in region.inputs}
    want = interpret_steps(region, own, rounded=False)
    rounded = interpret_steps(region, own, rounded=True)
    tensors = device_tensors(region, candidate, own)
    module.run(tensors, range(start, start + len(sources)))
    start += len(sources)
    for name, got in device_outputs(region, tensors).items():
      allowed = KERNEL_TOLERANCE + 3 * relative_error(rounded[name], want[name])
      assert relative_error(got, want[name]) < allowed, f"seed {seed}"


def round16(x):
  return x.astype(np.float16).astype(np.float64)


def squared_relu_linear(skip=None):
  """scale * (relu(x W) ^ 2 + b), one of its operations left out."""
  net = Net()
  y = net.MatMul(net.input(8, 512), net.weight(512, 256))
  steps = [
    lambda y: net.Relu(y),
    lambda y: net.Mul(y, y),
    lambda y: net.Add(y, net.weight(256)),
    lambda y: net.Mul(y, 0.375),
  ]
  for i, step in enumerate(steps):
    y = y if i == skip else step(y)
  return net.model(y)


def unit_length_linear(skip=None):
  """tanh(x / sqrt(sum(x^2) + e) W) * exp(g / 8), one of its operations left out."""
  net = Net()
  x = net.input(8, 512)
  length = net.ReduceSum(net.Mul(x, x), [-1])
  length = length if skip == 0 else net.Add(length, 0.25)
  y = x if skip == 1 else net.Div(x, net.Sqrt(length))
  y = net.MatMul(y, net.weight(512, 256))
  y = y if skip == 2 else net.Tanh(y)
  gate = net.Mul(net.input(8, 256), 0.125)
  y = net.Mul(y, gate if skip == 3 else net.Exp(gate))
  return net.model(y)


def gated_by_exponential(skip=None):
  """(x A) * exp(min(x B, 4)) + x C, one of its operations left out."""
  net = Net()
  x = net.input(8, 256)
  a, b, c = (net.MatMul(x, net.weight(256, 128)) for _ in range(3))
  b = b if skip == 0 else net.Min(b, 4.0)
  b = b if skip == 1 else net.Exp(b)
  y = a if skip == 2 else net.Mul(a, b)
  y = y if skip == 3 else net.Add(y, c)
  return net.model(y)


@pytest.mark.parametrize("skip", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("build", [squared_relu_linear, unit_length_linear, gated_by_exponential])
def test_unnamed_regions_are_replaced(build, skip):
  """End to end; with any operation left out there still is an answer."""
  model = build(skip)
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  replaced = [r for r in result.report["regions"] if r["status"] == "replaced"]
  assert replaced
  if skip is None:
    assert sum(len(r["ops"]) for r in replaced) >= len(model.graph.node)
    assert all("kernel k1" not in r["ugraph"] for r in replaced)
  values = feeds(model, np.random.default_rng(0))
  for a, b in zip(run_model(model, values), run_model(result.model, values), strict=True):
    assert a.tobytes() == b.tobytes()


def test_a_value_that_is_two_outputs():
  """As a Loop's body often yields what it carries: one kernel writes both."""
  net = Net(seed=1)
  y = net.MatMul(net.rms(net.input(8, 64)), net.weight(64, 64))
  model = net.model(y, net.Identity(y))
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert {r["status"] for r in result.report["regions"]} == {"replaced"}
  check_kernels(model, result, feeds(model, np.random.default_rng(0)))
