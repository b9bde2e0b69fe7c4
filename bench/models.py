"""Whole models of ``models/``: the original, and what ``optimize`` makes of it, as CUDA graphs.

    python bench/models.py OUT.json [TARGET...]      (default: h200, the predicted choice)

They are small (hidden size 64), so the time is launches and latencies. Protocol as in
``bench/protocol.py``; the outputs are compared before timing.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch  # noqa: F401  (loads the CUDA libraries that onnxruntime needs)
from protocol import facts

import mirage_onnx
from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu
from mirage_onnx.tune.ort_run import OrtRun

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"input_ids": 128, "position_ids": 16, "attention_mask": 2}


def inputs_of(path):
  import onnxruntime as ort

  rng = np.random.default_rng(0)
  found = {}
  for i in ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs():
    if i.type == "tensor(int64)":
      found[i.name] = rng.integers(0, LIMITS.get(i.name, 2), i.shape)
    else:
      found[i.name] = rng.standard_normal(i.shape).astype(np.float16)
  if "attention_mask" in found:
    found["attention_mask"][:, -1] = 1
  return found


def main():
  gpu = Gpu(H200)
  rows = []
  folder = Path(tempfile.mkdtemp())
  for name in ("llama_decode", "lora", "bert"):
    path = ROOT / "models" / f"{name}.onnx"
    feeds = inputs_of(path)
    runs = {"onnxruntime": OrtRun(gpu, str(path), feeds)}
    for target in sys.argv[2:] or ("h200",):
      out = folder / f"{name}_{target}.onnx"
      report = mirage_onnx.optimize(path, out, target=target).report
      run = OrtRun(gpu, str(out), feeds, make=mirage_onnx.InferenceSession)
      counts = mirage_onnx.launches(run.session)
      assert counts
      assert all(counts.values()), counts
      runs[f"mirage-onnx, {target}"] = run
      replaced = sum(r["count"] for r in report["regions"] if r["status"] == "replaced")
      print(name, target, replaced, "instances", report["seconds"], "s", flush=True)
    arms = {k: r.captured() for k, r in runs.items()}
    want = runs["onnxruntime"].results()
    errors = {
      k: max(
        float(np.linalg.norm(np.float64(x) - want[o]) / np.linalg.norm(np.float64(want[o])))
        for o, x in r.results().items()
      )
      for k, r in runs.items()
    }
    assert all(e < 1e-2 for e in errors.values()), errors
    times = gpu.time_us(list(arms.values()), 30)
    for (arm, t), error in zip(zip(arms, times, strict=True), errors.values(), strict=True):
      rows.append([name, arm, round(float(np.median(t)), 2), error])
      print(*rows[-1], flush=True)
  Path(sys.argv[1]).write_text(json.dumps({**facts(), "rows": rows}, indent=1))


if __name__ == "__main__":
  main()
