"""Kernels of all kinds, each launched once under the four tools of compute-sanitizer.

    python3 bench/sanitize.py --out DIR [--seconds 400] [--tools memcheck racecheck] [--jobs 4]
    python3 bench/sanitize.py --prepare DIR         (no GPU: compile only, and say what is refused)

What ``sanitized_corpus.py`` names is compiled into DIR/kernels.pickle (as accepted kernels are: without
spills); a process per tool (racecheck has several) then launches one after the other, its answers in
DIR/TOOL_0.jsonl, so that a run which was stopped goes on where it was (an answer counts for the texts that
it was given for: another tree's are taken where its kernels are the same). A kernel's reports are found by
its function's name. Inputs are normal numbers; a program with integers (lengths, places, rows that a run
picks) is launched for each of ``WHOLE``, most of which no right run has. Outputs and workspace are poisoned
where the tool is not initcheck, which must see who reads what no one wrote. Writes DIR/sanitizer.json; exit 1
where something is reported.
"""

import argparse
import hashlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from protocol import facts, output_of, print_table, write_text

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.errors import MirageError, RejectionError
from mirage_onnx.ir import Candidate, DType, ugraph_extents
from mirage_onnx.target import H100

TOOLS = ("racecheck", "memcheck", "synccheck", "initcheck")
#: racecheck, which follows every access to shared memory, takes a hundred times as long as the others.
PROCESSES = {"racecheck": 4, "memcheck": 1, "synccheck": 1, "initcheck": 1}
#: Not reported: calls of the driver that ask for what an older one does not have.
OPTIONS = ("--report-api-errors", "no", "--print-limit", "2000")
#: A function of subject 12 in a report.
NAMED = re.compile(r"\bs(\d+)_k\d+")
#: Where a report begins: what belongs to it is indented.
BEGINS = re.compile(r"(?m)^(?==========\s(?! ))")
#: What integers are: of most programs that read some the first two are lengths, the others outside of all.
WHOLE = (0, 7, -1, 1 << 20, 1 << 30, -(1 << 31), (1 << 31) - 1)
#: Numbers that are drawn; inputs repeat them.
DRAWN = 1 << 18


def emitted(at, subject):
  """The kernels' texts, their functions named by the subject's place."""
  candidate = Candidate(subject.graph, subject.params)
  return emit_candidate(candidate, subject.extents, H100, f"s{at}", subject.runtime)


def work(subject):
  """How many elements its operations have: tools that watch shared memory take long for many."""
  extents = ugraph_extents(subject.graph, subject.params, subject.extents)
  return sum(prod(extents[a] for a in {*o.axes, *o.reduced}) for k in subject.graph.kernels for o in k.ops)


def prepared(folder, jobs, only=("",)):
  """(subject, sources, cubins) by place, and the refusals. ``only``: how names begin."""
  path = folder / "kernels.pickle"
  if path.exists():
    return pickle.loads(path.read_bytes())
  from sanitized_corpus import MOST_BYTES, subjects

  texts, refused = {}, {}
  for at, s in enumerate(subjects()):
    if not s.name.startswith(tuple(only)):
      continue
    extents = ugraph_extents(s.graph, s.params, s.extents)
    if sum(t.bytes(extents) for t in s.graph.tensors) > MOST_BYTES:
      refused[s.name] = "memory"
      continue
    try:
      texts[at] = s, emitted(at, s)
    except RejectionError as error:
      refused[s.name] = f"{error.rejection.code}: {error.rejection.reason}"
  images = iter(compile_many([x for _, sources in texts.values() for x in sources], H100, jobs))
  found = {}
  for at, (s, sources) in texts.items():
    own = [next(images) for _ in sources]
    bad = [i for i in own if not isinstance(i, Cubin)]
    if bad:
      refused[s.name] = f"{bad[0].code}: {bad[0].reason}"
    else:
      found[at] = s, sources, own
  folder.mkdir(parents=True, exist_ok=True)
  path.write_bytes(pickle.dumps((found, refused)))
  return found, refused


