"""A table of times is made of measured points; whole models are compared by what it says."""

import json

import operator_table
import operator_times
import predictions
import pytest

from mirage_onnx.target import H100, H200
from mirage_onnx.tune.baseline import load_table, model_table
from mirage_onnx.tune.model_times import IN_MODEL_US
from mirage_onnx.tune.operator_grid import TimesGrid

HEAD = {
  "versions": {"onnxruntime-gpu": "1.31.1"},
  "gpu": "NVIDIA H100 80GB HBM3, 580.1, 345 MHz",
  "commit": "abc",
}


def line(kind, sizes, us=None, dtype="fp16"):
  return {"kind": kind, "type": dtype, "sizes": sizes} | (
    {"refused": "no kernel"} if us is None else {"us": us}
  )


def test_points_are_named_as_nodes_are_looked_up():
  rows = [
    line("MatMul", [16, 1024, 256], 4.0), line("Gemm", [16, 1024, 256], 6.5),
    line("Gemm", [1, 1024, 256], 6.5),
    line("scores", [8, 512, 64, 512], 20.0), line("values", [8, 1, 4096, 128], 9.0), line("Exp", [512], None),
  ]  # fmt: skip
  table = json.loads(operator_table.text_of(operator_table.table_of([HEAD, *rows])))
  assert (table["ort"], table["gpu"], table["driver"]) == ("1.31.1", "NVIDIA H100 80GB HBM3", "580.1")
  assert table["points"] == {
    "fp16": {
      "Bias": [[16 * 256, 2.07]], "MatMul": [[16, 1024, 256, 3.57]], "scores/8": [[8, 512, 64, 19.57]],
      "values of a row/8": [[8, 4096, 128, 8.57]],
    }
  }  # fmt: skip
  assert table["less_us"] == operator_table.LESS_US == 0.43  # a node of a model takes less
  assert TimesGrid.of(table["points"]).us("MatMul", "fp16", (9, 512, 64)) == pytest.approx(3.57)


def test_points_of_a_gpu_with_faster_memory():
  """What is read from memory takes less by what the memory is faster, all else as long."""
  points = {
    "fp16": {
      "Add": [[512, 1.0], [1 << 26, 150.0]], "MatMul": [[4096, 768, 768, 20.0], [1, 4096, 14336, 45.0]],
      "scores/8": [[96, 512, 64, 20.0]], "scores of a row/8": [[96, 8192, 128, 70.0]],
    }
  }  # fmt: skip
  found = operator_table.carried(points, H100, H200)["fp16"]
  gain = 1 / H100.stream_tbps - 1 / H200.stream_tbps
  assert found["Add"] == [[512, 1.0], [1 << 26, pytest.approx(150.0 - 3 * 2 * 2**26 / 1e6 * gain, abs=1e-3)]]
  (_, *products) = found["MatMul"][0], *found["MatMul"]
  assert products[0][-1] == pytest.approx(20.0 - 2 * 768 * 768 / 1e6 * gain, abs=1e-3)
  assert products[1][-1] == pytest.approx(45.0 - 2 * 4096 * 14336 / 1e6 * gain, abs=1e-3)
  assert found["scores/8"][0][-1] < 20.0  # more than L2 holds
  assert 70.0 * H100.stream_tbps / H200.stream_tbps <= found["scores of a row/8"][0][-1] < 70.0
  own = model_table(H200).grid
  for kind, sizes in (("Softmax", (4096, 1024)), ("MatMul", (512, 4096, 4096)), ("scores/8", (96, 512, 64))):
    assert 0.6 < own.us(kind, "fp16", sizes) / load_table(H100).grid.us(kind, "fp16", sizes) <= 1.0
  choices = load_table(H200)  # its own points first, what was carried where they are silent
  assert choices.ops == model_table(H200).ops and choices.grid == own and not choices.grid_first


def test_every_point_is_one_node_that_moves_what_it_says():
  kinds = set()
  for kind, dtype, sizes in operator_times.points(["fp16", "fp32"], []):
    op, inputs, _, outputs, _ = operator_times.node_of(kind, sizes, operator_times.TYPES[dtype])
    assert op and inputs and outputs and all(d > 0 for shape, *_ in (*inputs, *outputs) for d in shape)
    kinds.add(kind)
  assert len(kinds) > 40
  assert (
    operator_times.counts_of(operator_times.node_of("Exp", (512,), 10), (512,)) == operator_times.MOST_RUNS
  )


def test_errors_and_ranks():
  assert predictions.said([0.1, -0.3, 0.2]) == {"count": 3, "median": 0.2, "worst": 0.3}
  assert (
    predictions.rank([(1, 2), (2, 3), (5, 9)]) == 1.0 and predictions.rank([(1, 3), (2, 2), (3, 1)]) == -1.0
  )
  row = {
    "replaced": [
      {"ops": ["a", "b"], "count": 2, "predicted_us": 1.0},
      {"ops": ["b"], "count": 2, "predicted_us": 0.5},
    ]
  }
  # The nodes a and b of two layers take 20 us; c stays. Kernels take longer in a model, once.
  nodes = {"a": 4.0, "b": 6.0, "a2": 4.0, "b2": 6.0, "c": 3.0}
  after = predictions.after_us(row, nodes, {"a", "b", "a2", "b2"})
  assert after == pytest.approx(6.0 + 4 * IN_MODEL_US)
  known = dict.fromkeys([("a",), ("b", "c"), ("a", "d"), ("c",)])
  assert predictions.parts_of(("a", "b", "c"), known) == [("b", "c"), ("a",)]
