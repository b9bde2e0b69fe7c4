"""What ONNX Runtime's kernels are said to cost: interpolation, fusions, the unknown."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from small_models import Net

from mirage_onnx import pipeline
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.target import H100, H200
from mirage_onnx.targets import table_path
from mirage_onnx.tune.baseline import (
  BIAS,
  FREE,
  Table,
  alone_us,
  load_table,
  node_times_us,
  ranking_table,
  with_floors,
)

MODELS = Path(__file__).resolve().parents[2] / "models"
TABLE = Table(
  "a test",
  {"Exp": ((1000.0, 1.0), (3000.0, 2.0)), "Mul": ((200.0, 1.5),), "Add": ((200.0, 1.5),),
   "Softmax": ((200.0, 9.0),), "Sigmoid": ((200.0, 3.0),)},
  ((1, 64, 64, 2.0), (1, 128, 128, 6.0), (8, 64, 64, 3.0), (8, 128, 128, 7.0)),
)  # fmt: skip


@pytest.mark.parametrize(
  ("elements", "us"),
  [(1000, 1.0), (2000, 1.5), (3000, 2.0), (1, 1.0)],
)
def test_between_points(elements, us):
  assert TABLE.op_us("Exp", elements) == pytest.approx(us)


def test_nothing_is_extrapolated():
  assert TABLE.op_us("Exp", 3001) is None
  assert TABLE.matmul_us(9, 64, 64) is None
  assert TABLE.matmul_us(8, 128, 129) is None
  assert TABLE.most_elements == 3000


def test_an_operator_without_a_row():
  assert TABLE.op_us("Erf", 1000) is None


@pytest.mark.parametrize(
  ("m", "k", "n", "us"),
  [
    (1, 64, 64, 2.0),
    (1, 128, 128, 6.0),
    (1, 160, 64, 4.0),
    (8, 64, 64, 3.0),
    (5, 64, 64, 3.0),
    (1, 16, 16, 2.0),
  ],
)
def test_contractions(m, k, n, us):
  assert TABLE.matmul_us(m, k, n) == pytest.approx(us)
  assert TABLE.matmul_us(m, n, k) == pytest.approx(us)


def test_more_never_costs_less():
  table = load_table(H200)
  for op in table.ops:
    times = [table.op_us(op, n) for n in (1, 10**3, 10**5, 10**7, 2**24)]
    assert times == sorted(times), op
  for m in (1, 8, 64):
    times = [table.matmul_us(m, n, n) for n in (64, 512, 4096, 7000)]
    assert times == sorted(times)
  rows = [table.matmul_us(m, 2048, 2048) for m in (1, 2, 8, 16, 64, 256)]
  # Measured: another kernel takes over at 64 rows.
  assert all(b > 0.8 * a for a, b in pairwise(rows))


def test_the_table_names_its_source():
  table = load_table(H200)
  assert "onnxruntime" in table.source
  assert "H200" in table.source
  assert all(us > 0 for points in table.ops.values() for _, us in points)
  assert load_table(replace(H200, name="unmeasured")) is None


def test_what_ranks_regions_where_nothing_is_predicted():
  """An H100's regions are timed in the order of an H200's times; without timing none is replaced."""
  other = replace(H100, name="unmeasured")
  assert load_table(other) is None and ranking_table(other) is load_table(H200)
  assert ranking_table(H200) is load_table(H200)
  assert ranking_table(replace(H200, name="unmeasured")) is None
  loaded = load_model(MODELS / "lora.onnx")
  run = pipeline.run(loaded, pipeline.Options(other))
  assert not run.chosen and run.times is None
  assert {o.rejection.code for o in run.outcomes.values()} == {"NOT_PREDICTED"}


def times(net, *outputs, table=TABLE):
  program = import_model(load_model(net.model(*outputs)))
  found = node_times_us(program, table)
  return {n.op_type: found[n.name] for n in program.nodes if n.name in found}


def test_nodes(net):
  y = net.Mul(net.Exp(net.MatMul(net.input(1, 64), net.weight(64, 64))), net.input(1, 64))
  assert times(net, y) == {"MatMul": 2.0, "Exp": 1.0, "Mul": 1.5}


def test_the_larger_of_input_and_output_counts(net):
  assert times(net, net.ReduceMean(net.Exp(net.input(2, 1500)), [-1]), table=with_mean()) == {
    "Exp": 2.0,
    "ReduceMean": 2.0,
  }


def with_mean():
  return replace(TABLE, ops={**TABLE.ops, "ReduceMean": TABLE.ops["Exp"]})


def test_a_bias_is_free(net):
  y = net.Add(net.MatMul(net.input(1, 64), net.weight(64, 64)), net.weight(64))
  assert times(net, y) == {"MatMul": 2.0, "Add": 0.0}
  program = import_model(load_model(net.model(y)))
  ((added, (product, us)),) = alone_us(program, H200).items()
  assert [added, product] == [n.name for n in reversed(program.nodes)]
  table = load_table(H200)
  more_us = table.grid.us(BIAS, "fp16", (64,)) or 0.0  # what the product takes longer with it
  assert us == table.op_us("Add", 64) - more_us > 0


def test_parts_of_unequal_sizes_put_together_are_measured(net):
  table = replace(TABLE, ops={**TABLE.ops, "Concat": ((1, 7.0), (1e6, 7.0))})
  parts = net.input(2, 24, 64), net.input(2, 8, 64)
  assert times(net, net.Concat(*parts, axis=1), table=table) == {"Concat": 7.0}
  net = Net()
  halves = net.input(2, 32, 64), net.input(2, 32, 64)
  assert times(net, net.Concat(*halves, axis=1), table=table) == {}  # as Relu, which is not known


def test_another_sum_is_not_a_bias(net):
  y = net.Add(net.MatMul(net.input(1, 64), net.weight(64, 64)), net.input(1, 64))
  assert times(net, y) == {"MatMul": 2.0, "Add": 1.5}


def test_a_bias_of_a_result_that_others_read_is_not_free(net):
  y = net.MatMul(net.input(1, 64), net.weight(64, 64))
  assert times(net, net.Add(y, net.weight(64)), y)["Add"] == 1.5


def test_of_a_pair_one_is_free(net):
  x = net.input(1, 100)
  assert times(net, net.Mul(x, net.Sigmoid(x))) == {"Sigmoid": 0.0, "Mul": 1.5}


@pytest.mark.parametrize("op", sorted(FREE - {"Dropout"}))
def test_moves_of_nothing_are_free(net, op):
  x = net.input(1, 64)
  arguments = {"Reshape": ([64],), "Squeeze": ([0],), "Unsqueeze": ([0],)}.get(op, ())
  assert times(net, net.Exp(getattr(net, op)(x, *arguments)))[op] == 0.0


def test_copies_cost_what_they_yield():
  table = replace(TABLE, ops={**TABLE.ops, "Relu": ((1000.0, 1.0), (15000.0, 8.0))})
  net = Net()
  y = net.Slice(net.input(4, 1500), [0], [1000], [1])
  y = net.Concat(y, net.input(9, 1000), axis=0)
  found = times(net, net.Expand(net.Gather(y, [1]), [8, 1000]), table=table)
  sizes = {"Slice": 4000, "Concat": 13_000, "Gather": 1000, "Expand": 4000}  # half of it read
  assert found == {op: table.op_us("Relu", n) for op, n in sizes.items()}
  net = Net()
  assert times(net, net.Concat(net.weight(1, 9), net.weight(1, 9), axis=0)) == {"Concat": 0.0}


def test_the_unknown_costs_nothing(net):
  x = net.input(2, 64)
  y = net.Hardmax(x)
  z = net.CumSum(y, net.constant(0, np.int64))
  assert times(net, z) == {}


def test_an_elementwise_operator_without_a_row_costs_as_its_like():
  net = Net()
  assert times(net, net.Tanh(net.input(1, 1000))) == {"Tanh": 1.0}
  net = Net()
  assert times(net, net.Max(net.input(1, 100), net.input(1, 100))) == {"Max": 1.5}


def test_dynamic_shapes_and_runtime_matrices_cost_nothing():
  net = Net()
  assert times(net, net.Exp(net.input("batch", 64))) == {}
  net = Net()
  assert times(net, net.MatMul(net.input(8, 64), net.input(64, 64))) == {}


def test_a_weight_larger_than_any_that_was_measured_is_read_at_least():
  net = Net()
  program = import_model(load_model(net.model(net.MatMul(net.input(1, 64), net.weight(64, 512)))))
  assert node_times_us(program, TABLE) == {}
  ((_, us),) = with_floors({}, program, H200).items()
  moved = 2 * (64 + 64 * 512 + 512)
  assert us == pytest.approx(H200.launch_us + moved / (H200.stream_tbps * 1e6))


def test_a_mask_that_attention_implies_is_no_weight_and_not_read():
  floors = []
  for causal in (0, 1):
    net = Net(opset=23)
    y = net.Attention(*(net.input(1, 2, 64, 64) for _ in range(3)), is_causal=causal)
    program = import_model(load_model(net.model(y)))
    assert node_times_us(program, TABLE) == {}
    floors.append(with_floors({}, program, H200))
  assert floors[0] == floors[1] != {}


def test_every_pair_of_the_fusion_table_has_one_side():
  path = table_path("ort_fusions")
  pairs = json.loads(path.read_text())["pairs"]
  assert pairs
  assert {which for _, _, which, _ in pairs} <= {"producer", "consumer"}
  assert len({(a, b) for a, b, *_ in pairs}) == len(pairs)


def test_contractions_of_two_activations_take_what_their_bytes_take(net):
  a, b = net.input(4, 8, 512), net.input(4, 512, 1024)
  program = import_model(load_model(net.model(net.Exp(net.MatMul(a, b)))))
  known = node_times_us(program, TABLE)
  (name,) = (n.name for n in program.nodes if n.op_type == "MatMul")
  assert name not in known
  moved = 2 * 4 * (8 * 512 + 512 * 1024 + 8 * 1024)
  found = with_floors(known, program, H200)
  assert found[name] == pytest.approx(H200.launch_us + moved / (H200.stream_tbps * 1e6))
  assert {n: t for n, t in found.items() if n != name} == known
