"""The cases of the speed table: valid models, right oracles, and what is replaced in them."""

import inspect

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from cases import ROWS
from ort_fused import SHARED, fused_layer, fused_session
from protocol import relative_error
from small_cases import SMALL
from small_models import run_model

import mirage_onnx


def small(row):
  return ROWS[row].make(**SMALL[row])


def test_rows():
  assert ROWS.keys() == SMALL.keys()
  for row in ROWS.values():
    assert row.sizes.keys() == row.targets.keys()
    assert row.nearby
    assert not row.sizes.keys() & row.nearby.keys()
    for size in (*row.sizes.values(), *row.nearby.values()):
      inspect.signature(row.make).bind(**size)


@pytest.mark.parametrize("row", ROWS)
def test_oracle(row):
  """In float64 without rounding: onnxruntime in fp16 is near it, and not equal."""
  case = small(row)
  onnx.checker.check_model(case.model, full_check=True)
  exact = case.exact()
  assert [o.name for o in case.model.graph.output] == list(exact)
  for got, want in zip(run_model(case.model, case.feeds), exact.values(), strict=True):
    assert got.dtype == np.float16
    assert want.dtype == np.float64
    assert got.shape == want.shape
    assert 1e-5 < relative_error(got, want) < 1e-3


def test_bytes():
  batch, hidden, inner = SMALL["llama_mlp"].values()
  assert small("llama_mlp").bytes == 2 * (batch * hidden + hidden + 3 * hidden * inner)


def test_every_weight_counts():
  """The outputs depend on each weight and input, so no arm can leave one out unnoticed."""
  for row in ROWS:
    case = small(row)
    want = case.exact()
    for name, x in (case.weights | case.feeds).items():
      factor = 1 if x.dtype == np.int64 else np.float16(1.5)
      known = case.weights | case.feeds | {name: x[..., ::-1] * factor}
      got = case.oracle(lambda n, k=known: k[n].astype(np.float64))
      assert max(relative_error(got[o], want[o]) for o in want) > 3e-3, (row, name)


def test_fused_operators():
  """The expert's layer computes the same, and writes the new position into its cache."""
  case, size = small("llama_layer"), SMALL["llama_layer"]
  model, feeds = fused_layer(case, size["heads"], size["kv_heads"])
  assert not any(feeds[n][:, :, -1:].any() for n in SHARED)
  data = model.SerializeToString()
  _, result = fused_session(data, feeds, ["CPUExecutionProvider"], "cpu")
  for got, want in zip(result(), case.exact().values(), strict=True):
    assert relative_error(got, want) < 1e-3


def optimized(row):
  case = small(row)
  return case, mirage_onnx.optimize(case.model, target="h200", workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["rmsnorm_linear", "gated_mlp", "llama_mlp", "lora", "ngpt_step"])
def test_weight_rows_are_replaced(row):
  case, found = optimized(row)
  functions = {f.name for f in found.model.functions}
  assert {n.op_type for n in found.model.graph.node} <= functions
  ops = sorted(n for r in found.report["regions"] for n in r["ops"])
  assert ops == sorted(n.name for n in case.model.graph.node)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["attention", "llama_layer"])
def test_what_is_kept_has_a_reason(row):
  case, found = optimized(row)
  rows = found.report["regions"]
  kept = [r for r in rows if r["status"] == "kept"]
  assert kept
  assert all(r["reason"] and r["reason_text"] for r in kept)
  session = ort.InferenceSession(found.model.SerializeToString(), providers=["CPUExecutionProvider"])
  for got, want in zip(session.run(None, case.feeds), case.exact().values(), strict=True):
    assert relative_error(got, want) < 1e-3
