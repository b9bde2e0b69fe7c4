"""Kernels for every architecture: compiled by NVRTC, within its limits, right in the emulator.

    python bench/every_gpu.py --jobs 16 [--seconds 140] [--random 2000] [--state build/every_gpu.jsonl]
                              [--only random] [--out bench/results/every_gpu.json]

For every golden program and architecture: the first of what the search finds, and of the golden program's
best numbers, that compiles for it (a kernel that spills does not), with its shared memory and registers; both
run reduced in the emulator, or, where that is too much, with small numbers of the same program; the golden
one also at small odd sizes; all checks on. Random block graphs
likewise, with whatever numbers they have: their spills are counted. Every architecture's text is compiled for
it; equal texts run once. Those that NVRTC is slow with (``SLOW_S``; 8 in 100, half of the time) come when
all others are done, and are counted as ``slow_left`` until then. What is in the state file is not done again,
unless it was done by other source. Exit 1 where anything is wrong.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from multiprocessing import Pool
from multiprocessing import TimeoutError as Late
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a worker is one core's work
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "bench")]

from facts import facts
from golden_graphs import NAMES, golden_graph
from golden_runs import complaint, complaint_of
from random_kernel_run import TOGETHER, compiled, emitted, emulate, for_target
from random_kernels import random_kernel
from search_programs import PROGRAMS

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.source_digest import EMULATION_SOURCES, SEARCH_SOURCES, source_digest
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.targets import ARCHITECTURES, get_target
from mirage_onnx.tune import emulated
from mirage_onnx.tune.emulated import EMULATED, Emulated
from mirage_onnx.tune.refine import with_room
from mirage_onnx.verify.prover import prover

#: Random kernels of a job.
SEEDS = 10
#: Seconds of processor time for the first architecture's kernels after which the others' are put off.
SLOW_S = 0.6
#: Seconds of a search, candidates that are tried, seconds of a program in the emulator.
SEARCH_S, TRIED, EMULATED_S = 10.0, 40, 120.0
#: Numbers of a golden program where none of the first compiles: of little shared memory many do not fit.
MORE = 2000
#: Of ``tune/emulated.py``: there is time for more than before a kernel ships.
WORK = {"MOST_WORK": 1 << 24, "TIMEOUT_S": 60}
#: What decides a row: of random kernels nothing of the search.
_TEXTS = (*EMULATION_SOURCES, "codegen", "lower", "instructions")
FIRST = next(iter(ARCHITECTURES))
SOURCES = {"random": _TEXTS, "golden": (*_TEXTS, *SEARCH_SOURCES, "tune/refine.py")}


def target_of(arch):
  """The slowest GPU of an architecture: the limits are the same for all of them."""
  return get_target(arch if arch in ("sm_90", "sm_90a") else arch.rstrip("a"))


def golden(arch, name):
  """What becomes of a program on an architecture."""
  from golden_kernels import numbered

  from mirage_onnx.ir.ugraph import Candidate

  target, region, row = target_of(arch), PROGRAMS[name](), {}
  found = search(
    region,
    target,
    prover(region, derived=True),
    bound=SearchBound(),
    space=space_of(region),
    budget_s=SEARCH_S,
  )
  row["searched"] = first(region, [v.candidate for v in found.candidates][:TRIED], target)
  graph = golden_graph(name)
  for most in (TRIED, MORE):
    sets = numbered(graph, region, target, most)
    row["golden"] = first(region, [Candidate(graph, p, us) for us, p in sets], target)
    if row["golden"]["chosen"] is not None:
      break
  row["small"] = complaint(name, target)
  return row


def first(region, candidates, target):
  """The first candidate that compiles, and how it runs."""
  done, refused = compile_candidates(region, candidates, target, keep=1)
  if not done and refused and all(r.code == "SPILLS" for r in refused):  # as tune/ahead.py does
    done, more = compile_candidates(region, with_room(region, candidates, target, TRIED), target, keep=1)
    refused += more
  row = {"refused": dict(Counter(r.code for r in refused))}
  if not done:
    return row | {"chosen": None}
  (c,) = done
  ran, wrong = Emulated(target, EMULATED_S)(region, c.candidate)
  if ran != EMULATED:
    try:
      row["small"] = complaint_of(region.key, c.candidate.ugraph, target)
    except Exception as error:  # sizes or values that this program cannot have
      row["not_run"] = f"{type(error).__name__}: {error}"[:200]
  return row | {
    "chosen": " | ".join(p.to_text() for p in c.candidate.params),
    "predicted_us": round(c.candidate.predicted_us, 2),
    "smem_bytes": max(s.smem_bytes for s in c.sources),
    "registers": max(i.registers for i in c.cubins),
    "spills": max(i.spill_bytes + i.stack_bytes for i in c.cubins),
    "within": all(within(s, i, target) for s, i in zip(c.sources, c.cubins, strict=True)),
    "ran": ran,
    "wrong": wrong.reason if wrong else "",
  }


def within(source, cubin, target):
  """Whether a block of a kernel fits on a multiprocessor of the GPU, with the features it has."""
  registers = -(-cubin.registers // 8) * 8 * source.block
  return (
    source.smem_bytes + cubin.smem_bytes <= target.smem_bytes
    and registers <= target.registers_per_sm
    and source.block <= min(1024, target.sm_threads)
    and source.cluster <= target.max_cluster
    and source.pdl <= target.has_pdl
  )


def random_seeds(first_seed, count, put_off=True, arches=tuple(ARCHITECTURES)):
  """Outcomes of random kernels: architecture -> kind -> how many; what is wrong; seeds that are put off."""
  counts, wrong, slow = {arch: Counter() for arch in arches}, [], []
  subjects = {}
  for case in (random_kernel(seed) for seed in range(first_seed, first_seed + count)):
    own = []
    for arch in arches:
      target = target_of(arch)
      subject, started = emitted(for_target(case, target), target), time.process_time()
      own.append((arch, subject, [outcome(source, target) for source in subject.sources]))
      if put_off and arch == FIRST and time.process_time() - started > SLOW_S:
        slow.append(case.seed)
        break
    else:
      for arch, subject, kernels in own:
        key = tuple(s.text for s in subject.sources) or (arch, case.seed)
        subjects.setdefault(key, (subject, []))[1].append(arch)
        counts[arch].update(kind for kind, _ in kernels)
        wrong += [f"{arch} seed {case.seed}: {why}" for _, why in kernels if why]
  open_ = [s for s, _ in subjects.values() if s.outcome is None]
  for at in range(0, len(open_), TOGETHER):
    for subject, module, kernels in compiled(open_[at : at + TOGETHER]):
      emulate(subject, module, kernels)
  for subject, arches in subjects.values():
    for arch in arches:
      counts[arch][subject.outcome.kind] += 1
      if subject.outcome.is_bad:
        wrong.append(f"{arch}: {subject.outcome}")
  return {"counts": counts, "wrong": wrong, "slow": slow}


def slow_seed(seed, arch):
  """The outcome of one that was put off, for one architecture."""
  return random_seeds(seed, 1, put_off=False, arches=(arch,))


def outcome(source, target):
  """(``compiled`` or why not, what is wrong with that) of a kernel."""
  try:
    cubin = compile_cubin(source.text, target, name=source.name)
  except RejectionError as error:
    code = error.rejection.code
    return code, "" if code == "SPILLS" else error.rejection.reason
  return "compiled", "" if within(source, cubin, target) else f"{source.name} does not fit"


def answer(job):
  """The row of a job, however it ends."""
  kind, *rest = job
  job = {"job": job, "source": made_by(kind)}
  try:
    return {**job, **{"golden": golden, "random": random_seeds, "slow": slow_seed}[kind](*rest)}
  except Exception:
    return {**job, "crash": traceback.format_exc()[-1500:]}


def made_by(kind):
  """A hash of the source that decides rows of this kind."""
  return source_digest(*dict.fromkeys(SOURCES["golden" if kind == "golden" else "random"]))


def wrong_of(row):
  """What is wrong in a row."""
  if "crash" in row:
    return [f"{row['job']}: {row['crash']}"]
  if row["job"][0] != "golden":
    return row["wrong"]
  name, found = " ".join(row["job"][1:]), []
  for which in ("searched", "golden"):
    made = row[which]
    if made["chosen"] is not None and is_badly_made(made):
      found.append(f"{name} {which}: {made}")
  if row["searched"]["chosen"] is None and row["searched"]["refused"]:
    found.append(f"{name}: nothing that the search finds compiles: {row['searched']['refused']}")
  return found + ([f"{name}: {row['small']}"] if row["small"] else [])


def is_badly_made(made):
  """Of what was chosen."""
  return bool(made["wrong"] or made["spills"] or not made["within"] or made.get("small"))


def summary(rows):
  """By architecture, what was compiled and what ran."""
  table = {}
  for arch in ARCHITECTURES:
    own = [r for r in rows if r["job"][0] == "golden" and r["job"][1] == arch and "crash" not in r]
    made = [r[w] for r in own for w in ("searched", "golden") if r[w]["chosen"] is not None]
    refused = sum((Counter(r[w]["refused"]) for r in own for w in ("searched", "golden")), Counter())
    random = sum((Counter(r["counts"].get(arch)) for r in rows if "counts" in r), Counter())
    table[arch] = {
      "target": target_of(arch).name,
      "smem_limit": target_of(arch).smem_bytes,
      "programs": len(own),
      "chosen": len(made),
      "search_found_none": sum(r["searched"]["chosen"] is None for r in own),
      "golden_without_numbers": sum(r["golden"]["chosen"] is None for r in own),
      "most_smem_bytes": max((m["smem_bytes"] for m in made), default=0),
      "most_registers": max((m["registers"] for m in made), default=0),
      "refused_before": dict(refused),
      "reduced": sum(m["ran"] == EMULATED for m in made),
      "small": sum("small" in m for m in made),
      "not_run": sum("not_run" in m for m in made),
      "small_right": sum(not r["small"] for r in own),
      "random": dict(random),
    }
  return table


def put_off(jobs, rows):
  """The jobs of seeds that those of a batch were slow with, one an architecture: some take minutes each."""
  return [("slow", s, a) for j in jobs if j in rows for s in rows[j].get("slow", ()) for a in ARCHITECTURES]


def remaining(jobs, rows, kinds):
  """What is not done; what was put off when all else is."""
  left = ([j for j in some if j not in rows and j[0] in kinds] for some in (jobs, put_off(jobs, rows)))
  return next(filter(None, left), [])


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
  parser.add_argument("--seconds", type=float, default=1e9)
  parser.add_argument("--random", type=int, default=2000, metavar="SEEDS")
  parser.add_argument("--state", type=Path, default=ROOT / "build" / "every_gpu.jsonl")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "every_gpu.json")
  parser.add_argument("--backwards", action="store_true", help="the last job first: beside another run")
  parser.add_argument("--only", choices=SOURCES, help="jobs of one kind; the other's rows stay in the record")
  parser.add_argument(
    "--other-sources", action="store_true", help="rows made by other source stay, and are counted"
  )
  parser.add_argument("names", nargs="*", help="golden programs; default: all")
  options = parser.parse_args()
  deadline = time.monotonic() + options.seconds
  vars(emulated).update(WORK)  # which workers inherit
  options.state.parent.mkdir(parents=True, exist_ok=True)
  kept = options.state.read_text().splitlines() if options.state.exists() else []
  of_any = options.other_sources
  rows = {tuple(r["job"]): r for r in map(json.loads, kept) if of_any or r["source"] == made_by(r["job"][0])}
  jobs = [("golden", a, n) for n in options.names or NAMES for a in ARCHITECTURES]
  batches = [("random", s, SEEDS) for s in range(0, options.random, SEEDS)]
  every = max(1, len(jobs) // max(1, len(batches)))
  for i, batch in enumerate(batches):  # both kinds from the start: the time may end
    jobs.insert(i * (every + 1), batch)
  kinds = {None: ("golden", "random", "slow"), "random": ("random", "slow")}.get(options.only, ("golden",))
  with Pool(options.jobs) as pool, options.state.open("a") as file, suppress(Late):
    while todo := remaining(jobs, rows, kinds):
      todo = todo[::-1] if options.backwards else todo
      answers = pool.imap_unordered(answer, todo)  # at the end of the block what still runs is ended
      for _ in todo:
        row = answers.next(max(1.0, deadline - time.monotonic()))
        rows[tuple(row["job"])] = row
        file.write(json.dumps(row) + "\n")
        file.flush()
  jobs += put_off(jobs, rows)
  found = [rows[j] for j in jobs if j in rows]
  wrong = [w for r in found for w in wrong_of(r)]
  record = {
    **facts(("numpy", "scipy", "nvidia-cuda-nvrtc")), "jobs": len(jobs), "done": len(found),
    "slow_left": len({j[1] for j in jobs if j[0] == "slow" and j not in rows}),
    "by_source": Counter(r["source"][:12] for r in found), "source": made_by("golden")[:12],
    "architectures": summary(found), "wrong": wrong,
  }  # fmt: skip
  options.out.parent.mkdir(parents=True, exist_ok=True)
  options.out.write_text(json.dumps(record, indent=1) + "\n")
  print(json.dumps(record, indent=1))
  return int(bool(wrong))


if __name__ == "__main__":
  sys.exit(main())
