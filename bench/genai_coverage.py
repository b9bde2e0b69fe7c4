"""Of a decoder's step: the bytes that a verified program could read in place of ONNX Runtime's kernels.

    python bench/genai_coverage.py FOLDER ... [--out FILE] [--target h100] [--seconds 30]

FOLDERs are those of onnxruntime-genai. Bytes are those of weights that a step reads (not of tables, of
which it reads a row) and of caches, half full, or of a whole window. A node counts if a region with it has a
program that the search finds and proves; the smallest regions are asked first, equal ones once. Of the others
the reason is said. Whether it is also faster, a GPU says (``genai_decoder.py``).
"""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from protocol import write_text

from mirage_onnx.genai_folder import GenaiFolder
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.constants import known_values
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import STEPS
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import get_target
from mirage_onnx.tune.declared_sizes import checked_sizes, declared_sizes
from mirage_onnx.verify.prover import prover

#: Constants of fewer bytes are gains and scalars.
LEAST_BYTES = 1 << 15
#: Operators that read nothing of a large constant in a step, or a row of it.
VIEWS = ("Gather", "GatherBlockQuantized", "If", "Transpose", "Reshape")


def bytes_of_nodes(loaded, program):
  """Node -> bytes of weights and caches that only it reads in a step."""
  values, found = known_values(loaded), Counter()
  for node in program.nodes:
    if "others" in node.name or node.op_type in VIEWS:
      continue  # of a table a step reads a row, and weights are turned or have another shape before any run
    attention = node.op_type == "GroupQueryAttention"
    for name in {n for n in node.inputs if n}:
      t = program.tensors.get(name)
      if t is None or t.dtype is None or not t.is_static:
        continue
      size = t.dtype.size_bytes
      for d in t.shape:
        size *= int(d)
      if name in values and size >= LEAST_BYTES and not attention:
        found[node.name] += size
      elif attention and len(t.shape) == 4 and not node.name.endswith("/attended"):
        window = node.barrier is not None and "holds a window only" in node.barrier.reason
        found[f"{node.name}/attended"] += size if window else size // 2  # which reads what this one writes
  return found


def covered(folder, target, seconds):
  source = GenaiFolder.read(Path(folder))
  (name,) = source.models
  sizes = source.sizes(name, {"batch_size": [1]}, steps=True)
  loaded = load_model(source.path / name, steps={n: s[0] for n, s in sizes.items() if len(s) == 1})
  program = import_model(loaded)
  declared = declared_sizes(program, checked_sizes({n: list(s) for n, s in sizes.items()}))
  typical = program.sized(declared.typical)
  matches = find_candidates(program, replace(STEPS, reductions=True), declared.typical)
  wanted = bytes_of_nodes(loaded, typical)
  known, done, why = {}, set(), {}
  for c in sorted(matches.candidates, key=lambda c: (len(c.nodes), sorted(c.nodes))):
    if not (wanted.keys() - done) & c.nodes:
      continue
    key = c.region.key
    if key not in known:
      try:
        r = search(c.region, target, prover(c.region), space=space_of(c.region), budget_s=seconds)
        known[key] = "" if r.candidates else f"{r.report.stop}: {next(iter(r.report.refused), '')}"
      except Exception as error:
        known[key] = f"{type(error).__name__}: {error}"
    if known[key]:
      why |= dict.fromkeys(c.nodes, known[key])
    else:
      done |= c.nodes
  for r in matches.rejections:
    why |= dict.fromkeys(r.nodes, f"{r.code}: {r.reason}")
  whole = sum(wanted.values())
  left = {n: why.get(n, "in no region") for n in wanted if n not in done}
  return {
    "folder": Path(folder).name, "bytes": whole, "regions": len({c.region.key for c in matches.candidates}),
    "share": round(sum(wanted[n] for n in done if n in wanted) / max(1, whole), 5),
    "left": {n: {"bytes": wanted[n], "why": str(w)[:200]} for n, w in left.items()},
  }  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("folders", nargs="+")
  parser.add_argument("--out", type=Path, default=Path("genai_coverage.json"))
  parser.add_argument("--target", default="h100")
  parser.add_argument("--seconds", type=float, default=30.0)
  args = parser.parse_args()
  rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
  for folder in args.folders:
    began = time.monotonic()
    row = covered(folder, get_target(args.target), args.seconds)
    row["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(row), flush=True)
    rows = [r for r in rows if r["folder"] != row["folder"]] + [row]
    write_text(args.out, json.dumps({"target": args.target, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
