"""Where the seconds of one ``optimize`` go: what each thread and search worker did, from when to when.

    python3 bench/spans.py MODEL.onnx|NAME --out DIR [--target local] [--budget 300] [--workers N] [--fake]

NAMEs are those of ``bench/whole.py``'s zip. DIR/spans.jsonl gets a line a span (``at``, ``to``: seconds
from the start; ``cpu``: of its thread, without spans inside; ``thread``, ``what``, ``of``), DIR/spans.txt
sums of each kind (``covered``: seconds in which one or more were under way), the stages, the CPU seconds of
this process and of its children, and how many cores were busy, every five seconds. A span costs some
microseconds.
``--fake``: no GPU, times are made up (``tests/support/fake_gpu.py``): for what happens on the CPU.
"""

import argparse
import json
import os
import resource
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]
#: (module, name in it, what it is called): functions, and methods with a dot.
WATCHED = (
  ("api", "asked_targets", "target"),
  ("api", "load_model", "load"),
  ("api", "checks_ahead", "checks ahead"),
  ("api", "warn_of_gpus", "other gpus"),
  ("tune.rating", "Rating.with_rates", "rates"),
  ("tune.kept_tuning", "KeptTuning.outcome", "known before"),
  ("tune.kept_bench", "kept_times", "kept times"),
  ("tune.node_times", "distinct_nodes", "distinct nodes"),
  ("tune.arriving", "Hands._work", "region"),
  ("tune.tuning", "measure_region", "measure"),
  ("tune.kept_bench", "KeptBench.complaints", "checks"),
  ("tune.kept_bench", "KeptBench._made_ready", "wait for draws"),
  ("tune.measure", "GpuBench.complaints", "checks on the gpu"),
  ("tune.measure", "GpuBench.times_us", "times on the gpu"),
  ("tune.measure", "GpuBench.__exit__", "close"),
  ("tune.measure", "ort_replay", "session of a region"),
  ("tune.measure", "prepare", "arm"),
  ("tune.measure", "draws_of", "draws"),
  ("tune.realise", "draws_of", "draws"),
  ("tune.ahead", "first_kernels", "first kernels"),
  ("tune.ahead", "Ahead._compile_more", "kernels ahead"),
  ("tune.ahead", "Ahead.take", "wait for kernels"),
  ("tune.tuning", "compile_candidates", "compile"),
  ("tune.exploring", "planned", "plan"),
  ("tune.predicted_first", "PredictedFirst.__call__", "predicted first"),
  ("tune.realise", "choose", "choose"),
  ("tune.realise", "with_siblings", "siblings"),
  ("tune.instances", "InstanceChecks.verdicts", "instances"),
  ("tune.instances", "InstanceChecks.refused", "instances at the end"),
  ("judging", "Judge.__call__", "judge"),
  ("judging", "with_right_terms", "terms"),
  ("judging", "unlike", "unlike"),
  ("pipeline", "_refused", "refuse"),
  ("pipeline", "find_candidates", "candidates"),
  ("pipeline", "with_these", "rewrite again"),
  ("writing", "check_written", "stock check"),
  ("writing", "save_model", "save"),
  ("racing", "Gate.losers", "gate"),
  ("racing", "Gate._asked", "race"),
)