def is_whole(t):
  """Whether an input has integers that say where something is."""
  return t.role not in ("output", "temp") and t.dtype in (DType.I32, DType.I64)


def values(t, size, rng, whole):
  """An input of so many bytes, up to the next 16; ``whole``: what its integers are.

  memcheck takes a copy of 16 bytes for a read of 16, of which it is told to read fewer (``cp_async_16_zfill``
  at the end of a tensor). That nothing is read behind an end, to the byte, the emulator sees.
  """
  size = -(-size // 16) * 16
  if is_whole(t):
    return np.full(size // t.dtype.size_bytes, whole, t.dtype.numpy).view(np.uint8)
  if not t.dtype.is_float:
    return np.zeros(size, np.uint8)
  some = rng.standard_normal(DRAWN).astype(t.dtype.numpy)
  return np.resize(some.view(np.uint8), size)


def launched(gpu, subject, sources, cubins, poisoned):
  """One launch of each kernel, waited for; of those with integers one for each number."""
  whole = WHOLE if any(map(is_whole, subject.graph.tensors)) else (0,)
  for number in whole:
    _launched(gpu, subject, sources, cubins, poisoned, number)


def _launched(gpu, subject, sources, cubins, poisoned, whole):
  rng = np.random.default_rng(0)
  extents = ugraph_extents(subject.graph, subject.params, subject.extents)
  with gpu.scope():
    at = {a: subject.extents[a] for a in subject.runtime}
    for t in subject.graph.tensors:
      size = t.bytes(extents)
      if t.name in subject.shared:
        at[t.name] = at[subject.shared[t.name]]
      elif t.role in ("output", "temp"):
        at[t.name] = gpu.empty(size)
        if poisoned:
          gpu.poison(at[t.name], size)
      else:
        at[t.name] = gpu.put(values(t, size, rng, whole))
    for source, cubin in zip(sources, cubins, strict=True):
      gpu.launch_source(gpu.load(cubin, source.name, source.smem_bytes), source, at)
    gpu.wait()


def digest(sources):
  """Of the texts that an answer is about, but for their functions' names, which say a place in the corpus."""
  texts = "".join(NAMED.sub("kernel", s.text) + f"{s.grid}{s.block}{s.cluster}" for s in sources)
  return hashlib.sha256(texts.encode()).hexdigest()[:16]


def launch_all(folder, tool, todo):
  """In a process that a tool watches: a line for each that has run."""
  from mirage_onnx.tune.device import Gpu

  found, _ = prepared(folder, 1)
  gpu = Gpu(H100)
  for at in todo:
    print(f"@{at}", flush=True)  # a tool may end the process
    try:
      launched(gpu, *found[at], tool != "initcheck")
    except MirageError as error:
      print(f"@{at} failed: {error}", flush=True)
      return 3  # the context is lost
    print(f"@{at} ran", flush=True)
  return 0


def watched(folder, tool, part, found, deadline):
  """Rows of a tool, those of an earlier run included; the least work first."""
  path = folder / f"{tool}_{part}.jsonl"
  known = {}
  for p in sorted(folder.glob(f"{tool}_*.jsonl")):
    known |= {r["text"]: r for r in map(json.loads, p.read_text().splitlines())}
  order = sorted(found, key=lambda at: work(found[at][0]))[part :: PROCESSES[tool]]
  found = {at: found[at] for at in order}
  texts = {at: digest(sources) for at, (_, sources, _) in found.items()}
  rows = {at: known[t] | {"at": at, "name": found[at][0].name} for at, t in texts.items() if t in known}
  while (todo := [at for at in found if at not in rows]) and time.monotonic() < deadline:
    command = ["compute-sanitizer", "--tool", tool, *OPTIONS, sys.executable, __file__]
    command += ["--out", str(folder), "--launch", tool, "--places", ",".join(map(str, todo))]
    log = folder / f"{tool}_{part}.txt"
    with log.open("w") as file:
      child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
      ended = True
      try:
        child.wait(timeout=max(1.0, deadline - time.monotonic()))
      except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # the tool, and what it watches
        child.wait()
        ended = False
    new = rows_of(log.read_text(errors="replace"), found, todo, ended)
    if not new:
      break
    new = {at: r | {"text": texts[at]} for at, r in new.items()}
    rows |= new
    with path.open("a") as file:
      file.writelines(json.dumps(r) + "\n" for r in new.values())
  return rows


def rows_of(text, found, todo, ended):
  """A row for each that has run, its reports by function.

  ``ended``: by itself, so the process had its chance with what was begun last.
  """
  ran = {int(n) for n in re.findall(r"^@(\d+) ran$", text, re.M)}
  failed = {int(n): why for n, why in re.findall(r"^@(\d+) failed: (.*)$", text, re.M)}
  begun = {int(n) for n in re.findall(r"^@(\d+)$", text, re.M)} if ended else set()
  reports = {}
  for block in BEGINS.split(text):
    names = NAMED.findall(block)
    if block.startswith("=========") and names:
      reports.setdefault(int(names[0]), []).append(" ".join(block.replace("=========", "").split())[:400])
  rows = {}
  for at in todo:
    if at in ran | begun | failed.keys():
      own = reports.get(at, [])
      rows[at] = {"at": at, "name": found[at][0].name, "kernels": len(found[at][1]), "reports": len(own),
                  "first": own[:2], "failed": failed.get(at, "" if at in ran else "did not end")}  # fmt: skip
  return rows


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--out", type=Path, default=Path("out/sanitizer"))
  parser.add_argument("--seconds", type=float, default=400.0)
  parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
  parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
  parser.add_argument("--only", nargs="+", default=[""], help="programs whose names begin so")
  parser.add_argument("--prepare", action="store_true", help="compile only")
  parser.add_argument("--launch", choices=TOOLS, help=argparse.SUPPRESS)
  parser.add_argument("--places", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.launch:
    return launch_all(options.out, options.launch, [int(p) for p in options.places.split(",")])
  deadline = time.monotonic() + options.seconds
  found, refused = prepared(options.out, options.jobs, options.only)
  print(f"{len(found)} programs, {sum(len(s) for _, s, _ in found.values())} kernels; refused: {refused}")
  if options.prepare:
    return 0
  arms = [(tool, part) for tool in options.tools for part in range(PROCESSES[tool])]
  every = {tool: {} for tool in options.tools}
  with ThreadPoolExecutor(len(arms)) as pool:
    parts = pool.map(lambda arm: watched(options.out, *arm, found, deadline), arms)
    for (tool, _), rows in zip(arms, parts, strict=True):
      every[tool] |= rows
  groups = Counter(s.name.split("/")[0] for s, _, _ in found.values())
  version = output_of("compute-sanitizer", "--version").splitlines()[-1:]
  record = facts() | {"sanitizer": version, "programs": dict(groups), "refused": refused, "tools": {}}
  rows = []
  for tool, own in every.items():
    bad = [r for r in own.values() if r["reports"] or r["failed"]]
    kernels = sum(r["kernels"] for r in own.values())
    left = [s.name for at, (s, _, _) in found.items() if at not in own]
    record["tools"][tool] = {"programs": len(own), "kernels": kernels, "reported": bad, "left": left}
    rows.append([tool, str(len(own)), str(kernels), str(len(bad))])
  write_text(options.out / "sanitizer.json", json.dumps(record, indent=1) + "\n")
  print_table("compute-sanitizer", ("tool", "programs", "kernels", "with reports"), rows)
  return int(any(r[-1] != "0" for r in rows))


if __name__ == "__main__":
  sys.exit(main())
