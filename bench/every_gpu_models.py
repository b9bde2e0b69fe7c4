"""Whole models for GPUs that are not here: every kernel that is chosen compiles, fits, and ran reduced.

    python bench/every_gpu_models.py --out OUT.jsonl [--arch sm_80 ...] [--budget 60] [--workers 8] MODEL ...

Each model is optimized for each architecture's slowest row with all its regions, attention included, as if
ONNX Runtime had no kernels: what verifies is replaced, however slow. A line a run: regions by what became of
them, kernels by how they ran in the emulator. Exit 1 where a kernel does not fit.
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "bench")]

from every_gpu import target_of, within
from facts import facts

from mirage_onnx import pipeline
from mirage_onnx.events import silent
from mirage_onnx.importer import load_model
from mirage_onnx.targets import ARCHITECTURES


def row_of(path, arch, budget_s, workers):
  """What became of a model's regions on an architecture."""
  target, start = target_of(arch), time.monotonic()
  options = pipeline.Options(
    target, budget_s=budget_s, workers=workers, tiled=True, every=True, emulate=True, streamed=True
  )
  run = pipeline.run(load_model(path), options, silent)
  kernels = {id(o): o for _, o in run.chosen}.values()
  made = [(s, c) for o in kernels for s, c in zip(o.compiled.sources, o.compiled.cubins, strict=True)]
  return {
    "model": path.parent.name, "arch": arch, "target": target.name,
    "seconds": round(time.monotonic() - start, 1),
    "replaced": len(run.chosen), "programs": len(kernels), "kernels": len(made),
    "ran": dict(Counter(str(o.ran) for o in kernels)),
    "refused": dict(Counter(o.rejection.code for o in run.outcomes.values() if o.rejection)),
    "most_smem_bytes": max((s.smem_bytes for s, _ in made), default=0),
    "spills": sum(c.spill_bytes + c.stack_bytes for _, c in made),
    "do_not_fit": [s.name for s, c in made if not within(s, c, target)],
  }  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--out", type=Path, required=True)
  parser.add_argument("--arch", action="append", choices=ARCHITECTURES)
  parser.add_argument("--budget", type=float, default=60.0)
  parser.add_argument("--workers", type=int, default=2)
  parser.add_argument("models", nargs="+", type=Path)
  options = parser.parse_args()
  bad = False
  with options.out.open("a") as file:
    print(json.dumps(facts(("numpy", "onnx", "nvidia-cuda-nvrtc"))), file=file, flush=True)
    for path in options.models:
      for arch in options.arch or ARCHITECTURES:
        row = row_of(path, arch, options.budget, options.workers)
        bad |= bool(row["do_not_fit"] or row["spills"])
        print(json.dumps(row), file=file, flush=True)
        print(json.dumps(row), flush=True)
  return int(bad)


if __name__ == "__main__":
  sys.exit(main())
