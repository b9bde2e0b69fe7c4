"""ONNX Runtime's operators one by one: models that run, points of a clock, and what is missing."""

import time
from dataclasses import replace
from math import inf

import numpy as np
import onnxruntime as ort
import pytest

from mirage_onnx.target import Rated, get_target
from mirage_onnx.tune import operator_table
from mirage_onnx.tune.baseline import load_table
from mirage_onnx.tune.node_times import RUNS
from mirage_onnx.tune.operator_table import grid, measure_table, operator, product


def clock(model, feeds):
  """Bytes at 1 TB/s, and 2 us; of several runs in a row each."""
  us = 2.0 + sum(x.nbytes for x in feeds.values()) / 1e6
  return np.array([[n * us] * 3 for n in RUNS])


@pytest.mark.parametrize("op", grid().ops)
def test_each_operator_runs_and_stays_finite(op):
  model, feeds = operator(op, (8, 64))
  (y,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
  want = {"ReduceMean": (8, 1), "Concat": (8, 64)}.get(op, (8, 64))
  assert np.isfinite(y).all() and y.shape == want and np.ptp(y) > 0


def test_a_product_is_one():
  model, feeds = product(2, 64, 128)
  (y,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
  assert np.allclose(y, feeds["x"].astype(np.float32) @ feeds["w"], rtol=2e-3)


@pytest.fixture
def undrawn(monkeypatch):
  """Sizes only."""
  monkeypatch.setattr(operator_table, "_drawn", lambda shape, kind: np.broadcast_to(np.float16(1), shape))
  monkeypatch.setattr(operator_table, "nodes_model", lambda *of: b"")


@pytest.mark.usefixtures("undrawn")
def test_the_grid_of_the_table():
  found = measure_table(clock, inf, "1.31")
  assert not found.failed and found.points == 6 * 20 + 8 * 6
  # A weight that no cache keeps is timed cold, with all that a run takes.
  assert {p[:3]: p[3] for p in found.matmul}[8, 4096, 4096] == pytest.approx(35.6, abs=0.1)
  assert dict(found.ops["Add"])[16777216] == pytest.approx(2 + 67.1, abs=0.1)
  known = load_table(get_target("h200"))
  assert set(known.ops) == set(found.ops), "the table in the repository has the same operators"
  assert {p[:3] for p in known.matmul} == {p[:3] for p in found.matmul}


@pytest.mark.usefixtures("undrawn")
def test_what_fails_or_is_late_is_named():
  def fails(model, feeds):
    if sum(x.size for x in feeds.values()) > 4096:
      raise RuntimeError("out of memory")
    return clock(model, feeds)

  found = measure_table(fails, inf)
  assert 0 < found.points < 40 and all("out of memory" in f for f in found.failed)
  late = measure_table(clock, time.monotonic() - 1)
  assert late.points == 0 and all("no time left" in f for f in late.failed)


def test_a_target_with_a_table_is_predicted_by_it():
  found = operator_table.OperatorTimes("1.31.1", {"Add": ((512, 1.0), (8192, 3.0))}, ((1, 64, 64, 7.0),))
  ada = replace(get_target("rtx4090"), table=found.text(), rated=Rated.MEASURED)
  table = load_table(ada)
  assert table.op_us("Add", 512) == 1.0 and table.matmul_us(1, 64, 64) == 7.0
  assert table.source == "onnxruntime 1.31.1 on NVIDIA GeForce RTX 4090"
  assert load_table(get_target("rtx4090")).source.endswith("scaled to rtx4090")
