"""The tables and sentences, as text."""

import io

from rich.console import Console
from schema_text import REGION

from mirage_onnx.report.schema import check_report, check_verify_report
from mirage_onnx.report.table import region_table, verify_tables


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
  console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
  console.print(thing)
  return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def test_regions(golden):
  kept = region(**KEPT, reason="NOT_FASTER", reason_text="9.1 µs against 9.0 µs")
  measured = region(id="r2", choice="measured", measured_us=8.0, ops=["node_gelu"], count=1)
  unknown = region(**{**KEPT, "id": "r3"}, ops=[], reason=None, search=None, baseline_us=None)
  found = report(region(), kept, measured, unknown)
  assert draw(region_table(found)) == golden


def test_unknown_times_are_no_numbers():
  rows = (region(**{**KEPT, "id": "k0"}, baseline_us=None, unknown_nodes=3, reason="NOT_PREDICTED"),
          region(**{**KEPT, "id": "k1"}, baseline_us=4.0, unknown_nodes=1, reason="NOT_FASTER"))  # fmt: skip
  text = draw(region_table(report(*rows)))
  first, second = (next(x for x in text.splitlines() if f" {name} " in x) for name in ("k0", "k1"))
  assert "unknown" in first and "≥ 4.0" in second and "0.0" not in first


def test_eighty_columns_cut_nothing():
  long = region(id="r12", ops=["node_with_a_long_name_0", "node_with_a_long_name_1"], baseline_us=12345.6)
  late = [region(**{**KEPT, "id": f"b{i}"}, reason="BUDGET", reason_text="no time") for i in range(20)]
  text = draw(region_table(report(long, *late), 80), width=80)
  assert max(map(len, text.splitlines())) <= 80 and "…" not in text.replace(" … ", "")
  assert "r12" in text and "12345.6" in text and "b3" in text and "b4" not in text
  assert text.splitlines()[-1].startswith("and 16 more")
  assert text.count("kept: BUDGET") == 4 and text.count("no time") == 1  # a reason is said once


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
    "unverified": "",
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


def test_eighty_columns_cut_nothing_of_verify():
  """Longer names than a third of the width, and names that look like markup, as they are."""
  names = ["/model/layers.0/[/x]", "mirage/10/node_layer_norm_and_linear"]
  found = verified(regions=[output(node=names[1], name=names[0])])
  text = "".join(draw(part, 80) for part in verify_tables(found, 80))
  assert max(map(len, text.splitlines())) <= 80
  lines = [line.strip() for line in text.splitlines()]
  assert any(line.startswith(names[1]) and line.endswith("passed") for line in lines), text
  assert names[0] in lines and "least atol" not in text


def test_verify_without_kernels():
  *_, inputs, verdict = verify_tables(verified())
  assert (inputs, verdict) == ("inputs: normal 0, large", "passed")
