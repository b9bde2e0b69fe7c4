"""Attention that projects its input, from model to session: kernels of its parts, in the emulator."""

import numpy as np
import onnx
import pytest
from projecting_models import projecting
from slow_nodes import choose_slow, near
from small_models import feeds, run_model

import mirage_onnx

pytestmark = pytest.mark.usefixtures("searched_once")


@pytest.mark.slow
@pytest.mark.parametrize(
  ("mask", "slow", "left"),
  [
    ("keys", ("MatMul", "MultiHeadAttention"), []),
    ("ends", ("MatMul", "MultiHeadAttention"), []),
    ("keys", ("MultiHeadAttention",), ["MatMul"]),
    ("ends", ("MatMul",), ["Split", "MultiHeadAttention"]),
  ],
)
def test_kernels_of_the_parts(monkeypatch, mask, slow, left):
  """What stays of the node are its parts."""
  choose_slow(monkeypatch, slow, other_us=0.1)
  model = projecting(512, 8, dtype=np.float16, mask=mask, batch=2)
  result = mirage_onnx.optimize(model, target="h100", workers=1)
  ops = [n.op_type for n in result.model.graph.node]
  assert [op for op in ops if op in ("Attention", "MatMul", "Split", "MultiHeadAttention")] == left, ops
  values = feeds(model, np.random.default_rng(0))
  values |= {n: v * 13 for n, v in values.items() if v.shape == (2,)}
  wants, bodies = run_model(model, values), run_model(result.model, values)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  near(bodies, wants)
  near(session.run(None, values), wants)
  counts = mirage_onnx.launches(session)
  assert counts and all(n >= 1 for n in counts.values())


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["ends", "keys"])
def test_sizes_of_a_run(monkeypatch, mask):
  """Dimensions with names, of which nothing is said inside the model, as optimizers write it."""
  choose_slow(monkeypatch, ("MatMul", "MultiHeadAttention"), other_us=0.1)
  model = projecting(512, 8, dtype=np.float16, mask=mask, batch="batch", length="length")
  del model.graph.value_info[:]
  sizes = {"batch": [2], "length": [64]}
  result = mirage_onnx.optimize(model, target="h100", workers=1, shapes=sizes, budget_s=600)
  assert "Attention" not in [n.op_type for n in result.model.graph.node]
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  rng = np.random.default_rng(0)
  (seen,) = (v.name for v in model.graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.INT32)
  (x,) = (v.name for v in model.graph.input if v.name != seen)
  for batch, length in ((1, 1), (2, 24), (1, 77), (3, 9)):
    drawn = rng.integers(1, length + 1, batch) if mask == "ends" else rng.integers(0, 2, (batch, length))
    values = {x: rng.standard_normal((batch, length, 512)).astype(np.float16), seen: drawn.astype(np.int32)}
    near(session.run(None, values), run_model(model, values))
  counts = mirage_onnx.launches(session)  # of the projection, too, where the clock lets it be searched
  assert counts and all(n >= 4 for n in counts.values())
