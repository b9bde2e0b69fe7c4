"""The JSON report: what a reader may rely on."""

import json

import msgspec
import numpy as np
import pytest
from schema_text import REGION, schema_text

from mirage_onnx.custom_op.comparison import Comparison, NodePath
from mirage_onnx.custom_op.difference import difference
from mirage_onnx.custom_op.model_check import RegionDifference
from mirage_onnx.report.schema import check_report, check_verify_report, json_schema

REPORT = {
  "schema": 1,
  "input": "in.onnx",
  "output": "out.onnx",
  "target": "h200",
  "seconds": 2.5,
  "regions": [REGION],
}


def without(key):
  return {k: v for k, v in REGION.items() if k != key}


def test_accepts_the_documented_object():
  report = check_report(json.loads(json.dumps(REPORT)))
  assert report.regions[0].proof is not None
  assert report.barriers == {} and report.regions[0].reason_text is None


def test_unknown_values_are_null():
  unknown = {k: None for k in REGION if k not in ("id", "ops", "count", "status")}
  report = {**REPORT, "output": None, "seconds": None, "target": None}
  check_report({**report, "regions": [{**REGION, **unknown, "status": "kept"}]})


@pytest.mark.parametrize(
  "region",
  [
    *(without(key) for key in REGION),
    {**REGION, "extra": 1},
    {**REGION, "status": "maybe"},
    {**REGION, "choice": "guessed"},
    {**REGION, "count": "2"},
    {**REGION, "predicted_us": "10"},
  ],
)
def test_refuses_another_region(region):
  with pytest.raises(msgspec.ValidationError):
    check_report({**REPORT, "regions": [region]})


@pytest.mark.parametrize("change", [{"schema": 2}, {"schema": "1"}, {"more": 1}, {"regions": None}])
def test_refuses_another_report(change):
  with pytest.raises(msgspec.ValidationError):
    check_report({**REPORT, **change})


def test_json_schema(golden):
  assert schema_text(json_schema()) == golden


def test_json_schema_of_verify(golden):
  assert schema_text(json_schema("verify")) == golden


def test_a_comparison_is_a_verify_report():
  """Every field of what ``verify`` returns, also where nothing can be compared."""
  one, two = np.ones((2, 3), np.float16), np.ones((3, 2), np.float16)
  outputs = (
    difference("y", one, one * np.float16(1.5), 0.1, 0.0, "small"),
    difference("z", one, two, 0.1, 0.0, "small"),
  )
  nodes = (NodePath("n", "kernel", 3),)
  regions = (RegionDifference("n", outputs[0]),)
  found = Comparison(False, outputs, nodes, ("small",), "note", regions, "source")
  report = check_verify_report(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
  assert report.outputs[0].least_atol == report.outputs[0].least_rtol == 0.5
  assert report.outputs[1].max_abs is None and "instead of" in report.outputs[1].reason
  assert report.regions[0].node == report.first_divergence == "n"
  with pytest.raises(msgspec.ValidationError):
    check_verify_report({**found.to_dict(), "extra": 1})
