"""What ``optimize`` made of a case; the predicted choice is made in a process of its own."""

import json
import subprocess
import sys

import onnx

from mirage_onnx.custom_op import read_bundle


def summary(report, model):
  """What a reader needs of ``optimize``'s report: what was replaced, and why the rest was not."""
  proto = onnx.load(model)
  bundles = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.UINT8]
  ours = {f.name for f in proto.functions}
  plans = [p for b in bundles for p in read_bundle(onnx.numpy_helper.to_array(b).tobytes()).provenance]
  kept = [r for r in report["regions"] if r["status"] == "kept"]
  return {
    "seconds": report["seconds"],
    "replaced": [
      {"ops": len(r["ops"])} | {
        k: r[k] for k in ("count", "predicted_us", "measured_us", "baseline_us", "ugraph")
      }
      for r in report["regions"] if r["status"] == "replaced"
    ],
    "nodes_left": sum(n.op_type not in ours for n in proto.graph.node),
    "params": [p["params"] for p in plans],
    "kept": [
      {"reason": r["reason"], "ops": len(r["ops"]), "text": r["reason_text"]} for r in kept
    ],
  }  # fmt: skip


class Predicted:
  """``mirage-onnx optimize --target h200`` in a process of its own, begun at once."""

  def __init__(self, source, seconds):
    self.model = source.with_name(f"{source.stem}_predicted.onnx")
    self._report = self.model.with_suffix(".json")
    command = [
      sys.executable, "-m", "mirage_onnx", "optimize", str(source), "-o", str(self.model),
      "--target", "h200", "--json", "--quiet", "--budget", f"{seconds:.0f}",
    ]  # fmt: skip
    with self._report.open("wb") as out:
      self._process = subprocess.Popen(command, stdout=out)

  def report(self, seconds):
    """Waits for it, at most so long."""
    code = self._process.wait(timeout=max(seconds, 0.1))
    if code:
      raise RuntimeError(f"mirage-onnx optimize: exit code {code}")
    found = json.loads(self._report.read_bytes())
    return found

  def close(self):
    if self._process.poll() is None:
      self._process.kill()
      self._process.wait()
