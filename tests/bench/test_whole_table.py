"""The README's table of whole models is what the records give."""

import json
import sys

import pytest
import whole_table
from whole_table import BEGIN, END

NEW, OLD = "2026-11-25T15:00:00+00:00", "2026-11-20T10:00:00+00:00"
LATER = "2026-11-21T10:00:00+00:00"


def row(model="bert", target="h200", date=NEW, gpu="NVIDIA H200", **more):
  return {
    "model": model, "target": target, "date": date, "gpu": f"{gpu}, 580.159.04, 345 MHz",
    "commit": "abcdef0123", "versions": {"onnxruntime-gpu": "1.31.1"}, "onnxruntime_us": 743.2,
    "optimized_us": 501.7, "ratio": 1.48, "ratio_95": [1.46, 1.5], "custom_nodes": 7, "optimize_s": 24.4,
    **more,
  }  # fmt: skip


def failed(**more):
  found = row(**more) | {"failed": "optimize: ended after 240 s"}
  return {k: v for k, v in found.items() if k not in ("ratio", "ratio_95", "onnxruntime_us", "optimized_us")}


def run(monkeypatch, capsys, *arguments):
  monkeypatch.setattr(sys, "argv", ["it", *map(str, arguments)])
  return whole_table.main(), capsys.readouterr().out


def test_the_page_is_what_the_records_give(monkeypatch, capsys):
  assert run(monkeypatch, capsys, "--check") == (0, "\n")
  text = whole_table.PAGE.read_text()
  assert BEGIN in text and "<!-- speed:" not in text  # whole models; parts have a page of their own


def test_a_line():
  rows = [row(), row(target="local", optimized_us=400.0, ratio=1.86, ratio_95=[1.8, 1.9], optimize_s=90)]
  rows[1] |= {"again_s": 6.8, "known_s": 0.1}
  times = "743 | 502 | 1.48 (1.46 to 1.50) | 400 | 1.86 (1.80 to 1.90)"
  line = f"| bert | {times} | - | - | - | 24 s / 90 s | 7 s, 0.1 s |"
  assert whole_table.table(rows)[2:] == [line]
  assert whole_table.table([row(date=OLD, custom_nodes=0)])[2:] == [
    "| bert | 743 | 502* | 1 (as it was) | - | - | - | - | - | 24 s | - |"
  ]
  assert whole_table.table([failed()])[2:] == ["| bert | - | failed | - | - | - | - | - | - | 24 s | - |"]


def peer(arm, **more):
  found = row(target=arm, us=620.4, ratio=1.2, ratio_95=[1.19, 1.21])
  return {k: v for k, v in found.items() if not k.startswith(("optim", "custom"))} | more


def test_what_others_run_has_columns_of_its_own():
  def cells(*peers):
    return whole_table.table([row(), *peers])[2].split(" | ")[6:8]

  assert whole_table.HEAD[6:8] == ("fused operators", "torch.compile")
  assert cells(peer("compiled"), peer("fused", us=700.6, ratio=1.06)) == ["701 (1.06)", "620 (1.20)"]
  failure = {k: v for k, v in peer("fused").items() if k not in ("us", "ratio", "ratio_95")}
  assert cells({**failure, "failed": "nothing is fused", "ops": {}}) == ["nothing fused", "-"]
  assert cells({**failure, "failed": "outputs differ by 1.0", "ops": {"Gelu": 1}})[0] == "failed"
  assert cells({**failure, "target": "compiled", "failed": "ended after 9 s"})[1] == "failed"
  found = whole_table.table([peer("compiled")])[2:]
  assert not found  # no line of its own


def test_how_far_predictions_are_off():
  off = whole_table.table([row()], {("h200", "bert"): -0.2, ("h100", "bert"): 0.5})[2].split(" | ")[-3]
  assert off == "-20%"
  kernels = [
    {"predicted_us": p, "measured_us": m} for p, m in ((9.0, 10.0), (5.0, 10.0), (10.5, 10.0), (1, None))
  ]
  assert (
    whole_table.table([row(target="local", replaced=kernels)])[2].split(" | ")[-3] == "kernels -10% (-50%)"
  )


