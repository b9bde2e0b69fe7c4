"""How much of each architecture ``optimize`` replaces, why not the rest, and whether it is right.

    python bench/coverage.py [NAME ...] [--tiled] [--emulate] [--jobs N] [--update] [--out DIR]
    python bench/coverage.py --show [--out DIR]
    python bench/coverage.py --from FOLDER ...   (what models/architectures/exports.py wrote there)

Optimizes the models of ``models/architectures`` for an H200, runs every result in onnxruntime
without the library against its original (``--emulate``: its kernels in the emulator as well), and
writes OUT/coverage.json.xz after each model. With ``--update`` the lines of other models stay as
they are there. ``--show`` prints it as text. Exit 1 if a model was refused or its result is wrong.
"""

import argparse
import json
import lzma
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import msgspec
import onnx
import onnxruntime

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "models" / "architectures")]

import weights
from coverage_table import text
from coverage_table.checks import SIZES, check_emulated, check_stock
from coverage_table.kinds import DECODE, ENCODER, kind_of
from coverage_table.record import Record, all_reasons, codes, spreads
from coverage_table.row import coverage
from facts import facts

from mirage_onnx import pipeline
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.target import get_target
from mirage_onnx.tune.baseline import load_table, node_times_us
from mirage_onnx.tune.declared_sizes import declared_sizes

TARGET = "h200"
#: The table with every region and reason: packed, for it repeats itself (``xzcat`` shows it).
RECORD = "coverage.json.xz"
_PACKAGES = ("onnx", "numpy", "scipy")


def load(name, folder):
  """One of the architectures, or of the files of a folder."""
  return onnx.load(folder / f"{name}.onnx") if folder else weights.load(name)


def record(name, options, *, emulate, folder=None):
  """Optimize and check one model; what goes wrong becomes part of the record."""
  model = load(name, folder)
  named = {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim}
  options = replace(options, shapes={k: (size,) for k, size in SIZES.items() if k in named})
  kind, dtype = kind_of(name), _float_type(model)
  start = time.monotonic()
  try:
    run = pipeline.run(load_model(model), options)
    sizes = declared_sizes(run.program, options.shapes).typical
    run = replace(run, program=run.program.sized(sizes))
  except Exception as error:  # a refusal, or a bug: told, and the other models go on
    seconds = round(time.monotonic() - start, 1)
    return Record(name, kind, dtype, seconds, error=_line(error))
  seconds = round(time.monotonic() - start, 1)
  table = load_table(options.target)
  node_us = node_times_us(run.program, table) if table else {}
  return Record(
    name, kind, dtype, seconds, coverage(run, node_us),
    stock=check_stock(model, run.model),
    emulated=check_emulated(model, run.model) if emulate else None,
  )  # fmt: skip


def _line(error):
  if isinstance(error, MirageError):
    return error.line()
  traceback.print_exception(error)
  return next(iter(f"{type(error).__name__}: {error}".splitlines()))


def _float_type(model):
  """The element type of most weights."""
  names = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
  largest = max(model.graph.initializer, key=lambda t: len(t.raw_data))
  return names.get(largest.data_type, "fp32")


def write(folder, about, records):
  """The record of the models so far."""
  folder.mkdir(parents=True, exist_ok=True)
  found = all_reasons(records)
  data = {
    **about,
    "bytes_share": [asdict(s) for s in spreads(records, lambda c: c.share.bytes)],
    "codes": [dict(zip(("code", "nodes", "bytes"), row, strict=True)) for row in codes(found)],
    "reasons": [asdict(r) for r in found],
    "models": [asdict(r) for r in records],
  }
  (folder / RECORD).write_bytes(lzma.compress((json.dumps(data, separators=(",", ":"))).encode()))


def earlier(folder):
  """The facts of the recorded run, and its lines."""
  data = json.loads(lzma.decompress((folder / RECORD).read_bytes()))
  records = msgspec.convert(data.pop("models"), list[Record])
  sums = ("bytes_share", "codes", "reasons")
  return {k: v for k, v in data.items() if k not in sums}, records


def each(names, options, *, jobs, **how):
  """The records as they come, ``jobs`` models at a time, each in a process."""
  if jobs == 1:
    yield from (record(name, options, **how) for name in names)
    return
  with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
    runs = [pool.submit(record, name, options, **how) for name in names]
    yield from (run.result() for run in as_completed(runs))


def in_order(names, folder):
  """Decode steps and encoders first, the largest of them first: a run may be stopped."""
  sizes = {n: len(load(n, folder).graph.node) for n in names}
  return sorted(names, key=lambda n: (kind_of(n) not in (DECODE, ENCODER), -sizes[n], n))


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
  parser.add_argument("--from", type=Path, dest="folder", help="where the models are (.onnx)")
  parser.add_argument("--emulate", action="store_true", help="run the kernels in the emulator")
  parser.add_argument("--tiled", action="store_true", help="as optimize --tiled")
  parser.add_argument("--jobs", type=int, default=1, help="models at a time")
  parser.add_argument("--budget-s", type=float, default=300.0, help="search time per model")
  parser.add_argument("--update", action="store_true", help="keep the lines of other models")
  parser.add_argument("--show", action="store_true", help="print the record, run nothing")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  arguments = parser.parse_args()
  folder = arguments.folder
  known_names = [p.stem for p in sorted(folder.glob("*.onnx"))] if folder else weights.names()
  if unknown := set(arguments.names) - set(known_names):
    parser.error(f"no such model: {', '.join(sorted(unknown))}")
  if arguments.show:
    print(text.table(*earlier(arguments.out)), end="")
    return 0
  options = pipeline.Options(
    get_target(TARGET),
    budget_s=arguments.budget_s,
    workers=1 if arguments.jobs > 1 else None,
    tiled=arguments.tiled,
  )
  about = {**facts(_PACKAGES), "target": TARGET}
  about["versions"]["onnxruntime"] = onnxruntime.__version__  # of either package
  names = in_order(arguments.names or known_names, folder)
  before, known = earlier(arguments.out) if arguments.update else ({"date": ""}, [])
  old, new = {r.name: r for r in known}, dict[str, Record]()
  found = each(names, options, jobs=arguments.jobs, emulate=arguments.emulate, folder=arguments.folder)
  for i, done in enumerate(found, 1):
    new[done.name] = done
    old.pop(done.name, None)
    about["models of this run"] = f"{i} of {len(names)}"
    if arguments.update:
      about["models of an earlier run"] = f"{len(old)}, {before['date']}"
    rows = [r for _, r in sorted((old | new).items())]
    write(arguments.out, about, rows)
    share = done.coverage.share.bytes if done.coverage else 0.0
    stock = done.stock.result if done.stock else done.error
    print(
      f"{i:3} {done.name:28} {done.seconds:6.1f} s  {share:6.1%} of bytes  {stock}",
      flush=True,
    )
  print("\n".join(text.summary(rows)))
  print(f"\nwrote {arguments.out / RECORD}")
  return int(any(r.is_wrong for r in new.values()))


if __name__ == "__main__":
  sys.exit(main())
