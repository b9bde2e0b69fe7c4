"""Predictions that choose what a test says is slow, and results near what is right."""

import numpy as np

from mirage_onnx import pipeline
from mirage_onnx.tune.known_sizes import Unpredicted


def choose_slow(monkeypatch, slow, us=300.0, other_us=None):
  """A prediction chooses the operators ``slow``, which take ONNX Runtime ``us``, wherever it was measured.

  Others take it ``other_us``, or what the table says.
  """
  floors = pipeline.with_floors

  def timed(times, program, target):
    own = {n.name: us if n.op_type in slow else other_us for n in program.nodes}
    return {**floors(times, program, target), **{n: t for n, t in own.items() if t is not None}}

  monkeypatch.setattr(pipeline, "unpredicted_at", lambda *_: Unpredicted())
  monkeypatch.setattr(pipeline, "with_floors", timed)


def near(got, wants):
  for a, b in zip(got, wants, strict=True):
    assert a.shape == b.shape
    np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=1e-2, atol=1e-2)
