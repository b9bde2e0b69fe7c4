"""The line of one model that has all that a line can show."""

import pytest
from coverage_table.row import coverage, folded_nodes, vanished_nodes
from small_models import Net

from mirage_onnx import pipeline
from mirage_onnx.importer import load_model
from mirage_onnx.target import H200
from mirage_onnx.tune.baseline import load_table, node_times_us

K, N, LARGE = 256, 512, 1024


@pytest.fixture(scope="module")
def model():
  net = Net()
  y = net.Relu(net.MatMul(net.rms(net.input(1, K), net.weight(K)), net.weight(K, N)))
  constant = net.Transpose(net.weight(N, 1), perm=[1, 0])
  summed = net.CumSum(net.Mod(y, constant, fmod=1), [0])
  return net.model(summed, net.MatMul(net.input(LARGE, LARGE), net.weight(LARGE, LARGE)))


@pytest.fixture(scope="module")
def run(model):
  return pipeline.run(load_model(model), pipeline.Options(H200, budget_s=2000))


@pytest.fixture(scope="module")
def found(run):
  table = load_table(H200)
  assert table is not None
  return coverage(run, node_times_us(run.program, table))


def test_nodes(run, found):
  ops = {n.name: n.op_type for n in run.program.nodes}
  assert [ops[n] for n in folded_nodes(run.program)] == ["Transpose"]
  # rms is Mul, ReduceMean, Add, Sqrt, Div and Mul; then MatMul and Relu
  gone = vanished_nodes(run.program, run.model)
  assert len(gone) == found.replaced_nodes == 8
  assert (found.nodes, found.folded, found.unsized) == (11, 1, 0)
  assert (found.replaced, found.instances) == (1, 1)
  assert found.share.nodes == pytest.approx(8 / 11, abs=1e-4)


def test_flops_and_bytes(found):
  large = 2 * LARGE**3
  # 5 elementwise functions of a row and its mean, two of one number; relu; mod; cumsum
  replaced = 2 * K * N + 5 * K - K + 2 + N
  assert found.flops == replaced + 2 * N + large
  assert found.share.flops == pytest.approx(replaced / found.flops, abs=1e-4)
  (apart,) = found.library
  assert (apart.op_type, apart.nodes, apart.rows, apart.flops) == ("MatMul", 1, (LARGE, LARGE), large)
  assert apart.by_choice and apart.code == "TOO_SMALL"
  assert apart.bytes == 3 * 2 * LARGE**2
  assert found.share_apart.flops == pytest.approx(replaced / (found.flops - large), abs=1e-4)
  assert found.share.bytes < found.share_apart.bytes < 1


def test_reasons_account_for_the_rest(found):
  kept = sorted((op, k.reason.code, n) for k in found.kept for op, n in k.ops.items())
  assert kept == [("CumSum", "OP_UNKNOWN", 1), ("MatMul", "TOO_SMALL", 1), ("Mod", "OP_UNKNOWN", 1)]
  assert sum(k.nodes for k in found.kept) + found.replaced_nodes == found.nodes
  rest = sum(k.bytes for k in found.kept)
  assert 1 - rest / found.bytes == pytest.approx(found.share.bytes, abs=1e-4)
  assert [k.bytes for k in found.kept] == sorted((k.bytes for k in found.kept), reverse=True)


def test_times(run, found):
  ((_, outcome),) = run.chosen
  ours = outcome.compiled.candidate.predicted_us
  assert found.before_us - found.after_us == pytest.approx(outcome.baseline_us - ours, abs=0.02)
  assert found.unpriced == 2  # CumSum and Mod
