"""What ``spans.py`` watches is there, a span's own CPU seconds are its, and a run without a GPU ends."""

import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import spans
from small_models import Net

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("module", "name", "what"), spans.WATCHED)
def test_what_is_watched(module, name, what):
  owner = import_module(f"mirage_onnx.{module}")
  for part in name.split("."):
    owner = getattr(owner, part)
  assert callable(owner) and what


def test_a_span_inside_another_has_its_own_seconds(tmp_path, monkeypatch):
  used = [7.0]
  monkeypatch.setattr(spans, "time", SimpleNamespace(monotonic=time.monotonic, thread_time=lambda: used[0]))
  some = spans.Spans(tmp_path / "spans.jsonl")
  with some.span("outer"):
    used[0] += 0.05
    for _ in range(2):
      with some.span("inner"):
        used[0] += 0.1
  inner, outer = (sum(r["cpu"] for r in some.rows if r["what"] == w) for w in ("inner", "outer"))
  assert inner == pytest.approx(0.2) and outer == pytest.approx(0.05)
  assert list(map(json.loads, (tmp_path / "spans.jsonl").read_text().splitlines())) == some.rows


@pytest.mark.slow
def test_a_run_and_its_repeat(tmp_path, monkeypatch):
  """By local with made-up times; the repeat asks the GPU nothing, searches and compiles nothing."""
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  net = Net(seed=1, opset=18)
  y = net.Add(net.MatMul(net.rms(net.input(16, 512)), net.weight(512, 512)), net.input(16, 512))
  onnx.save(net.model(y), tmp_path / "m.onnx")
  rows = []
  for n in range(2):
    command = [
      sys.executable, str(ROOT / "bench" / "spans.py"), str(tmp_path / "m.onnx"), "--fake", "--workers", "1",
      "--out", str(tmp_path / str(n)), "--output", str(tmp_path / "out.onnx"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CPU seconds: " in done.stdout
    rows.append([json.loads(r) for r in (tmp_path / str(n) / "spans.jsonl").read_text().splitlines()])
  first, again = ({r["what"] for r in some} for some in rows)
  assert {"region", "plan", "stock check", "gate"} <= first  # few are searched here, not by workers
  assert not again & {"plan", "stock check", "draws", "search"}
