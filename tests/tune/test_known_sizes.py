"""What no prediction may choose: sizes and types at which nothing was measured."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import Net

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.target import H200
from mirage_onnx.tune.baseline import load_table
from mirage_onnx.tune.known_sizes import load_known, refuse_unknown, unpredicted

ROWS, K = load_known(H200).rows, 64


def why(net, y, target=H200):
  program = import_model(load_model(net.model(y)))
  found = unpredicted([("", program)], target, load_table(H200))
  return {n.op_type: found[n.name] for n in program.nodes if n.name in found}


@pytest.mark.parametrize(
  ("rows", "known"), [((1,), True), ((ROWS,), True), ((ROWS + 1,), False), ((2, ROWS), False)]
)
def test_products_have_as_many_rows_as_were_measured(net, rows, known):
  found = why(net, net.MatMul(net.input(*rows, K), net.weight(K, K)))
  assert not found if known else f"{np.prod(rows)} rows" in found["MatMul"]


def test_types_that_were_measured():
  net = Net(dtype=np.float32)
  found = why(net, net.MatMul(net.input(1, K), net.weight(K, K)))
  assert "products of f32 were not measured" in found["MatMul"]


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


def test_a_refusal_names_the_node_and_what_to_do():
  found = refuse_unknown({"b": "of 17 rows"}, ("a", "b"), H200)
  assert (found.code, found.nodes) == ("NOT_PREDICTED", ("a", "b"))
  assert found.reason == "b: of 17 rows on h200; --target local measures it"
  assert refuse_unknown({"b": "of 17 rows"}, ("a",), H200) is None


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


def test_a_dynamic_dimension_counts_at_its_largest_declared_size():
  net = Net()
  model = net.model(net.Add(net.MatMul(net.rms(net.input("batch", 1024)), net.weight(1024, 1024)), 0.5))

  def reasons(*sizes):
    report = mirage_onnx.optimize(model, target="h200", workers=1, shapes={"batch": sizes}).report
    return {r["reason"]: r["reason_text"] for r in report["regions"]}

  text = reasons(1, 2 * ROWS)["NOT_PREDICTED"]
  assert f"at batch={2 * ROWS}: " in text and "batch=1:" not in text
  assert "NOT_PREDICTED" not in reasons(1, ROWS)
