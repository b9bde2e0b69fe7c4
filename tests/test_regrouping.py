"""Regions across reshapes that split or join dimensions, and across repeated elements, to the end.

Heads are split after a linear layer and joined before one, normalised by themselves, or shared by
several queries. The optimized model gives the same bits in stock onnxruntime, and its kernels,
emulated, the same values.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_layouts import random_layout_model
from random_models import float64_feeds, in_float64
from region_data import named
from small_models import Net, check_kernels, feeds, matches, replaced_ops

import mirage_onnx
from mirage_onnx.errors import REJECTIONS, RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.equivalence import check_terms
from mirage_onnx.verify.interpret_steps import by_axes
from mirage_onnx.verify.interpret_term import interpret_terms

#: fp16 outputs whose sums are in fp32.


def split_heads(net, tokens):
  y = net.MatMul(net.rms(net.input(1, tokens, 64), net.weight(64)), net.weight(64, 64))
  y = net.Reshape(net.Add(y, net.weight(64)), [1, tokens, 4, 16])
  return net.Transpose(y, perm=[0, 2, 1, 3])


def joined_heads(net, tokens):
  """[1, heads, tokens, 16] as rows of 64, a linear layer and the residual."""
  y = net.Transpose(net.input(1, 4, tokens, 16), perm=[0, 2, 1, 3])
  y = net.MatMul(net.Reshape(y, [1, tokens, 64]), net.weight(64, 64))
  return net.Add(y, net.input(1, tokens, 64))


def normed_heads(net, tokens):
  """x W, each head divided by its own root mean square (Qwen3)."""
  y = net.Reshape(net.MatMul(net.input(1, tokens, 64), net.weight(64, 64)), [1, tokens, 4, 16])
  return net.Transpose(net.rms(y, net.weight(16)), perm=[0, 2, 1, 3])


def shared_heads(net, tokens):
  """Two heads read by four, as exporters write grouped-query attention."""
  k, q = net.input(1, 2, tokens, 16), net.input(1, 4, tokens, 16)
  repeated = net.Expand(net.Unsqueeze(k, [2]), [1, 2, 2, tokens, 16])
  return net.Exp(net.Mul(net.Tanh(q), net.Reshape(repeated, [1, 4, tokens, 16])))


def centred_tokens(net, tokens):
  """Each token less its mean over heads and elements, which become one axis."""
  x = net.input(tokens, 4, 16)
  return net.Mul(net.Sub(x, net.ReduceMean(x, [1, 2])), net.weight(4, 16))


def model_of(build, tokens):
  net = Net(seed=3)
  return net.model(build(net, tokens))


@pytest.mark.parametrize(
  ("build", "tokens", "left"),
  [
    (split_heads, 1, set()),
    (split_heads, 8, set()),
    (joined_heads, 1, set()),
    # Two dimensions that are not side by side would be contracted.
    (joined_heads, 8, {"Reshape", "Transpose"}),
    (normed_heads, 1, set()),
    (normed_heads, 8, set()),
    (shared_heads, 1, set()),
    (shared_heads, 8, set()),
    (centred_tokens, 8, set()),
  ],
)
def test_regrouped_regions(build, tokens, left):
  model = model_of(build, tokens)
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  nodes = replaced_ops(result)
  assert {n.op_type for n in model.graph.node if n.name not in nodes} == left
  check_kernels(model, result, feeds(model, np.random.default_rng(0)), atol=4e-3)


@pytest.mark.parametrize("turned", [False, True])
def test_heads_of_a_batch_are_written_apart(turned):
  """q, and k as its product reads it, of 8 heads of 64: one kernel, which writes them where they belong."""
  net = Net(seed=3)
  y = net.Add(net.MatMul(net.input(2, 40, 512), net.weight(512, 512)), net.weight(512))
  y = net.Transpose(net.Reshape(y, [0, 0, 8, 64]), perm=[0, 2, 1, 3])
  y = net.Transpose(y, perm=[0, 1, 3, 2]) if turned else y
  model = net.model(net.Mul(y, 64**-0.25))
  # It is about one kernel for all of it, be it predicted faster than ONNX Runtime's or not.
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-5)
  (region,) = (r for r in result.report["regions"] if r["status"] == "replaced")
  assert set(region["ops"]) == {n.name for n in model.graph.node}
  check_kernels(model, result, feeds(model, np.random.default_rng(0)), atol=4e-3)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
def test_attention_of_grouped_heads(tokens):
  """Keys and values that several queries share are read in place, whatever repeats them."""
  net = Net(seed=3)
  shared = (net.input(1, 2, 24, 16) for _ in range(2))
  repeated = (net.Expand(net.Unsqueeze(x, [2]), [1, 2, 2, 24, 16]) for x in shared)
  k, v = (net.Reshape(x, [1, 4, 24, 16]) for x in repeated)
  logits = net.MatMul(net.input(1, 4, tokens, 16), net.Transpose(k, perm=[0, 1, 3, 2]))
  model = net.model(net.MatMul(net.Softmax(logits), v))
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert len(replaced_ops(result)) == len(model.graph.node)
  check_kernels(model, result, feeds(model, np.random.default_rng(0)), atol=4e-3)


@st.composite
def chains(draw):
  return random_layout_model(lambda options: draw(st.sampled_from(options)), draw(st.integers(3, 8)))


def assert_terms_are_the_model(region, values):
  """The terms at the model's own sizes, against numpy on the ONNX nodes."""
  got = interpret_terms(Float64(), region.terms, named(region, values), region.extents)
  for o, value in zip(region.outputs, got, strict=True):
    want = by_axes(o, values[o.tensor.name], region.extents)
    # What cancels is 0 without axes in the terms.
    np.testing.assert_allclose(value.aligned(o.axes)[0] + 0 * want, want, rtol=1e-7, atol=1e-7)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(chains())
def test_random_chains_of_reshapes(model):
  """Steps and terms agree, at other sizes and at the model's own; a refusal has a reason."""
  found = matches(model)
  regions = [c.region for c in found.candidates]
  try:
    regions.append(whole_region(import_model(load_model(model))))
  except RejectionError as refused:
    assert refused.rejection.code in ("AXES_CONFLICT", "OP_FORM"), refused
    assert refused.rejection.reason
  assert all(r.code in REJECTIONS and r.reason for r in found.rejections)
  values = in_float64(model, float64_feeds(model, np.random.default_rng(1)))
  for region in regions:
    reason = check_terms(region, np.random.default_rng(0))
    assert reason is None or reason.code == "INCONCLUSIVE", reason
    assert_terms_are_the_model(region, values)
