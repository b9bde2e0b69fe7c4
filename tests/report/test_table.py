"""The tables and sentences, as text."""

import io

from rich.console import Console
from schema_text import REGION

from mirage_onnx.report.schema import check_report, check_verify_report
from mirage_onnx.report.table import region_table, summary, total_us, verify_tables


def region(**change):
  return REGION | change


KEPT = {
  "id": "r1",
  "status": "kept",
  "choice": None,
  "ugraph": None,
  "predicted_us": None,
  "proof": None,
}


def report(*regions, **change):
  base = {"schema": 1, "input": "in.onnx", "output": "out.onnx", "target": "h200", "seconds": 2.5}
  return check_report({**base, "regions": list(regions), **change})


def draw(thing, width=160):
  console = Console(file=io.StringIO(), width=width, highlight=False)
  console.print(thing)
  return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def test_regions(golden):
  kept = region(**KEPT, reason="NOT_FASTER", reason_text="9.1 µs against 9.0 µs")
  measured = region(id="r2", choice="measured", measured_us=8.0, ops=["node_gelu"], count=1)
  unknown = region(**{**KEPT, "id": "r3"}, ops=[], reason=None, search=None, baseline_us=None)
  found = report(region(), kept, measured, unknown)
  assert draw(region_table(found)) + summary(found) + "\n" == golden


def test_summary_of_nothing_replaced():
  found = report(region(**KEPT, reason="NO_CANDIDATE"), barriers={"OP_UNKNOWN": 3, "DTYPE": 1})
  assert summary(found) == (
    "replaced 0 of 1 regions; nodes outside any region: 1 DTYPE, 3 OP_UNKNOWN; 2.5 s; wrote out.onnx"
  )


def test_total_needs_every_time():
  assert total_us(report(region(), region(count=1, measured_us=5.0))) == (75.0, 25.0)
  assert total_us(report(region(), region(baseline_us=None))) is None


def output(**change):
  return {
    "name": "logits",
    "dtype": "float16",
    "passed": True,
    "identical": False,
    "max_abs": 0.001234,
    "needed_rtol": 0.0012,
    "rtol": 0.01,
    "worst": "large",
    "reason": "",
    "least_atol": 0.001234,
    "least_rtol": None,
    **change,
  }


def verified(**change):
  base = {
    "schema": 1,
    "passed": True,
    "outputs": [output()],
    "nodes": [],
    "regions": [],
    "inputs": ["normal 0", "large"],
    "source": "",
    "failures": [],
    "note": "",
    "first_difference": "logits",
    "first_divergence": None,
    "needed_rtol": 0.0012,
  }
  return check_verify_report({**base, **change})


def test_verify(golden):
  bad = {"passed": False, "needed_rtol": None, "least_atol": None, "max_abs": 0.0}
  regions = [
    output(node="mirage/0/norm", name="h", identical=True, needed_rtol=0.0, least_atol=0.0),
    output(node="mirage/1/gate", name="g", reason="nan instead of 0.5 at [0, 63]", **bad),
  ]
  report = verified(
    passed=False,
    outputs=[output(), output(name="present", passed=False, needed_rtol=0.2)],
    nodes=[
      {"name": "mirage/0/norm", "path": "emulated", "launches": 2},
      {"name": "mirage/1/gate", "path": "body", "launches": 0},
    ],
    regions=regions,
    source="2 kernels generated again",
    note="install g++",
    first_divergence="mirage/1/gate",
  )
  assert "".join(draw(part) for part in verify_tables(report)) == golden


def test_verify_without_kernels():
  *_, inputs, verdict = verify_tables(verified())
  assert (inputs, verdict) == ("inputs: normal 0, large", "passed")
