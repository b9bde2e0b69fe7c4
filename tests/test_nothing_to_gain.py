"""A model with nothing to gain is told so at once: what searches and compiles is not even imported."""

import subprocess
import sys

import numpy as np
import onnx
from small_models import Net

#: Takes a second to import, all together.
HEAVY = ("scipy", "onnxruntime", "mirage_onnx.codegen", "mirage_onnx.searching", "mirage_onnx.verify")
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
