"""How much of each model of real size ``optimize`` replaces, why not the rest, and whether it is right.

    python bench/coverage.py [NAME ...] [--again] [--jobs N] [--limit-s N] [--flags JSON] [--out DIR]
    python bench/coverage.py NAME ... --times ...   (time and memory anew, into the lines that there are)
    python bench/coverage.py --show [--out DIR]
    python bench/coverage.py --merge DIR ... [--out DIR]
    python bench/coverage.py --from FOLDER ...   (models with their weights, NAME.onnx)
    python bench/coverage.py --keep FOLDER ...   (models and results stay, for real_verified.py --made)

Makes each model of ``models/architectures/real.tar.xz``, optimizes it for an H200 with default
flags and an empty cache, runs the result in onnxruntime without the library against the original, and
one node of every plan in the emulator against its region; then optimizes it once more. Every stage is
a process with a time limit. Writes OUT/coverage.json after each model; models that have a line there
are left out, unless ``--again``. ``--jobs``: so many models at a time, each on two cores of its own.
``--show`` prints it as text; ``--merge`` takes the lines of other records (of each model the last one that
ended well) into it. Each line says the commit that it was made with.
Exit 1 if a model was refused or its result is wrong.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue

import msgspec
import onnx
import onnxruntime

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "models" / "architectures")]

import real_archive
from coverage_table import text
from coverage_table.checks import Check, emulated
from coverage_table.kinds import kind_of
from coverage_table.record import Record, all_reasons, codes, spreads
from coverage_table.row import Coverage
from coverage_table.watched import watched
from facts import facts

RECORD = "coverage.json"
STAGE = ROOT / "bench" / "coverage_table" / "stage.py"
#: Of each model, where several run at a time.
CORES = 2
_PACKAGES = ("onnx", "numpy", "scipy")
_FLOATS = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}


def record(name, path, scratch, *, limit_s, check_s, flags, cores=(), commit="", checks=True):
  """Optimize and check one model; what goes wrong becomes part of the record.

  ``cores``: those that it has, else all. ``commit``: of this tree. ``checks``: else only times.
  """
  model = onnx.load(path, load_external_data=False)
  said = json.dumps(flags) if flags else "default"
  kept = {w: {**os.environ, "MIRAGE_CACHE_DIR": str(scratch / f"{w}.cache")} for w in ("optimize", "checks")}
  blank = Record(name, kind_of(name), _float_type(model), _weight_bytes(path), flags=said, commit=commit)

  def stage(what, limit, *more):
    own = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
    command = [*own, sys.executable, str(STAGE), what, str(path), str(scratch), *more]
    return watched(command, limit, scratch / f"{what}.log", kept.get(what, kept["checks"]))

  done = stage("optimize", limit_s, json.dumps(flags))
  blank = replace(blank, seconds=done.seconds, memory_mb=done.memory >> 20)
  if done.code != 0:
    return replace(blank, error=_why(done, limit_s))
  row = json.loads((scratch / "row.json").read_text())
  line = replace(
    blank, seconds=row["seconds"], stages=row["stages"], cut_off=row["cut_off"],
    at_60_s=row["at_60_s"], silence_s=row["silence_s"], coverage=msgspec.convert(row["coverage"], Coverage),
  )  # fmt: skip
  if checks:
    ran = stage("stock", check_s)
    stock = Check("FAILED" if ran.code else "time", note=_why(ran, check_s))
    if ran.code == 0:
      stock = msgspec.convert(json.loads((scratch / "stock.json").read_text()), Check)
    line = replace(line, stock=stock, emulated=_emulated(stage, scratch, check_s))
  once_more = stage("optimize", limit_s, json.dumps(flags))
  if once_more.code != 0:
    return replace(line, error=f"once more: {_why(once_more, limit_s)}")
  return replace(line, repeat_s=json.loads((scratch / "row.json").read_text())["seconds"])


def _emulated(stage, scratch, limit_s):
  """A kernel at which a call ended, or ran out of time, is passed over by the next one."""
  lines, left, seen = scratch / "emulated.jsonl", float(limit_s), -1
  while left > 0:
    ran = stage("emulate", left)
    left -= ran.seconds
    found = [json.loads(x) for x in lines.read_text().splitlines()] if lines.exists() else []
    if not (scratch / "nodes.json").exists():
      return Check("time" if ran.code is None else "not run", note=_why(ran, limit_s))
    if ran.code in (0, None):
      break
    if len(found) == seen:
      return Check("FAILED", note=_why(ran, limit_s))
    seen = len(found)
  about = json.loads((scratch / "nodes.json").read_text())
  ended = [msgspec.convert(x, Check) for x in found if "result" in x]
  right = [c for c in ended if c.result != "time"]
  broken = {x["node"] for x in found} - {x["node"] for x in found if "result" in x}
  if broken and ran.code not in (0, None):
    right += [Check("FAILED", note=f"{n}: the process ended") for n in sorted(broken)]
  return emulated(right, about["total"], about["kernels"] - len(right))


def _why(ran, limit_s):
  if ran.code is None:
    return f"not done in {limit_s:.0f} s"
  last = [line for line in ran.text.splitlines() if line.strip()][-1:]
  return f"exit status {ran.code}: {last[0][:300] if last else ''}"


def _float_type(model):
  """The element type of most weights."""
  sized = [(t, _count(t)) for t in model.graph.initializer]
  if not sized:
    return "fp32"
  return _FLOATS.get(max(sized, key=lambda x: x[1])[0].data_type, "fp32")


def _count(tensor):
  floats = (onnx.TensorProto.FLOAT, *_FLOATS)
  count = 1
  for d in tensor.dims:
    count *= d
  return count if tensor.data_type in floats else 0


def _weight_bytes(path):
  files = [path, *path.parent.glob("weights.bin")]
  return sum(f.stat().st_size for f in files)


def _thread(cpu):
  """First one thread of each core, so that two cores are two where there are as many."""
  path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
  known = path.read_text().strip().replace("-", ",").split(",") if path.exists() else []
  return (str(cpu) in known[1:], cpu)


def write(folder, about, records):
  """The record of the models so far, a line of text for each."""
  folder.mkdir(parents=True, exist_ok=True)
  found = all_reasons(records)
  data = {
    **about,
    "bytes_share": [asdict(s) for s in spreads(records, lambda c: c.share.bytes)],
    "codes": [dict(zip(("code", "nodes", "bytes"), row, strict=True)) for row in codes(found)],
  }
  head = json.dumps(data, indent=1).removesuffix("\n}")
  lines = ",\n".join(json.dumps(asdict(r), separators=(",", ":")) for r in records)
  part = folder / f"{RECORD}.part"
  part.write_text(f'{head},\n "models": [\n{lines}\n]\n}}\n')
  part.replace(folder / RECORD)


def earlier(folder):
  """The facts of the recorded run, and its lines."""
  data = json.loads((folder / RECORD).read_text())
  records = msgspec.convert(data.pop("models"), list[Record])
  return {k: v for k, v in data.items() if k not in ("bytes_share", "codes")}, records


def merge(out, folders):
  """Write the record with the lines of others, the last one first in what it says of the run.

  Lines of a record from before each said its own commit are of that record's, or of later ones.
  """
  lines = {}
  for folder in (*((out,) if (out / RECORD).exists() else ()), *folders):
    about, found = earlier(folder)
    for r in found:
      r = r if r.commit else replace(r, commit=f"{about['commit'][:12]} or later")
      if not (r.error and r.name in lines):
        lines[r.name] = r
  write(out, about, [r for _, r in sorted(lines.items())])
  return 0


def folder_of(name, given):
  """Where a model and its results lie: for as long as it takes, or to stay."""
  if given.keep:
    return nullcontext(given.keep / name)
  return tempfile.TemporaryDirectory(dir=given.scratch, prefix="coverage-")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
  parser.add_argument("--from", type=Path, dest="folder", help="where the models are (.onnx)")
  parser.add_argument("--again", action="store_true", help="also models that have a line")
  parser.add_argument("--times", action="store_true", help="only time and memory, into the lines there are")
  parser.add_argument("--jobs", type=int, default=1, help="models at a time, each on two cores")
  parser.add_argument("--limit-s", type=float, default=900.0, help="time of one optimize")
  parser.add_argument("--check-s", type=float, default=240.0, help="time of one check")
  parser.add_argument("--flags", type=json.loads, default={}, help="other than default ones, of optimize()")
  parser.add_argument("--show", action="store_true", help="print the record, run nothing")
  parser.add_argument("--merge", type=Path, nargs="+", metavar="DIR", help="take the lines of these records")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  parser.add_argument("--scratch", type=Path, help="where models with their weights lie meanwhile")
  parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where they stay, FOLDER/NAME")
  given = parser.parse_args()
  known = [p.stem for p in sorted(given.folder.glob("*.onnx"))] if given.folder else real_archive.names()
  if unknown := set(given.names) - set(known):
    parser.error(f"no such model: {', '.join(sorted(unknown))}")
  if given.show:
    print(text.table(*earlier(given.out)), end="")
    return 0
  if given.merge:
    return merge(given.out, given.merge)
  lines = {r.name: r for r in earlier(given.out)[1]} if (given.out / RECORD).exists() else {}
  wanted = [n for n in given.names or known if given.again or given.times or n not in lines]
  about = {**facts(_PACKAGES), "target": "h200"}
  about["versions"]["onnxruntime"] = onnxruntime.__version__  # of either package
  commit = about["commit"][:12] + (" changed" if about["changed"] else "")
  free, new = SimpleQueue(), []
  if given.jobs > 1:
    about["cores"] = CORES
    ours = sorted(os.sched_getaffinity(0), key=_thread)
    for j in range(given.jobs):
      free.put(tuple(ours[CORES * j : CORES * j + CORES]))
  else:
    free.put(())

  def one(name):
    cores = free.get()
    try:
      with folder_of(name, given) as folder:
        made, scratch = Path(folder) / "model", Path(folder) / "out"
        scratch.mkdir(parents=True)
        path = given.folder / f"{name}.onnx" if given.folder else real_archive.make(name, made)
        limits = {"limit_s": given.limit_s, "check_s": given.check_s, "checks": not given.times}
        done = record(name, path, scratch, flags=given.flags, cores=cores, commit=commit, **limits)
        if done.error and given.scratch:
          shutil.copy(scratch / "optimize.log", given.scratch / f"{name}.log")
        if given.keep:
          told = {"optimize_s": done.seconds, "error": done.error}
          (given.keep / name / "done").write_text(json.dumps(told))
    finally:
      free.put(cores)
    return done

  with ThreadPoolExecutor(given.jobs) as pool:
    for i, done in enumerate((f.result() for f in as_completed([pool.submit(one, n) for n in wanted])), 1):
      lines[done.name] = lines[done.name].with_times(done) if given.times and done.name in lines else done
      new.append(lines[done.name])
      rows = [r for _, r in sorted(lines.items())]
      write(given.out, about, rows)
      share = done.coverage.share.bytes if done.coverage else 0.0
      checks = ", ".join(f"{c.result} {c.note}" for c in (done.stock, done.emulated) if c)
      took = f"{done.seconds:6.1f} s {done.memory_mb:6} MB {share:6.1%} of bytes"
      print(f"{i:3} {done.name:32} {took}  {checks or done.error}", flush=True)
  print("\n".join(text.summary([r for _, r in sorted(lines.items())])))
  print(f"\nwrote {given.out / RECORD}")
  return int(any(r.is_wrong for r in new))


if __name__ == "__main__":
  sys.exit(main())
