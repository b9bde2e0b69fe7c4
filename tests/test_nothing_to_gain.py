"""A model with nothing to gain is told so at once: what searches and compiles is not even imported."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
from small_models import Net

from mirage_onnx import events, optimize, pipeline

#: Takes a second to import, all together.
HEAVY = (
  "scipy", "onnxruntime", "onnx_graphsurgeon", "mirage_onnx.codegen", "mirage_onnx.searching",
  "mirage_onnx.verify", "mirage_onnx.racing", "mirage_onnx.lower", "mirage_onnx.comparisons",
)  # fmt: skip
SCRIPT = """
import sys
from mirage_onnx.cli import main
try:
  main()
finally:
  print(*sys.modules, file=open(sys.argv[-1] + ".modules", "w"))
"""


def modules(model, tmp_path, *options):
  source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
  onnx.save(model, source)
  command = [sys.executable, "-c", SCRIPT, "optimize", str(source), "--target", "h200", *options]
  subprocess.run([*command, "-o", str(out)], check=True, capture_output=True)
  return out, (tmp_path / "out.onnx.modules").read_text().split()


def test_without_regions(tmp_path):
  net = Net(np.float32)
  model = net.model(net.Relu(net.Conv(net.input(1, 3, 8, 8), net.weight(4, 3, 3, 3))))
  out, found = modules(model, tmp_path)
  assert onnx.load(out).SerializeToString() == model.SerializeToString()
  assert not [m for m in HEAVY if m in found]


def test_with_regions_that_cost_too_little(tmp_path):
  net = Net(np.float32)
  model = net.model(net.Exp(net.Tanh(net.input(2, 2))))
  out, found = modules(model, tmp_path, "--margin", "0.9")
  assert onnx.load(out).SerializeToString() == model.SerializeToString()
  assert not [m for m in HEAVY if m in found]


def test_what_is_searched_in_vain_is_not_tuned(tmp_path, monkeypatch):
  """Where no program wins nothing is compiled, and no check of a result is made ready."""
  net = Net(np.float16)
  x = net.input(4, 512)
  model = net.model(net.Mul(net.Exp(net.MatMul(x, net.weight(512, 512))), x))
  told, real = [], pipeline.grouped

  def cheap(candidates, node_us):
    """As if ONNX Runtime took little more than a launch: worth a search, and no kernel is as fast."""
    outcomes = real(candidates, node_us)
    return {key: replace(o, baseline_us=1.3) for key, o in outcomes.items()}

  monkeypatch.setattr(pipeline, "grouped", cheap)
  onnx.save(model, source := tmp_path / "in.onnx")
  made = optimize(source, tmp_path / "out.onnx", target="h200", workers=1, emit=told.append)
  stages = [e.stage for e in told if isinstance(e, events.StageStarted)]
  assert "superopt" in stages and "tune" not in stages and "rewrite" not in stages
  assert {r["reason"] for r in made.report["regions"]} == {"NOT_FASTER"}
  assert onnx.load(tmp_path / "out.onnx").SerializeToString() == model.SerializeToString()
