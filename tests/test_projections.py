"""Attention that projects its input, from model to session: kernels of its parts, in the emulator."""

import numpy as np
import pytest
from projecting_models import projecting
from small_models import feeds, run_model

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.tune.known_sizes import Unpredicted


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
  """A prediction chooses what takes ONNX Runtime 300 us; what stays of the node are its parts."""
  floors = pipeline.with_floors

  def timed(times, program, target):
    own = {n.name: 300.0 if n.op_type in slow else 0.1 for n in program.nodes}
    return {**floors(times, program, target), **own}

  monkeypatch.setattr(pipeline, "unpredicted_at", lambda *_: Unpredicted())
  monkeypatch.setattr(pipeline, "with_floors", timed)
  model = projecting(512, 8, dtype=np.float16, mask=mask, batch=2)
  result = mirage_onnx.optimize(model, target="h100", workers=1, tiled=True)
  ops = [n.op_type for n in result.model.graph.node]
  assert [op for op in ops if op in ("Attention", "MatMul", "Split", "MultiHeadAttention")] == left, ops
  values = feeds(model, np.random.default_rng(0))
  values |= {n: v * 13 for n, v in values.items() if v.shape == (2,)}
  wants, bodies = run_model(model, values), run_model(result.model, values)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  for got in (bodies, session.run(None, values)):
    for a, b in zip(got, wants, strict=True):
      np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=1e-2, atol=1e-2)
  counts = mirage_onnx.launches(session)
  assert counts and all(n >= 1 for n in counts.values())
