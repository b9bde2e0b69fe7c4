"""The reports of ``inspect`` and ``explain``: their schema, and how they look."""

import io
import json

import msgspec
import pytest
from inspection_reports import explained, inspected, region
from rich.console import Console
from schema_text import schema_text

from mirage_onnx.report.inspection_table import explain_tables, inspect_tables
from mirage_onnx.report.schema import json_schema


def draw(parts):
  console = Console(file=io.StringIO(), width=160, highlight=False, markup=False)
  for part in parts:
    console.print(part)
  return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("command", ["inspect", "explain"])
def test_json_schema_of(command, golden):
  assert schema_text(json_schema(command)) == golden


@pytest.mark.parametrize(
  "report", [inspected(region("k0")), explained(), explained(chosen=None, candidates=[])]
)
def test_a_report_is_read_back_strictly(report):
  fields = json.loads(json.dumps(msgspec.to_builtins(report), allow_nan=False))
  assert msgspec.convert(fields, type(report), strict=True) == report
  with pytest.raises(msgspec.ValidationError):
    msgspec.convert({**fields, "extra": 1}, type(report), strict=True)
  for name in fields:
    with pytest.raises(msgspec.ValidationError):
      msgspec.convert({k: v for k, v in fields.items() if k != name}, type(report))


def show_inspect(report):
  return draw(inspect_tables(report))


def show_explain(report):
  return draw(explain_tables(report))


def test_inspect_table(golden):
  assert show_inspect(inspected(region("k0"), region("k1", chosen=0))) == golden


def test_eighty_columns_have_whole_keys():
  keys = ("c0ffee000000", "badcafe00000")
  parts = inspect_tables(inspected(*map(region, keys)), 80)
  console = Console(file=io.StringIO(), width=80, highlight=False, markup=False)
  for part in parts:
    console.print(part)
  text = console.file.getvalue()
  assert all(key in text for key in keys) and "…" not in text
  assert max(map(len, text.splitlines())) <= 80


def test_inspect_says_what_is_unknown():
  unknown = msgspec.structs.replace(
    region("k0"), ort_us=None, gain_us=None, total_gain_us=None, unknown_nodes=2
  )
  report = inspected(unknown)
  text = show_inspect(report)
  row = next(x for x in text.splitlines() if "k0" in x)
  assert row.count("unknown") == 3 and "0.00" not in row
  assert "of all nodes that are understood (unknown and left out: those of MatMulNBits×2, CumSum)" in text
  some = msgspec.structs.replace(report.totals, nodes_untimed=4, nodes_bounded=1)
  text = show_inspect(msgspec.structs.replace(report, totals=some))
  assert "left out: 4 nodes of unknown time; 1 node counted by bytes alone" in text
  assert "so at most" not in text
  none = msgspec.structs.replace(report.totals, nodes_untimed=10, ort_us=None)
  assert "no time of any node is known" in show_inspect(msgspec.structs.replace(report, totals=none))
  text = " ".join(show_explain(explained(region=unknown)).split())
  assert "ORT unknown µs" in text and "2 of 3 nodes have no known time" in text


def test_inspect_of_a_model_without_regions():
  first = show_inspect(inspected()).splitlines()[0]
  assert first == "no region of in.onnx can be faster on h200 than in ONNX Runtime"


def test_explain_table(golden):
  assert show_explain(explained()) == golden


def test_explain_without_a_kernel():
  text = show_explain(explained(chosen=None, candidates=[]))
  assert text.endswith("kept: NO_CANDIDATE: no verified program\n")
  assert "candidates\n" not in text and "proof" not in text
