"""Numbers that cancel to nothing leave what rounding made of them: right models pass, wrong ones do not."""

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.custom_op import in_double
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.difference import difference, within_roundings

ROWS, WIDTH = 6, 384


def squeezed(how="", off=0.0, softmaxes=2):
  """What softmax has made nearly equal, less its mean; ``off``: a relative error of that."""
  net = Net(np.float32, seed=5)
  s = net.input(ROWS, WIDTH)
  for _ in range(softmaxes):
    s = net.Softmax(s, axis=-1)
  s = net.Sigmoid(s)
  if how == "terms":
    mean = net.ReduceSum(net.Mul(s, float(np.float32((1 + off) / WIDTH))), [-1], keepdims=1)
  else:
    mean = net.ReduceMean(s, [-1], keepdims=1)
  away = net.Sub(s, mean)
  net.Tanh(away)
  net.nodes[-1].output[0] = "y"
  return net.model("y").SerializeToString()


@pytest.mark.parametrize("softmaxes", [2, 3])
def test_sums_in_another_order(softmaxes):
  """float64 agrees with the original as far as that has a digit, which here is nowhere."""
  found = compare_models(squeezed(softmaxes=softmaxes), squeezed("terms", softmaxes=softmaxes))
  assert found.passed and found.needed_rtol > 0.01
  assert "cancel" in found.outputs[0].reason


@pytest.mark.parametrize("off", [1e-5, -1e-5])
def test_a_wrong_mean(off):
  assert not compare_models(squeezed(), squeezed("terms", off)).passed


def test_float64_that_means_something_else_is_not_asked(monkeypatch):
  """Of noise only what roundings explain agrees."""
  made = in_double._in_onnxruntime
  monkeypatch.setattr(
    in_double, "_in_onnxruntime", lambda *a: lambda f: {k: v + 1e-5 for k, v in made(*a)(f).items()}
  )
  monkeypatch.setattr(in_double, "_in_numpy", in_double._in_onnxruntime)
  in_double._last.clear()
  found = compare_models(squeezed(), squeezed("terms"))
  in_double._last.clear()
  assert not found.passed


def test_number_by_number():
  """One number of a row is lost: it explains nothing of the next one."""
  exact = np.array([[1.0, 2.0, 3.0]])
  want = exact.astype(np.float32)

  def moved(at, by):
    found = want.copy()
    found[0, at] += by
    return found

  runs = [moved(0, by) for by in (0.3, -0.3)]
  for got, passes in ((moved(0, 0.5), True), (moved(1, 0.5), False), (moved(0, 0.7), False)):
    found = difference("y", want, got, 1e-4, 0.0, "large")
    assert not found.passed
    assert within_roundings(found, want, got, exact, runs, 0.0).passed == passes
    assert not within_roundings(found, want, got, exact, [], 0.0).passed
