"""Activation functions against ONNX Runtime."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

few = settings(max_examples=12, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
MS = "com.microsoft"
ALPHA = st.sampled_from([0.25, 1.0, 1.702, -0.5])

#: Name -> (domain, opset, attributes that are drawn).
ACTIVATIONS = {
  "Gelu": ("", 20, {"approximate": st.sampled_from(["none", "tanh"])}),
  "Swish": ("", 24, {"alpha": ALPHA}),
  "HardSigmoid": ("", 22, {"alpha": st.sampled_from([0.2, 0.5]), "beta": st.sampled_from([0.5])}),
  "HardSwish": ("", 14, {}),
  "Softplus": ("", 13, {}),
  "Softsign": ("", 13, {}),
  "Mish": ("", 18, {}),
  "Elu": ("", 13, {"alpha": ALPHA}),
  "Selu": ("", 13, {"gamma": st.sampled_from([1.0, 2.0])}),
  "QuickGelu": (MS, 20, {"alpha": ALPHA}),
}


def normal(seed, *shapes):
  rng = np.random.default_rng(seed)
  return [np.asarray(3 * rng.standard_normal(s), np.float32) for s in shapes]


@pytest.mark.parametrize("op", ACTIVATIONS)
@few
@given(shape=SHAPES, seed=SEEDS, data=st.data())
def test_activation(bench, op, shape, seed, data):
  domain, opset, drawn = ACTIVATIONS[op]
  attributes = {k: data.draw(v) for k, v in drawn.items() if data.draw(st.booleans())}
  model, feeds = bench.one(op, normal(seed, shape), domain=domain, opset=opset, **attributes)
  bench.agrees(model, feeds, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "BiasGelu"])
@few
@given(shape=SHAPES, seed=SEEDS, bias=st.booleans())
def test_gelu_of_microsoft(bench, op, shape, seed, bias):
  """Gelu has no bias, BiasGelu always one, FastGelu perhaps."""
  with_bias = op == "BiasGelu" or (op == "FastGelu" and bias)
  arrays = normal(seed, shape, shape[-1:]) if with_bias else normal(seed, shape)
  model, feeds = bench.one(op, arrays, domain=MS)
  bench.agrees(model, feeds, rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_large_arguments(bench, op):
  """No step overflows where the function does not."""
  domain, opset, _ = ACTIVATIONS[op]
  x = np.array([-200, -90, -10, 0, 10, 90, 200], np.float32)
  model, feeds = bench.one(op, [x], domain=domain, opset=opset)
  bench.agrees(model, feeds, rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize("op", ["Gelu", "QuickGelu", "HardSwish"])
def test_half_is_computed_in_fp32(bench, op):
  domain, opset, _ = ACTIVATIONS[op]
  (x,) = normal(0, (64,))
  program = bench.program(bench.one(op, [x.astype(np.float16)], domain=domain, opset=opset)[0])
  types = [s.output.dtype.value for s in program.nodes[0].steps]
  assert types[0] == "f32" and set(types[:-1]) == {"f32"} and types[-1] == "f16"


def test_unknown_approximation_is_refused(bench):
  model, _ = bench.one("Gelu", normal(0, (4,)), approximate="cubic")
  assert bench.barrier(model) == "OP_FORM: Gelu: approximate is 'cubic'"