class Spans:
  """What was done, by any thread."""

  def __init__(self, out):
    self.start, self.rows, self.file = time.monotonic(), [], out.open("w")
    self.lock, self.inside = threading.Lock(), threading.local()

  def add(self, at, what, of="", thread="", cpu=0.0):
    row = {
      "at": round(at - self.start, 3), "to": round(time.monotonic() - self.start, 3), "cpu": round(cpu, 4),
      "thread": thread or threading.current_thread().name, "what": what, "of": str(of)[:80],
    }  # fmt: skip
    with self.lock:
      self.rows.append(row)
      self.file.write(json.dumps(row) + "\n")
      self.file.flush()

  @contextmanager
  def span(self, what, of=""):
    at, cpu = time.monotonic(), time.thread_time()
    outer, self.inside.cpu = getattr(self.inside, "cpu", 0.0), 0.0
    try:
      yield
    finally:
      took = time.thread_time() - cpu
      self.add(at, what, of, cpu=took - self.inside.cpu)
      self.inside.cpu = outer + took

  def watch(self, module, name, what):
    """Every call of a function is a span."""
    owner = import_module(f"mirage_onnx.{module}")
    *inside, name = name.split(".")
    for part in inside:
      owner = getattr(owner, part)
    function = getattr(owner, name)

    @wraps(function)
    def watched(*arguments, **more):
      with self.span(what, _told(arguments)):
        return function(*arguments, **more)

    setattr(owner, name, watched)

  def watch_children(self):
    """What a child process says that it is at, until it says something else, is a span."""
    from mirage_onnx.custom_op import child

    spans = self

    class Told(child.WorkerProcess):
      """Notes what it hears."""

      since = None

      def receive(self):
        found = super().receive()
        if self.since:
          spans.add(self.since[0], "child", self.since[1])
          self.since = None
        if found[0] == "at":
          self.since = time.monotonic(), found[1][0]
        return found

    child.WorkerProcess = Told

  def emit(self, event):
    """Stages, and what the search workers do."""
    name, now = type(event).__name__, time.monotonic()
    if name == "StageEnded":
      self.add(now - event.seconds, "stage", f"{event.stage}: {event.detail}", "stages")
    elif name == "WorkStarted":
      self.__dict__.setdefault("open", {})[event.kind, event.worker] = now
    elif name == "WorkEnded":
      at = self.open.pop((event.kind, event.worker))
      self.add(at, event.kind, event.region, f"{event.kind} {event.worker}")


def _told(arguments):
  """What says most of the arguments of a call, in few words: all that they hold would take 0.6 s."""
  for x in arguments:
    x = getattr(x, "region", x)
    if hasattr(x, "nodes"):
      return f"{len(x.nodes)} {x.nodes[0]} to {x.nodes[-1]}"
  pairs = [x for x in arguments if isinstance(x, tuple)]
  if not pairs:
    return ""
  last = pairs[-1]
  return last if all(isinstance(x, (int, str)) for x in last) else f"{len(last)} of {type(last[0]).__name__}"


def cores(spans, folder, ended):
  """The cores that were busy, of those that this process may use, every five seconds."""
  mine = {f"cpu{n}" for n in os.sched_getaffinity(0)}

  def busy():
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    return sum(sum(map(int, r[1:4])) + int(r[6]) + int(r[7]) for r in rows if r[0] in mine)

  before = busy()
  with (folder / "cores.txt").open("w") as file:
    while not ended.wait(5):
      now = busy()
      seconds, used = time.monotonic() - spans.start, (now - before) / os.sysconf("SC_CLK_TCK") / 5
      print(f"{seconds:6.1f} s {used:5.2f} of {len(mine)}", file=file, flush=True)
      before = now


def covered(rows):
  """Seconds in which at least one of the spans was under way."""
  total = end = 0.0
  for r in sorted(rows, key=lambda r: r["at"]):
    total += max(0.0, r["to"] - max(end, r["at"]))
    end = max(end, r["to"])
  return total


