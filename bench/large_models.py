"""Memory of ``optimize`` on models of many gigabytes, whose weights are a sparse file.

    python bench/large_models.py [--gigabytes N ...] [--out FILE]

A model has N layers of one weight of 1 GiB in fp16 each (a norm, a product of 4 rows, a sum), in a file with
holes but for some numbers of each. It is optimized for an H200 with default flags as the command does it; the
most memory is that of all its processes without mapped files. Each replaced weight is copied in another
order, which is written out. Writes FILE (bench/results/large_models.json). Exit 1 where one took more
than its small tensors and ``LIMIT_MB``, or nothing was replaced.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "support")]

import numpy as np
import onnx
from coverage_table.watched import watched
from facts import facts
from onnx import TensorProto
from small_models import Net

ROWS, WIDE = 16384, 32768
LAYER_BYTES = 2 * ROWS * WIDE
LIMIT_MB = 2048
MOST_S = 400.0


def make(folder, gigabytes):
  """``folder``/in.onnx and its weights."""
  net = Net(opset=20)
  x = net.input(4, ROWS)
  with (folder / "weights.bin").open("wb") as file:
    for layer in range(gigabytes):
      shape = [ROWS, WIDE] if layer % 2 == 0 else [WIDE, ROWS]
      weight = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT16, dims=shape)
      weight.data_location = TensorProto.EXTERNAL
      places = ("location", "weights.bin"), ("offset", layer * LAYER_BYTES), ("length", LAYER_BYTES)
      for key, value in places:
        weight.external_data.add(key=key, value=str(value))
      net.weights.append(weight)
      file.seek(layer * LAYER_BYTES)
      file.write(net.rng.standard_normal(1 << 16).astype(np.float16).tobytes())
      x = net.MatMul(net.rms(x), weight.name)
    file.truncate(gigabytes * LAYER_BYTES)
  onnx.save(net.model(x), folder / "in.onnx")
  return folder / "in.onnx"


def measured(gigabytes):
  """The row of one size."""
  with tempfile.TemporaryDirectory(prefix="large-") as made:
    folder = Path(made)
    path, out = make(folder, gigabytes), folder / "out.onnx"
    command = [sys.executable, "-m", "mirage_onnx", "optimize", str(path), "-o", str(out), "--target", "h200"]
    ran = watched(command, MOST_S, folder / "log", {**os.environ, "MIRAGE_CACHE_DIR": str(folder / "cache")})
    row = {"gigabytes": gigabytes, "seconds": ran.seconds, "memory_mb": ran.memory >> 20, "exit": ran.code}
    if ran.code != 0:
      return {**row, "said": ran.text[-500:]}
    nodes = onnx.load(out, load_external_data=False).graph.node
    row["custom_nodes"] = sum(n.domain.startswith("ai.mirage") for n in nodes)
    row["written_gb"] = round(sum(f.stat().st_size for f in folder.glob("out.onnx*")) / 2**30, 2)
    return {**row, "said": next((x for x in ran.text.splitlines() if x.startswith("wrote")), "")[-200:]}


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--gigabytes", nargs="+", type=int, default=(4, 16))
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "large_models.json")
  given = parser.parse_args()
  rows = []
  for gigabytes in given.gigabytes:
    rows.append(measured(gigabytes))
    print(json.dumps(rows[-1]), flush=True)
    about = {**facts(("onnx", "onnxruntime", "numpy")), "limit_mb": LIMIT_MB, "rows": rows}
    given.out.write_text(json.dumps(about, indent=1) + "\n")
  good = all(r["exit"] == 0 and r["custom_nodes"] and r["memory_mb"] <= LIMIT_MB for r in rows)
  return int(not good)


if __name__ == "__main__":
  sys.exit(main())
