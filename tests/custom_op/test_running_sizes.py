"""Sizes of dimensions that nobody gives: those at which the original runs."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.custom_op import running_sizes
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.compare_inputs import NAMELESS
from mirage_onnx.custom_op.input_facts import InputFacts
from mirage_onnx.custom_op.running_sizes import MOST_NUMBERS, first_run, free_sizes
from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite.stock_check import check_written


def argument(*shape):
  return SimpleNamespace(name="x", type="tensor(float)", shape=list(shape))


def at_least(height, tried):
  def run(feeds):
    tried.append(feeds["x"].shape)
    if feeds["x"].shape[-1] < height:
      raise MirageError("SESSION_FAILED", f"{feeds['x'].shape[-1]} of {height}")
    return {"y": feeds["x"]}

  return run


@pytest.mark.parametrize(
  ("shape", "facts", "free"),
  [
    (("n", 3, "h", "w"), {}, {"h", "w"}),
    (("n", "n"), {}, set()),  # the batch again
    (("t",), {}, {"t"}),
    ((None, 3, None, None), {}, {NAMELESS}),
    (("n", "past", "past + 1"), {"sizes": {"past": 7}}, set()),
    (("n", "past", "total"), {"symbols": {"past", "total"}, "new": 1}, {"past"}),
  ],
)
def test_what_may_grow(shape, facts, free):
  assert free_sizes([argument(*shape)], InputFacts(**facts)) == free


def test_sizes_grow_until_it_runs():
  tried = []
  sizes, feeds, made = first_run([argument("n", 3, "h", "w")], {}, {}, InputFacts(), at_least(50, tried))
  assert (sizes, feeds["x"].shape) == ({"h": 64, "w": 64}, (4, 3, 64, 64)) and made["y"] is feeds["x"]
  assert [t[::3] for t in tried] == [(4, 4), (1, 4), (4, 32), (1, 32), (4, 64)]


def test_given_sizes_stay():
  tried = []
  sizes, _, _ = first_run([argument("n", "h", "w")], {"n": 2, "h": 5}, {}, InputFacts(), at_least(50, tried))
  assert sizes == {"n": 2, "h": 5, "w": 64} and {t[:2] for t in tried} == {(2, 5)}


def test_the_first_error_where_it_runs_at_none():
  tried = []
  with pytest.raises(MirageError, match="4 of 99999"):
    first_run([argument("n", 9, "h", "w")], {}, {}, InputFacts(), at_least(99999, tried))
  assert max(np.prod(t) for t in tried) <= MOST_NUMBERS and len(tried) == 9, "4 x 512 are too many"


def test_sizes_are_tried_for_some_seconds(monkeypatch):
  monkeypatch.setattr(running_sizes, "MOST_S", -1.0)
  tried = []
  with pytest.raises(MirageError, match="4 of 50"):
    first_run([argument("n", "h")], {}, {}, InputFacts(), at_least(50, tried))
  assert tried == [(4, 4)]


def test_a_batch_that_is_one():
  """As exporters write it of what was traced with one row."""

  def run(feeds):
    if feeds["x"].shape[0] != 1:
      raise MirageError("SESSION_FAILED", "cannot reshape")
    return feeds

  sizes, feeds, _ = first_run([argument("batch", "seq")], {}, {}, InputFacts(), run)
  assert sizes == {"batch": 1} and feeds["x"].shape == (1, 4)
  with pytest.raises(MirageError, match="cannot reshape"):
    first_run([argument("batch", "seq")], {"batch": 3}, {}, InputFacts(), run)


@pytest.mark.parametrize(("most", "height"), [(50, 64), (1 << 20, 4)])
def test_a_model_that_makes_nothing_of_its_inputs(most, height):
  """Nothing is compared then; where larger inputs change nothing, the small ones do."""
  run = lambda feeds: {"y": feeds["x"][..., most:]}  # noqa: E731
  sizes, feeds, _ = first_run([argument("n", "h")], {}, {}, InputFacts(), run)
  assert feeds["x"].shape == (4, height) and sizes == ({"h": height} if height > 4 else {})


def downscaled():
  """Of 20 x 20 pixels one."""
  weight = numpy_helper.from_array(np.ones((2, 3, 20, 20), np.float32) / 1200, "w")
  node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[16, 16])
  shapes = (["n", 3, "h", "w"], ["n", 2, "p", "q"])
  x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip("xy", shapes, strict=True))
  graph = helper.make_graph([node], "images", [x], [y], [weight])
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_a_model_of_images_is_checked_and_verified(tmp_path):
  onnx.save(downscaled(), tmp_path / "a.onnx")
  found = check_written(tmp_path / "a.onnx", tmp_path / "a.onnx", 0, 60.0)
  assert found.ran and "the same bits" in found.said, found.said
  path = str(tmp_path / "a.onnx")
  assert all(o.passed for o in compare_models(path, path).outputs)
  with pytest.raises(MirageError, match="Conv"):
    compare_models(path, path, dims={"h": 4, "w": 4})
