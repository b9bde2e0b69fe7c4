"""``bench/search.py`` on a small program: what every table must satisfy."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from search_table.curve import Curve
from search_table.point import BOUND_REASON, Outcome, Point, bound_of
from search_table.prunings import PRUNINGS
from search_table.text import table

from mirage_onnx.superopt.floors import Floors
from mirage_onnx.superopt.result import default_bound
from mirage_onnx.superopt.space import ALL

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "bench" / "search.py")]
SMALL = ("--programs", "softmax_rows", "--without")
WHOLE = Outcome(1.5, 2.0, 100, 10, 40, 4, "EXHAUSTED", 5.25, 1, {"registers": 3}, (8, 9, "SATURATED"), 0.7)
#: The bound left something out.
LIMITED = replace(WHOLE, states=60, best_us=7.5, pruned={BOUND_REASON: 2})
CUT = replace(WHOLE, stop="CUT", cpu_s=29.6)
FACTS = {
  "cut_s": 30.0, "date": "today", "command": "python bench/search.py",
  "commit": "0123456789abcdef",
  "changed": False, "cores": 2, "jobs": 1, "versions": {"python": "3.11"},
}  # fmt: skip


def run(*options):
  return subprocess.run([*COMMAND, *options], capture_output=True, text=True, check=False)


def test_unknown_program():
  done = run("--programs", "fft")
  assert done.returncode == 2
  assert "no program is called fft" in done.stderr


@pytest.mark.parametrize("off", PRUNINGS)
def test_every_pruning_changes_the_search(off):
  """A row of the table that turns nothing off would be a lie."""
  plain = bound_of(Point("softmax_rows", 5, "", 1.0))
  without = bound_of(Point("softmax_rows", 5, off, 1.0))
  assert plain.operators == 5
  assert without != plain or PRUNINGS[off].patches
  for target, name, value in PRUNINGS[off].patches:
    assert getattr(target, name) != value


def test_patches_are_taken_back():
  before = Floors.kernel_us, Floors.rest_us
  with PRUNINGS["floor"].off():
    assert Floors.kernel_us is not before[0]
    assert Floors.rest_us is not before[1]
  assert before == (Floors.kernel_us, Floors.rest_us)


def test_a_bound_that_left_nothing_out_is_every_larger_one():
  curve = Curve("p", "", ((3, LIMITED), (4, WHOLE)))
  assert curve.at(2) is None
  assert curve.at(3) is LIMITED
  assert curve.at(9) is WHOLE and not curve.was_run(9)
  assert Curve("p", "", ((3, LIMITED), (4, CUT))).at(5) is None
  assert Curve("p", "", ((3, LIMITED),)).at(4) is None


def test_text():
  curves = [
    Curve("p", "", ((3, LIMITED), (4, WHOLE))),
    Curve("p", "chains", ((3, LIMITED), (4, CUT))),
  ]
  lines = [line.split() for line in table(FACTS, curves, (3, 4, 5)).splitlines()]
  assert ["p", "us", "7.50", "5.25", "="] in lines
  assert ["states", "60", "100", "="] in lines
  assert ["best", "0.7", "0.7", "="] in lines
  assert ["chains", "us", "7.50", "5.25", "-"] in lines
  assert ["s", "1.5", "CUT", "30", "-"] in lines
  assert ["p", "8", "9", "10", "40", "4", "3"] in lines
  assert ["3", "registers"] in lines


def test_small_table(tmp_path):
  path = tmp_path / "search.json"
  done = run(*SMALL, "--bounds", "2-4", "--cut", "60", "--out", str(path))
  assert done.returncode == 0, done.stderr + done.stdout
  data = json.loads(path.read_text())
  (curve,) = data["curves"]
  assert curve["program"] == "softmax_rows" and curve["off"] == ""
  rows = [dict(zip(data["columns"], row, strict=True)) for row in curve["rows"]]
  assert [r["operators"] for r in rows] == [2, 3, 4][: len(rows)]
  assert len(rows) == 3 or curve["same_beyond"]
  for row in rows:
    assert row["stop"] == "EXHAUSTED"
    assert row["states"] > row["units"] > 0
    assert row["verified"] > 0 and row["best_us"] > 0 and row["kernels"] >= 1
    assert 0 < row["best_s"] <= row["seconds"]
  assert data["default_bound"]["operators"] == default_bound(ALL).operators
  assert curve["egraph"][2] == "SATURATED"
  assert all(n > 0 for n in curve["pruned"].values())
  assert {data["reasons"][int(i)] for i in curve["pruned"]} == set(data["reasons"])
  assert Curve.from_json(curve, data["reasons"]).to_json(data["reasons"]) == curve


@pytest.mark.parametrize(("limit", "stop"), [("--cut", "CUT"), ("--total", "ENDED")])
def test_a_search_that_is_cut_is_recorded_as_such(tmp_path, limit, stop):
  options = (*SMALL, "--bounds", "8", "--out", str(tmp_path / "search.json"))
  done = run(*options, limit, "0")
  assert done.returncode == 0, done.stderr + done.stdout
  text = run(*options, "--show").stdout
  assert stop in text.partition("program")[2] and "softmax_rows" in text
  # Of the same setting, what there was no time for is run, and what was cut stays.
  again = run(*options, "--resume", *((limit, "0") if limit == "--cut" else ()))
  assert ("EXHAUSTED" in again.stdout) == (stop == "ENDED")
