"""What no prediction may choose: sizes and types at which nothing was measured."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cached_steps import cached_step
from small_models import Net

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.target import H200
from mirage_onnx.targets import get_target, table_path
from mirage_onnx.tune.baseline import load_table
from mirage_onnx.tune.known_sizes import Unpredicted, load_known, unpredicted_at

KNOWN, K = load_known(H200), 64
ROWS = KNOWN.most_rows(1024 * 1024, "f16")
TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def found(net, *outputs, target=H200):
  program = import_model(load_model(net.model(*outputs)))
  return program, unpredicted_at(program, ({},), target)


def why(net, y, target=H200):
  program, every = found(net, y, target=target)
  return {n.op_type: every.nodes[n.name] for n in program.nodes if n.name in every.nodes}


@pytest.mark.parametrize("dtype", KNOWN.products)
def test_more_rows_were_measured_with_small_weights_only(dtype):
  rows, weights = zip(*KNOWN.products[dtype], strict=True)
  assert sorted(rows) == list(rows) and sorted(weights, reverse=True) == list(weights)
  assert [KNOWN.most_rows(n, dtype) for n in weights] == list(rows)
  assert KNOWN.most_rows(weights[0] + 1, dtype) == 0


@pytest.mark.parametrize(
  ("dtype", "place"), [(t, i) for t in KNOWN.products for i in range(len(KNOWN.products[t]))]
)
def test_products_have_as_many_rows_as_were_measured(dtype, place):
  rows, weight = KNOWN.products[dtype][place]
  n = weight // K

  def at(*shape):
    net = Net(TYPES[dtype])
    net.weight = lambda *shape: net.constant(np.zeros(shape, TYPES[dtype]))
    return why(net, net.MatMul(net.input(*shape, K), net.weight(K, n)))

  assert not at(rows) and not at(1, rows)
  for more in ((rows + 1,), (2, rows)):
    assert f"{np.prod(more)} rows, and kernels of {K}x{n} with more than {rows} rows" in at(*more)["MatMul"]


def test_a_weight_larger_than_any(net):
  net.weight = lambda *shape: net.constant(np.zeros(shape, np.float16))
  n = KNOWN.products["f16"][0][1] // K + K
  assert f"with a weight of {K}x{n}" in why(net, net.MatMul(net.input(1, K), net.weight(K, n)))["MatMul"]


def test_types_that_were_measured():
  net = Net(dtype=np.float32)
  text = why(net, net.MatMul(net.input(1, K), net.weight(K, K)))["MatMul"]
  assert "products of f32 were not measured" in text


def test_attention_to_a_cache_of_a_run():
  """It was "products of i32": lengths, and tables of cosines for a weight."""
  program = import_model(load_model(cached_step(1, 2, 4, 64, 256)))
  assert "operands end, or lie, where a run says" in unpredicted_at(program, ({},), H200).nodes["it/attended"]


@pytest.mark.parametrize("rows", [KNOWN.behind_function_rows, KNOWN.behind_function_rows + 1])
def test_a_function_before_a_product(net, rows):
  """Of more rows, a region has the one or the other; what comes behind the product is no matter."""
  first = net.Tanh(net.Add(net.MatMul(net.input(rows, K), net.weight(K, K)), net.weight(K)))
  last = net.Sigmoid(net.MatMul(net.Mul(first, 0.5), net.weight(K, K)))
  program, every = found(net, last)
  product, bias, tanh, half, second, sigmoid = (n.name for n in program.nodes)
  assert every.refusal((tanh, half), H200) is None
  assert every.refusal((half, second, sigmoid), H200) is None
  assert every.refusal((product, bias, tanh), H200) is None
  refused = every.refusal((tanh, half, second), H200)
  assert (refused is None) == (rows <= KNOWN.behind_function_rows)
  if refused:
    assert refused.code == "NOT_PREDICTED"
    assert refused.reason.startswith(
      f"{second}: its product has {rows} rows, and kernels that compute a function"
    )
    assert "--target local" in refused.reason


def test_more_elements_than_the_table_has(net):
  most = load_table(H200).most_elements
  assert not why(net, net.Exp(net.input(most // K, K)))
  net = Net()
  assert "elements" in why(net, net.Exp(net.input(most // K + 1, K)))["Exp"]


def test_of_a_target_without_a_record_no_product_is_known(net):
  other = replace(H200, name="unmeasured")
  assert load_known(other) is None
  assert why(net, net.MatMul(net.input(1, K), net.weight(K, K)), other) == {
    "MatMul": "no kernel was measured"
  }


def test_of_a_row_whose_kernels_nobody_measured_nothing_is_predicted(net):
  """Also where ONNX Runtime was; a profile that somebody measured says more."""
  other = replace(H200, name="unmeasured")
  y = net.Exp(net.input(1, K))
  assert why(net, y, other) == {"Exp": "no kernel was measured"}
  assert why(net, y, replace(other, table=table_path("h200").read_text())) == {}


def test_a_refusal_names_the_node_and_what_to_do():
  every = Unpredicted({"b": "of 17 rows"})
  refused = every.refusal(("a", "b"), H200)
  assert (refused.code, refused.nodes) == ("NOT_PREDICTED", ("a", "b"))
  assert refused.reason == "b: of 17 rows on h200; --target local measures it"
  assert every.refusal(("a",), H200) is None


def test_optimize_leaves_what_it_cannot_predict():
  """One model at rows that were measured, and at more; a margin below 0 takes both."""

  def regions(rows, margin=0.2):
    net = Net()
    model = net.model(net.Add(net.MatMul(net.rms(net.input(rows, 1024)), net.weight(1024, 1024)), 0.5))
    report = mirage_onnx.optimize(model, target="h200", workers=1, margin=margin).report
    return [(r["status"], r["reason"]) for r in report["regions"]]

  assert ("replaced", None) in regions(ROWS)
  left = regions(2 * ROWS)
  assert ("kept", "NOT_PREDICTED") in left


@pytest.mark.slow
def test_a_dynamic_dimension_counts_at_its_largest_declared_size():
  net = Net()
  model = net.model(net.Add(net.MatMul(net.rms(net.input("batch", 1024)), net.weight(1024, 1024)), 0.5))

  def reasons(*sizes):
    report = mirage_onnx.optimize(model, target="h200", workers=1, shapes={"batch": sizes}).report
    return {r["reason"]: r["reason_text"] for r in report["regions"]}

  text = reasons(1, 2 * ROWS)["NOT_PREDICTED"]
  assert f"at batch={2 * ROWS}: " in text and "batch=1:" not in text
  assert "NOT_PREDICTED" not in reasons(1, ROWS)


def test_what_a_gpu_without_a_row_can_do():
  """Its architecture predicts, where it does not: the refusal says so."""
  net = Net(np.float16)
  net.weight = lambda *shape: net.constant(np.zeros(shape, np.float16))
  product = net.MatMul(net.input(1, K), net.weight(K, K))
  for name, more in (("sm_86x46", True), ("sm_90ax60", True), ("sm_86", False)):
    target = get_target(name)
    program, every = found(net, product, target=target)
    refused = every.refusal([n.name for n in program.nodes], target)
    assert (refused is not None) == more
    if refused:
      assert refused.reason.endswith(
        f"--target {target.arch} predicts for the slowest row of its architecture"
      )
      assert get_target(target.arch).arch == target.arch
