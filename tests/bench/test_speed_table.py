"""The page shows what the record gives, and the tables do not flatter."""

import json
import sys

import pytest
import speed_table
from speed_table import BEGIN, COMPILED, END, FUSED, GRAPH, LIMIT, MEASURED, ORT


def arm(us, **more):
  return {"us": us, "q1": us, "q3": us, "error": 1e-4, **more}


def result(case, **arms):
  region = {"count": 1, "ops": 5}
  told = {"replaced": [region], "nodes_left": 2, "kept": [{"reason": "X", "ops": 2}]}
  return {
    "case": case, "run": 0, "name": f"{case} 8x8 b=1", "bytes": 10**6, "failed": [],
    "left_out": [], "optimize": {"measured": told},
    "arms": {
      MEASURED + GRAPH: arm(12), MEASURED: arm(11), ORT: arm(30), ORT + GRAPH: arm(31),
      LIMIT: arm(10), COMPILED: arm(20), **arms,
    },
  }  # fmt: skip


def record(*results, date="d1"):
  run = {"date": date, "command": "it", "commit": "c", "gpu": "g", "versions": {"torch": "2"}}
  return {"runs": [run], "results": list(results)}


def cells(line):
  return [c.strip() for c in line.strip("|").split("|")]


def run(monkeypatch, capsys, *arguments):
  monkeypatch.setattr(sys, "argv", ["it", *map(str, arguments)])
  return speed_table.main(), capsys.readouterr().out


def test_page_is_what_the_record_gives(monkeypatch, capsys):
  assert run(monkeypatch, capsys, "--check") == (0, "\n")
  rows = run(monkeypatch, capsys, "--all")[1]
  assert rows.count("\nRun of ") >= 1 and " / " in rows


def test_stale_page(tmp_path, monkeypatch, capsys):
  """Is told by --check, and written otherwise; the record takes the new results in."""
  path, kept, more = (tmp_path / n for n in ("page.md", "speed.json", "more.json"))
  path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
  kept.write_text(speed_table.text_of(record(result("lora/b1"))))
  monkeypatch.setattr(speed_table, "PAGE", path)
  monkeypatch.setattr(speed_table, "RECORD", kept)
  more.write_text(json.dumps(record(result("lora/b8"), date="d2")))
  assert run(monkeypatch, capsys, "--check") == (1, "page.md is not what the record gives\n")
  assert run(monkeypatch, capsys, more, "--all")[1].count("LoRA") == 2
  assert "old" in path.read_text()
  assert run(monkeypatch, capsys, more)[0] == 0
  text = path.read_text()
  assert "old" not in text and text.count("LoRA") == 2
  assert text.startswith("before\n") and text.endswith("after\n")
  assert [r["run"] for r in speed_table.read(kept)["results"]] == [0, 1]
  assert run(monkeypatch, capsys, "--check")[0] == 0


def test_markers_are_needed():
  for text in ("none", f"{BEGIN}{END}{BEGIN}{END}"):
    with pytest.raises(ValueError, match="one is needed"):
      speed_table.page(text, ["x"])


def test_newest_result_counts():
  """And a run that nothing is left of is forgotten."""
  old = record(result("lora/b1"))
  new = record(result("lora/b1", torch=arm(5)), date="d2")
  found = speed_table.merged(old, new)
  assert [r["date"] for r in found["runs"]] == ["d2"]
  assert [r["arms"].get("torch") for r in found["results"]] == [arm(5)]


def test_a_peer_that_was_not_run_again_stays_as_what_it_is():
  old = record(result("lora/b1", **{"torch a": arm(5), "onnxruntime, x": arm(4)}))
  new = record(result("lora/b1", **{"torch b": arm(7)}), date="d2")
  found = speed_table.merged(speed_table.merged(old, new), new)
  (r,) = found["results"]
  assert r["arms"]["torch a"] == {**arm(5), "earlier": True} and "onnxruntime, x" not in r["arms"]
  assert cells(speed_table.main_table(found)[2])[5] == "5.0 torch a (an earlier run)"


def test_line():
  """A session's time is that of its own graph; the peer is the fastest that is right."""
  wrong = arm(1, wrong=True, error=0.5)
  found = record(result("lora/b1", **{"torch a, (x, y)": arm(15), "torch b": wrong}))
  (line,) = speed_table.main_table(found)[2:]
  assert cells(line) == [
    "LoRA 8x8 b=1", "10.0", "12.0 / 11.0", "1.20", "31.0", "15.0 torch a", "0.80", "14.8"
  ]  # fmt: skip
  told = "\n".join(speed_table.all_table(found))
  assert "12.0 / 11.0" in told and "1 region, 2 nodes kept" in told and "5e-01" in told


def test_ours_is_wrong():
  """No time is shown for what computes something else, not even that of its other run."""
  found = record(result("lora/b1", **{n: arm(1, wrong=True) for n in (MEASURED, MEASURED + GRAPH)}))
  assert cells(speed_table.main_table(found)[2])[2:4] == ["-", "-"]


def test_fused_operators_are_a_peer():
  found = result("llama_layer/one", **{FUSED + GRAPH: arm(14)})
  assert speed_table.best_peer(found) == (FUSED + GRAPH, 14)


def test_nothing_replaced():
  told = {"replaced": [], "nodes_left": 3,
          "kept": [{"reason": "A", "ops": 1}, {"reason": "B", "ops": 2}]}  # fmt: skip
  found = result("attention/one") | {"optimize": {"measured": told}}
  assert speed_table.replaced(found, "measured") == "nothing replaced: B, A"
  assert speed_table.replaced(found, "predicted") == "not run"
  (line,) = speed_table.main_table(record(found))[2:]
  assert "12.0 / 11.0 (nothing replaced)" in line


def test_nearby_shapes():
  slow = {LIMIT: arm(8)}
  found = record(result("lora/b1"), result("lora/b8", **slow), result("lora/near"))
  line = speed_table.main_table(found)[-1]
  assert cells(line) == [
    "LoRA 8x8 b=1", "10.0", "12.0 / 11.0", "1.20", "1.20 - 1.50", "31.0"
  ]  # fmt: skip


def test_what_did_not_run_is_told():
  found = result("lora/b1") | {"left_out": [COMPILED], "failed": ["torch b: broken"]}
  found["arms"] = {}
  text = "\n".join(speed_table.all_table(record(found)))
  assert cells(speed_table.main_table(record(found))[2])[1:7] == ["-"] * 6
  assert "torch b: broken" in text
  assert f"no time was left for {COMPILED}" in text
