"""What it brings, or costs, to launch large kernels before the one in front of them has ended.

    python3 bench/early_kernels.py [--widths 1024 1536 2048 3072 4096] [--seconds 240] [--out OUT.json] \
        [--make]

Models of three MLP layers as LLaMA has them, one row, of several widths: original, result with every kernel
launched early, and with none that moves anything (``codegen.emit.MOST_EARLY_BYTES`` out of the way), whole
sessions in turns as in ``bench/whole.py``. ``early_over_late``: of medians, with the interval that holds 95 %
over draws of rounds; ``mib``: what each kernel of a layer moves. ``--make``: only what needs no GPU, into
``--work``, where the next call finds it.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]
LAYERS, ROUNDS = 3, 41


def model_of(width):
  """Three layers; numbers are drawn for a million elements and repeated."""
  from small_models import Net

  net, inner = Net(), 7 * width // 2
  few = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)

  def weight(rows, columns):
    return net.constant(np.resize(few * rows**-0.5, (rows, columns)))

  x = net.input(1, width)
  for _ in range(LAYERS):
    h = net.rms(x, net.constant(1 + 0.1 * np.resize(few, width)), eps=1e-5)
    gate, up = net.MatMul(h, weight(width, inner)), net.MatMul(h, weight(width, inner))
    x = net.Add(x, net.MatMul(net.Mul(net.Mul(gate, net.Sigmoid(gate)), up), weight(inner, width)))
  return net.model(x)


def made(width, o):
  """The paths of original and results of a width, and what is known of them without a GPU."""
  import onnx

  import mirage_onnx
  from mirage_onnx.codegen import emit
  from mirage_onnx.custom_op import read_bundle

  folder = o.work / str(width)
  paths = [folder / f"{name}.onnx" for name in ("model", "early", "late")]
  known = folder / "row.json"
  if known.exists():
    return paths, json.loads(known.read_text())
  folder.mkdir(parents=True, exist_ok=True)
  begun, kernels = time.monotonic(), []
  onnx.save(model_of(width), paths[0])
  for path, most in zip(paths[1:], (1 << 62, 0), strict=True):
    emit.MOST_EARLY_BYTES = most
    mirage_onnx.optimize(paths[0], path, target=o.target, budget_s=150)
    plans = [
      read_bundle(onnx.numpy_helper.to_array(t).tobytes())
      for t in onnx.load(path).graph.initializer
      if t.data_type == onnx.TensorProto.UINT8
    ]
    kernels.append([k for p in plans for k in p.provenance])
  row = {"width": width, "made_s": round(time.monotonic() - begun, 1), "kernels": len(kernels[0])}
  row["params"] = [k.get("params") for k in kernels[0]][:8]
  row["same"] = [k.get("params") for k in kernels[0]] == [k.get("params") for k in kernels[1]]
  per_mib = 2 * width * width / 2**20
  row["mib"] = {"gate and up": round(7 * per_mib, 1), "down": round(3.5 * per_mib, 1)}
  known.write_text(json.dumps(row))
  return paths, row


def row_of(width, o):
  """The figures of a width."""
  from whole_arms import Arms, ratio_of

  paths, row = made(width, o)
  arms = Arms(*paths, cpu=o.cpu)
  times, _ = arms.times(3 if o.cpu else ROUNDS)
  row["graph"] = arms.graph
  row |= {
    f"{n}_us": round(float(np.median(t)), 2)
    for n, t in zip(("onnxruntime", "early", "late"), times, strict=True)
  }
  row["early_over_late"], row["interval"] = ratio_of(times[1:])
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--widths", type=int, nargs="+", default=[4096, 1024, 2048, 1536, 3072])
  add("--target", default="h200")
  add("--seconds", type=float, default=240.0)
  add("--out", type=Path, default=Path("out/early_kernels.json"))
  add("--work", type=Path, default=Path("/tmp/early"))
  add("--cpu", action="store_true", help="no GPU: checks this script, times say nothing")
  add("--make", action="store_true", help="nothing is timed")
  o = parser.parse_args()
  if o.make:
    for width in o.widths:
      print(made(width, o)[1], flush=True)
    return
  if o.cpu:
    facts = {}
  else:
    import torch  # noqa: F401
    from protocol import facts as facts_of

    facts = facts_of()
  o.out.parent.mkdir(parents=True, exist_ok=True)
  end, rows = time.monotonic() + o.seconds, []
  for width in o.widths:
    if time.monotonic() > end:
      break
    rows.append(row_of(width, o))
    print(rows[-1], flush=True)
    o.out.write_text(json.dumps({"facts": facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
