"""The last lines of ``optimize``."""

from schema_text import REGION

from mirage_onnx.report.schema import check_report
from mirage_onnx.report.summary import model_us, summary

KEPT = REGION | {"status": "kept", "choice": None, "ugraph": None, "predicted_us": None, "proof": None}
MODEL = {
  "nodes": 20, "nodes_gone": 9, "custom_nodes": 2, "nodes_unknown": 3, "nodes_unknown_gone": 1,
  "nodes_bounded": 1, "before_us": 75.0, "after_us": 30.0,
}  # fmt: skip
AS_IT_WAS = {**MODEL, "nodes_gone": 0, "custom_nodes": 0, "nodes_unknown_gone": 0, "after_us": 75.0}
FOUND = {
  "regions": 40, "instances": 90, "searched_in_part": 1,
  "by_result": {"REPLACED": {"regions": 1, "instances": 2}, "BUDGET": {"regions": 30, "instances": 70}},
}  # fmt: skip
DONE = {**FOUND, "searched_in_part": 0, "by_result": {"NOT_FASTER": {"regions": 40, "instances": 90}}}


def report(*regions, **change):
  base = {"schema": 1, "input": "in.onnx", "output": "my out.onnx", "target": "h200", "seconds": 2.5}
  return check_report({**base, "regions": list(regions), **change})


def test_of_the_whole_model():
  """Not of the replaced regions, which overlap; what is unknown, or was not searched, is said."""
  found = report(REGION, model=MODEL, found=FOUND, checked="the same bits without the library")
  assert summary(found).splitlines() == [
    "whole model: 75.0 → 30.0 µs (2.50x, likely 2.30x to 3.52x), predicted; "
    "left out: 3 nodes of unknown time (1 of them replaced); 1 node counted by bytes alone",
    "regions: 1 replaced in 2 places (9 of 20 nodes → 2), 9 kept, 30 not reached (of 40, which overlap); "
    "1 searched in part",
    "wrote my out.onnx in 2.5 s; checked: the same bits without the library",
    "next: mirage-onnx verify in.onnx 'my out.onnx'",
    "next: the same command with a larger --budget goes on where this one ended",
  ]
  assert model_us(found) == (75.0, 30.0)
  assert model_us(report(REGION)) is None


def test_of_several_targets():
  """A share of the time that ended is told apart from regions that are not faster there."""
  each = [{"name": "l4", "regions": 1, "custom_nodes": 2},
          {"name": "a10", "regions": 0, "custom_nodes": 0, "late": 5}]  # fmt: skip
  done = {**DONE, "by_result": {"REPLACED": {"regions": 1, "instances": 2}}}
  lines = summary(report(REGION, target="a10,l4", targets=each, found=done)).splitlines()
  said = "replaced by target: l4 1 in 2 places, a10 0 in 0 places (its time left 5 regions); "
  assert said + "lines above are of l4" in lines
  assert lines[-1] == "next: the same command with a larger --budget goes on where this one ended"
  assert "left" not in summary(report(REGION, target="a10,l4", targets=each[:1], found=done))


def test_sizes_of_dynamic_dimensions_are_said():
  given = [{"name": "batch", "sizes": [1, 16, 256], "typical": 16}]
  lines = summary(report(REGION, dimensions=given)).splitlines()
  said = "dynamic: batch at 1, 16, 256; times are at 16 (--shapes batch=... says which count)"
  assert lines.index(said) == 3  # behind what was written, before what to do next
  chosen = summary(report(REGION, dimensions=[{"name": "batch", "sizes": [1, 8], "typical": 8}])).splitlines()
  assert chosen[3] == "dynamic: batch at 1, 8; times are at 8"  # the user said so
  made = [{"name": n, "sizes": [1, 16, 256], "typical": 16} for n in ("unk__1", "Min(512, seq)")]
  found = summary(report(REGION, dimensions=[*given, *made])).splitlines()
  assert found[3:5] == [said, "dynamic: 2 sizes that the graph computes (--json has them)"]
  many = [{"name": "n", "sizes": list(range(1, 20)), "typical": 9}]
  assert "dynamic: n at 1, 2, 3, 4, 5, 6 ...;" in summary(report(REGION, dimensions=many))


def test_nothing_replaced():
  kept = KEPT | {"reason": "NOT_FASTER"}
  found = report(kept, model=AS_IT_WAS, found=DONE, barriers={"OP_UNKNOWN": 3, "DTYPE": 1}, checked="nothing")
  assert summary(found).splitlines() == [
    "whole model: as it was, 75.0 µs, predicted; left out: 3 nodes of unknown time; "
    "1 node counted by bytes alone",
    "regions: 0 replaced, 40 kept (of 40, which overlap); nodes in no region: 1 DTYPE, 3 OP_UNKNOWN",
    "wrote my out.onnx in 2.5 s",
    "next: mirage-onnx inspect in.onnx shows what could be fused",
    "next: --target local on the GPU times what a prediction left alone",
  ]


def test_measured():
  measured = REGION | {"choice": "measured", "measured_us": 8.0}
  text = summary(report(measured, KEPT | {"reason": "NOT_FASTER"}, model=MODEL, output=None))
  assert "kernels chosen by measurement;" in text and "--target local" not in text
  assert "wrote no model in 2.5 s" in text and "verify" not in text


def test_little_is_known():
  assert summary(report(seconds=None, input=None)).splitlines() == [
    "whole model: as it was", "regions: 0 replaced", "wrote my out.onnx",
  ]  # fmt: skip
  assert "its time is unknown" in summary(report(REGION))
