"""The check of a written model: what it finds, and what it only says."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewritten import chain

from mirage_onnx.custom_op.child import Ended
from mirage_onnx.custom_op.widen import widened
from mirage_onnx.rewrite import stock_check
from mirage_onnx.rewrite.stock_check import check_written


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pair")
  three = chain()
  onnx.save(three.original, folder / "in.onnx")
  return folder / "in.onnx", three.model


def check(pair, tmp_path, change=lambda model: None, seconds=120.0, weight_bytes=0):
  model = onnx.ModelProto()
  model.CopyFrom(pair[1])
  change(model)
  onnx.save(model, tmp_path / "out.onnx")
  return check_written(pair[0], tmp_path / "out.onnx", weight_bytes, seconds)


def test_a_right_model(pair, tmp_path):
  found = check(pair, tmp_path)
  assert found.problem == "" and "the same bits" in found.said


def other_operator(model):
  node = next(n for f in model.functions for n in f.node if n.op_type == "Relu")
  node.op_type = "Neg"


def unknown_operator(model):
  node = next(n for f in model.functions for n in f.node if n.op_type == "Relu")
  node.domain = "vendor"
  next(f for f in model.functions if node in f.node).opset_import.add(domain="vendor", version=1)
  model.opset_import.add(domain="vendor", version=1)


def older_opset(model):
  model.functions[0].opset_import[0].version -= 1


def no_such_value(model):
  model.graph.node[-1].input[1] = "nobody makes this"


@pytest.mark.parametrize(
  ("change", "why"),
  [
    (other_operator, "differs"),
    (unknown_operator, "onnxruntime on the result"),
    (no_such_value, "checker"),
    (older_opset, "is of opset"),
  ],
)
def test_a_wrong_model(pair, tmp_path, change, why):
  assert why in check(pair, tmp_path, change).problem


def test_rounding_is_no_problem(pair, tmp_path):
  def rounded(model):
    for t in model.graph.initializer:
      if t.data_type == onnx.TensorProto.FLOAT16 and len(t.dims) == 2:
        near = numpy_helper.to_array(t) * np.float16(1.0005)
        t.CopyFrom(numpy_helper.from_array(near, t.name))
        return

  found = check(pair, tmp_path, rounded)
  assert found.problem == "" and "up to rounding" in found.said


@pytest.fixture(scope="module")
def bfloat16_pair(pair, tmp_path_factory):
  """As ``pair``, in a type that onnxruntime has no kernels for on the CPU."""
  folder = tmp_path_factory.mktemp("bfloat16")
  kinds = {onnx.TensorProto.FLOAT16: onnx.TensorProto.BFLOAT16}
  original = widened(onnx.load(pair[0]), None, kinds)
  onnx.save(original, folder / "in.onnx", save_as_external_data=True, location="w", size_threshold=64)
  return folder / "in.onnx", widened(pair[1], None, kinds)


def test_bfloat16_is_compared_in_fp32(bfloat16_pair, tmp_path):
  found = check(bfloat16_pair, tmp_path)
  assert found.problem == "" and found.ran and "in fp32" in found.said and "the same bits" in found.said
  assert "differs" in check(bfloat16_pair, tmp_path, other_operator).problem
  assert "onnxruntime on the result" in check(bfloat16_pair, tmp_path, unknown_operator).problem


def test_bfloat16_in_memory(bfloat16_pair, tmp_path):
  inside = onnx.load(bfloat16_pair[0]).SerializeToString()
  found = check((inside, bfloat16_pair[1]), tmp_path)
  assert found.problem == "" and "in fp32" in found.said


def test_too_many_bfloat16_weights_are_said(bfloat16_pair, tmp_path, monkeypatch):
  monkeypatch.setattr(stock_check, "MOST_WIDENED_BYTES", 0)
  onnx.save(bfloat16_pair[1], tmp_path / "out.onnx")
  question = stock_check.Question(bfloat16_pair[0], tmp_path / "out.onnx", True)
  with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
    stock_check._check(question, lambda _: None)


def test_a_large_model_is_not_run(pair, tmp_path):
  found = check(pair, tmp_path, other_operator, weight_bytes=stock_check.MOST_BYTES + 1)
  assert found.problem == "" and "not run" in found.said
  assert "checker" in check(pair, tmp_path, no_such_value, weight_bytes=stock_check.MOST_BYTES + 1).problem


@pytest.mark.parametrize(
  ("ended", "is_problem"),
  [
    (Ended("onnxruntime on the result, of whose original it took 0.1 s", "ended by SIGSEGV"), True),
    (Ended("onnxruntime on the original", "ended by SIGSEGV"), False),
    (Ended("onnxruntime on the result, of whose original it took 0.1 s", "no end", late=True), True),
    (Ended("onnxruntime on the result, of whose original it took 9.5 s", "no end", late=True), False),
    (Ended("onnxruntime on the original", "no end", late=True), False),
    (Ended("its start", "ended with status 1"), False),
  ],
)
def test_a_child_that_ends(monkeypatch, tmp_path, ended, is_problem):
  """A crash of the original is onnxruntime's; that of the result only may be ours."""
  monkeypatch.setattr(stock_check, "in_child", lambda *_: ended)
  found = check_written(tmp_path / "in.onnx", tmp_path / "out.onnx", 0, 60.0)
  assert bool(found.problem) == is_problem
  assert str(ended) in found.problem + found.said