def test_which_models_predictions_are_of(tmp_path):
  models = [
    {"model": "a", "target": "h200", "after_off": 0.1},
    {"model": "a", "target": "local", "after_off": 0.4},
  ]
  (tmp_path / "predictions.json").write_text(
    json.dumps({"h100": {"models": [*models, {"model": "b", "target": ""}]}})
  )
  assert whole_table.predicted_off(tmp_path) == {("h100", "a"): 0.1}
  assert whole_table.predicted_off(tmp_path / "none") == {}


def test_a_model_that_was_timed_again_has_no_known_error(tmp_path):
  found = {"model": "bert", "target": "h200", "after_off": 0.1, "after_measured_us": row()["optimized_us"]}
  (tmp_path / "predictions.json").write_text(json.dumps({"h200": {"models": [found]}}))
  assert whole_table.predicted_off(tmp_path, {"h200": [row()]}) == {("h200", "bert"): 0.1}
  assert whole_table.predicted_off(tmp_path, {"h200": [row(optimized_us=1.0)]}) == {}


def test_the_caption_says_what_it_was_measured_on():
  said = whole_table.caption([row(date=OLD), row(target="local")])
  assert said == (
    "**NVIDIA H200**, 2026-11-20 to 2026-11-25 (commit abcdef0, onnxruntime-gpu 1.31.1, driver 580.159.04):"
    " * with fma contraction, which is off now."
  )
  assert "*" not in whole_table.caption([row()]).removeprefix("**NVIDIA H200**")
  assert "commit 400da72" in whole_table.caption([row(commit="", note="tree of 400da72")])


def test_newest_lines_count_but_no_failure_hides_a_result():
  rows = [row(date=OLD), row(), row("vit"), failed(date="2026-11-26T00:00:00+00:00"), failed(model="new")]
  found = whole_table.merged(rows)
  assert [(r["model"], r["date"], "ratio" in r) for r in found] == [
    ("bert", NEW, True), ("new", NEW, False), ("vit", NEW, True)]  # fmt: skip


def test_new_lines_are_taken_in(tmp_path, monkeypatch, capsys):
  page, more = tmp_path / "page.md", tmp_path / "more.jsonl"
  page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
  (tmp_path / "h200").mkdir()
  (tmp_path / "h200" / "whole.jsonl").write_text(json.dumps(row(date=OLD)) + "\n")
  h100 = row("vit", target="local", gpu="NVIDIA H100 80GB HBM3")
  rows = (h100, row("vit", date=OLD), peer("compiled", date=LATER), peer("compiled", date=OLD, us=1.0))
  more.write_text("".join(json.dumps(r) + "\n" for r in rows))
  monkeypatch.setattr(whole_table, "PAGE", page)
  monkeypatch.setattr(whole_table, "RESULTS", tmp_path)
  assert run(monkeypatch, capsys, "--check") == (1, "page.md is not what the records give\n")
  assert run(monkeypatch, capsys, more) == (0, "")
  text = page.read_text()
  assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
  assert text.index("H100") < text.index("H200") and text.count("| vit |") == 2
  assert [len(whole_table.read(tmp_path / g / "whole.jsonl")) for g in ("h100", "h200")] == [1, 2]
  assert [r["us"] for r in whole_table.read(tmp_path / "h200" / "whole_peers.jsonl")] == [620.4]
  assert "| 620 (1.20) |" in text and not (tmp_path / "h100" / "whole_peers.jsonl").exists()
  assert run(monkeypatch, capsys, "--check")[0] == 0
  more.write_text(json.dumps(row(gpu="some CPU")) + "\n")
  with pytest.raises(ValueError, match="has no folder"):
    run(monkeypatch, capsys, more)


def test_markers_are_needed():
  for text in ("none", f"{BEGIN}{END}{BEGIN}{END}"):
    with pytest.raises(ValueError, match="one is needed"):
      whole_table.page(text, ["x"])