def summary(rows):
  """The stages, and by kind of span how many, their seconds, and when the first began and the last ended."""
  for r in rows:
    if r["what"] == "stage":
      yield f"{r['at']:7.1f} to {r['to']:7.1f}  {r['of']}"
  columns = ("count", "cpu", "seconds", "covered", "longest")
  yield f"{'':24} " + " ".join(f"{c:>8}" for c in columns) + f" {'from':>7} {'to':>7}"
  for what in sorted({r["what"] for r in rows} - {"stage"}):
    some = [r for r in rows if r["what"] == what]
    took = [r["to"] - r["at"] for r in some]
    yield (
      f"{what:24} {len(some):8} {sum(r['cpu'] for r in some):8.1f} "
      f"{sum(took):8.1f} {covered(some):8.1f} {max(took):8.1f} "
      f"{min(r['at'] for r in some):7.1f} {max(r['to'] for r in some):7.1f}"
    )


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("model")
  add("--target", default="local")
  add("--budget", type=float, default=300.0)
  add("--workers", type=int)
  add("--out", type=Path, default=Path("out"))
  add("--output", type=Path, help="of the optimized model (default DIR/optimized.onnx)")
  add("--work", type=Path, default=Path("/tmp/whole"))
  add("--graphs", default=str(ROOT / ".dev" / "whole" / "graphs.zip"))
  add("--fake", action="store_true")
  o = parser.parse_args()
  o.out.mkdir(parents=True, exist_ok=True)
  from whole_model import make

  source = Path(o.model) if o.model.endswith(".onnx") else make(o.graphs, o.model, o.work / o.model)
  output = o.output or o.out / "optimized.onnx"
  import mirage_onnx

  if o.fake:
    faked()
  else:  # loads the libraries that onnxruntime needs; where its import does, it is no second of optimize's
    with suppress(ImportError):
      import torch  # noqa: F401
  with watched_run(o.out) as spans:
    report = mirage_onnx.optimize(
      source, output, target=o.target, budget_s=o.budget, workers=o.workers, emit=spans.emit
    ).report
  lines = [f"{o.model} {o.target}: {report['seconds']} s, measured {report['measured']}"]
  lines += summary(spans.rows)
  own, children = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
  lines.append(
    f"CPU seconds: {own.ru_utime + own.ru_stime:.1f} here, "
    f"{children.ru_utime + children.ru_stime:.1f} in children that have ended"
  )
  for r in report["regions"]:
    if r["status"] == "replaced":
      nodes = f"{len(r['ops'])} {r['ops'][0]} to {r['ops'][-1]}"
      lines.append(f"{r['count']:4} {r['baseline_us']} -> {r['measured_us']} us, {nodes}")
  (o.out / "spans.txt").write_text("\n".join(lines) + "\n" + (o.out / "cores.txt").read_text())
  print("\n".join(lines), flush=True)


@contextmanager
def watched_run(folder):
  """Inside, what a run does is written into ``folder``; yields what takes its events, too."""
  folder.mkdir(parents=True, exist_ok=True)
  spans, ended = Spans(folder / "spans.jsonl"), threading.Event()
  for row in WATCHED:
    spans.watch(*row)
  spans.watch_children()
  clock = threading.Thread(target=cores, args=(spans, folder, ended), daemon=True)
  clock.start()
  try:
    yield spans
  finally:
    ended.set()
    clock.join()


def faked():
  """No GPU: the fake one, and a gate for which all results are faster."""
  import pytest
  from fake_gpu import FakeGpu

  from mirage_onnx import asked_targets, kept_runs, racing
  from mirage_onnx.custom_op.race import Raced, Times
  from mirage_onnx.target import get_target
  from mirage_onnx.tune import kept_bench, kept_ends, kept_tuning
  from mirage_onnx.tune.machine import Machine
  from mirage_onnx.tune.paired import speedup

  FakeGpu(pytest.MonkeyPatch())
  for module in (kept_bench, kept_ends, kept_tuning, kept_runs):  # so that a repeat finds what was timed
    module.present_machine = lambda: Machine("a fake", "0", "0", "0")
  asked_targets.asked_target = lambda name: (get_target("h200"), True)

  def timer(race):
    ratio = 0.9 if any(a.bodies for a in race.arms) else 1.1  # what is left out was worth its place
    rows = (Raced("", "run", (2.0,) * len(race.arms), (speedup((ratio,) * 4, 0.01),) * len(race.pairs)),)
    return Times(rows, (1,) * len(race.arms))

  class Gate(racing.Gate):
    """Whose times are made up."""

    def __init__(self, *a, **more):
      super().__init__(*a, **{**more, "timer": timer})

  racing.Gate = Gate


if __name__ == "__main__":
  main()
