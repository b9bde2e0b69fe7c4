"""What ``optimize FOLDER`` with default flags puts in place of ONNX Runtime's kernels in a decoder's step.

    python3 bench/genai_replaced.py FOLDER ... [--target local] [--out FILE] [--work DIR] [--limit 330]

FOLDERs are those of onnxruntime-genai; of one whose weights are not beside it they are drawn. The command
runs as it is, ended after ``--limit`` seconds. Then the bytes of a step (``genai_coverage.bytes_of_nodes``:
weights, and caches half full) of nodes that the written model's branch for steps has no more, and of the
others the reason that the report gives. ``gated``: the whole model was no faster, so that all stayed;
``share`` is then of the regions that had been chosen.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from genai_coverage import bytes_of_nodes
from onnx import TensorProto, helper
from protocol import facts, write_text

from mirage_onnx.genai_folder import GenaiFolder
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.tune.declared_sizes import checked_sizes, declared_sizes

#: Numbers that are drawn once; larger weights repeat them.
DRAWN = 1 << 22


def fill(folder):
  """Write the data file of a model that is only its graph: such weights that activations stay of a size."""
  graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
  outside = [t for t in graph.initializer if t.data_location == TensorProto.EXTERNAL]
  files = {next(e.value for e in t.external_data if e.key == "location") for t in outside}
  if all((folder / f).exists() for f in files):
    return
  rng = np.random.default_rng(0)
  normal, packed = rng.standard_normal(DRAWN, np.float32), rng.integers(0, 256, DRAWN, np.uint8)
  opened = {f: (folder / f).open("wb") for f in files}
  for t in outside:
    where, shape = {e.key: e.value for e in t.external_data}, tuple(t.dims)
    kind = helper.tensor_dtype_to_np_dtype(t.data_type)
    if kind.itemsize == 1:
      x = np.resize(packed.view(kind), shape)
    elif "scales" in t.name:
      x = np.resize((1 + 0.2 * np.abs(normal)) * 0.25 / np.sqrt(32 * shape[-1]), shape)
    elif len(shape) == 1:
      x = np.resize(1 + 0.1 * normal, shape)
    else:
      x = np.resize(normal * (1.0 if "embed" in t.name else shape[0] ** -0.5), shape)
    file = opened[where["location"]]
    file.seek(int(where.get("offset", 0)))
    np.ascontiguousarray(x.astype(kind)).tofile(file)
  for file in opened.values():
    file.close()


def step_bytes(folder):
  """Node -> bytes of a step, at the sizes that the command takes from the folder."""
  source = GenaiFolder.read(folder)
  (name,) = source.models
  sizes = source.sizes(name, {}, steps=True)
  loaded = load_model(folder / name, steps={n: s[0] for n, s in sizes.items() if len(s) == 1})
  program = import_model(loaded)
  declared = declared_sizes(program, checked_sizes({n: list(s) for n, s in sizes.items()}))
  return bytes_of_nodes(loaded, program.sized(declared.typical))


def left_in(path):
  """Names of nodes of a written model's steps; of all of it where steps have no branch."""
  graph = onnx.load(path, load_external_data=False).graph
  steps = [a.g for n in graph.node if n.op_type == "If" for a in n.attribute if a.name == "then_branch"]
  return {n.name for n in (steps[0] if steps else graph).node if not n.domain.startswith("ai.mirage")}


def covered(folder, out, target, limit):
  fill(folder)
  wanted = step_bytes(folder)
  given = ["optimize", str(folder), "-o", str(out), "--target", target, "--json"]
  began = time.monotonic()
  done = subprocess.run(
    [sys.executable, "-m", "mirage_onnx", *given], capture_output=True, text=True, timeout=limit
  )
  row = {"folder": folder.name, "seconds": round(time.monotonic() - began, 1), "exit": done.returncode}
  if done.returncode not in (0, 4):
    return row | {"error": done.stderr[-600:]}
  report = json.loads(done.stdout)
  regions = report["regions"]
  chosen = {op for r in regions if r["status"] == "replaced" for op in r["ops"]}
  left = left_in(out / "model.onnx")
  own = [n for n in _nodes(out / "model.onnx") if n.domain.startswith("ai.mirage")]
  row["gated"] = bool(chosen) and not own
  if row["gated"]:
    left = {n for n in wanted if n not in chosen}
  whole = sum(wanted.values())
  kept = {n: size for n, size in wanted.items() if n in left or n.removesuffix("/attended") in left}
  why = {
    n: [f"{r['reason']}: {(r['reason_text'] or '')[:140]}" for r in regions if n in r["ops"] and r["reason"]]
    for n in kept
  }
  row |= {"bytes": whole, "share": round(1 - sum(kept.values()) / whole, 5)}
  row["measured"] = report.get("measured")
  row["left"] = {n: {"bytes": size, "why": why[n][:3]} for n, size in kept.items()}
  row["statuses"] = dict(Counter(f"{r['status']} {r['reason'] or ''}".strip() for r in regions))
  return row


def _nodes(path):
  graph = onnx.load(path, load_external_data=False).graph
  yield from graph.node
  for n in graph.node:
    for a in n.attribute:
      yield from a.g.node


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("folders", nargs="+", type=Path)
  parser.add_argument("--out", type=Path, default=Path("genai_replaced.json"))
  parser.add_argument("--work", type=Path, default=Path("/tmp/genai_replaced"))
  parser.add_argument("--target", default="local")
  parser.add_argument("--limit", type=float, default=330.0)
  args = parser.parse_args()
  record = {"facts": facts(), "target": args.target, "rows": []}
  for folder in args.folders:
    out = args.work / f"{folder.name}.fast"
    shutil.rmtree(out, ignore_errors=True)
    try:
      row = covered(folder, out, args.target, args.limit)
    except subprocess.TimeoutExpired:
      row = {"folder": folder.name, "error": f"not done in {args.limit} s"}
    shutil.rmtree(out, ignore_errors=True)
    print(json.dumps(row), flush=True)
    record["rows"].append(row)
    write_text(args.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
  main()
