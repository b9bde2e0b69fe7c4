"""ONNX's own backend tests: what passes with ONNX Runtime passes with an optimized model."""

import onnx
import pytest
from backend_runs import (
  Case,
  Emulated,
  Ended,
  Optimized,
  OptimizedLifted,
  Prepared,
  Stock,
  StockLifted,
  compare,
  load_tests,
  reading_floats,
  run_test,
  stock_session,
  summary,
)
from onnx import TensorProto, helper
from protos import new_node, typed

from mirage_onnx.importer import load_model

#: One case of so many; the numbers are primes, so that no family of tests is always missed.
SAMPLES = {"users": 13, "converted": 7, "verified": 67}


@pytest.fixture(autouse=True)
def models_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("ONNX_MODELS", str(tmp_path))


def check(stock, other, every):
  cases = list(compare(stock, other, lambda i: i % every == 5))
  assert summary(cases)["differing"] == []
  assert sum(c.stock.status == "passed" for c in cases) > len(cases) / 2
  return cases


@pytest.mark.slow
def test_as_users_run_it():
  cases = check(Stock, Optimized, SAMPLES["users"])
  assert len(cases) > 150
  assert sum(c.other.replaced > 0 for c in cases) >= 5


@pytest.mark.slow
def test_older_models_converted():
  cases = check(StockLifted, OptimizedLifted, SAMPLES["converted"])
  assert len(cases) > 10 and not any(c.other.refused for c in cases)


@pytest.mark.slow
def test_everything_that_verifies_emulated():
  cases = check(Stock, Emulated, SAMPLES["verified"])
  assert any(c.other.replaced > 0 for c in cases)
  floats = summary(cases)["float_tabled"]
  assert floats["replaced"] == floats["replaced_and_passed"] > floats["cases"] / 2


def test_every_suite_is_there():
  found = [category for category, _ in load_tests((Stock,))]
  assert {c: found.count(c) > 0 for c in found} == dict.fromkeys(
    ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel", "RealModel"),
    True,
  )
  assert found.count("NodeModel") > 1500


class Wrong(Stock):
  @classmethod
  def prepare(cls, model, device="CPU", **kwargs):
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    name = changed.graph.output[0].name
    for node in changed.graph.node:
      node.output[:] = ["inner" if o == name else o for o in node.output]
    changed.graph.node.append(helper.make_node("Neg", ["inner"], [name]))
    return Prepared(stock_session(changed.SerializeToString()))


def test_a_wrong_backend_is_seen():
  tests = load_tests((Stock, Wrong))
  pair = tests["NodeModel", "test_cos_cpu"]
  case = Case("NodeModel", "cos", run_test(pair[Stock]), run_test(pair[Wrong]))
  assert (case.stock.status, case.other.status) == ("passed", "failed")
  assert "Mismatch" in case.other.why or "tolerance" in case.other.why or case.other.why
  assert summary([case])["differing"][0]["case"] == "cos"


def test_an_undocumented_refusal_is_a_difference():
  tests = load_tests((Optimized,))
  assert run_test(tests["NodeModel", "test_relu_cpu"][Optimized]) == Ended("passed")
  model = helper.make_model(
    helper.make_graph(
      [new_node("Add", "x", "y")], "g",
      [typed("x", TensorProto.FLOAT, [1])],
      [typed("y", TensorProto.FLOAT, [1])],
    ),
    opset_imports=[helper.make_opsetid("", 20)],
  )  # fmt: skip
  with pytest.raises(Exception, match="schema"):
    Optimized.prepare(model)
  assert Optimized.refused == "MODEL_INVALID"


def test_what_counts_as_a_float_test_of_a_tabled_operator():
  """A node with an operator of the table that reads floats as data, whatever its form and result."""
  float_, double, int_ = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
  inputs = [typed("x", float_, [2]), typed("d", double, [2]), typed("i", int_, [2])]
  nodes = [
    new_node("Relu", "x", "a"),  # counts
    new_node("Neg", "d", "b"),  # only fp64
    new_node("Cast", "i", "c", to=float_),  # reads integers
    new_node("Cast", "x", "e", to=int_),  # counts, though no kernel yields integers
    new_node("Acos", "x", "f"),  # not in the table
    new_node("Pow", "i x", "h"),  # the exponent is a parameter
  ]
  outputs = [onnx.ValueInfoProto(name=n) for n in "abcefh"]
  graph = helper.make_graph(nodes, "g", inputs, outputs)
  loaded = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]))
  assert [n.split("_")[0] for n in reading_floats(loaded)] == ["Relu", "Cast"]
  assert [i for i, n in enumerate(loaded.node_names) if n in reading_floats(loaded)] == [0, 3]


def test_the_reason_of_a_float_test_that_is_kept():
  tests = load_tests((Stock, Emulated))
  cases = []
  for name in ("test_exp", "test_transpose_default", "test_greater", "test_acos"):
    pair = tests["NodeModel", f"{name}_cpu"]
    cases.append(Case("NodeModel", name, run_test(pair[Stock]), run_test(pair[Emulated])))
  assert [c.other.kept for c in cases] == ["", "TOO_SMALL", "DTYPE", None]
  assert summary(cases)["float_tabled"] == {
    "cases": 3, "replaced": 1, "replaced_and_passed": 1, "kept": {"DTYPE": 1, "TOO_SMALL": 1},
  }  # fmt: skip
  assert all(c.equal for c in cases)
