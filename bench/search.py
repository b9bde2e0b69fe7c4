"""Times and states of the search against its bound, and with each of its prunings off in turn.

    python bench/search.py [--programs NAME ...] [--without NAME ...] [--all] [--bounds 3-9]
                           [--cut 300] [--total 3600] [--jobs 1] [--workers 1] [--resume]
                           [--out search.json]
    python bench/search.py --show [--out search.json]

Searches the programs of tests/support/search_programs.py in the space of all block graphs, each at
every bound in a process of its own, and those of ``--without`` (--all: all of ``--programs``) with
each pruning off as well. A search that takes longer than ``--cut`` seconds is recorded as CUT, and
larger bounds are not run; ``--total`` seconds after the start all are, recorded as ENDED. Writes OUT
after every program; ``--resume`` runs what OUT lacks of this setting and search, or had no time
for; what took longest in OUT begins first. ``--show`` prints it as a table. Exit 1
if a process of a search failed.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from math import inf
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "support")]

from facts import facts
from search_programs import PROGRAMS
from search_table.curve import COLUMNS, ENDED, Curve, measure
from search_table.point import Point, run
from search_table.prunings import PRUNINGS
from search_table.text import table

from mirage_onnx.superopt.result import default_bound
from mirage_onnx.superopt.search_setting import generator_digest
from mirage_onnx.superopt.space import ALL

#: What the prunings are measured on: a loop, two contractions in one, a low rank, running maxima,
#: and programs with many factors to group.
WITHOUT = (
  "rmsnorm_linear", "gated_mlp_silu", "lora", "attention", "layernorm_linear",
  "lora_two_adapters",
)  # fmt: skip


def bounds_from(text):
  """``3-9`` or ``8``."""
  first, _, last = text.partition("-")
  found = tuple(range(int(first), int(last or first) + 1))
  if not found:
    raise ValueError(text)
  return found


def record(arguments, curves):
  """What is written."""
  reasons = sorted({r for c in curves if not c.off for r in c.last[1].pruned or ()})
  return {
    **facts(("numpy", "onnx")),
    "cut_s": arguments.cut,
    "jobs": arguments.jobs,
    "workers": arguments.workers,
    "bounds": list(arguments.bounds),
    "generator": generator_digest(),
    "default_bound": asdict(default_bound(ALL)),
    "columns": list(COLUMNS),
    "reasons": reasons,
    "curves": [c.to_json(reasons) for c in curves],
  }


def write(path, written):
  """One line per field and per curve."""
  curves = ",\n".join(f"  {_json(c)}" for c in written["curves"])
  fields = [f" {_json(k)}: {_json(v)}" for k, v in written.items() if k != "curves"]
  body = ",\n".join([*fields, f' "curves": [\n{curves}\n ]'])
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(f"{{\n{body}\n}}\n")


def shown(path):
  """The record as text."""
  found = json.loads(path.read_text())
  curves = [Curve.from_json(c, found["reasons"]) for c in found["curves"]]
  return table(found, curves, found["bounds"])


def known(arguments):
  """The curves of OUT by program and pruning, and whether a new run would find the same."""
  try:
    found = json.loads(arguments.out.read_text())
  except (OSError, ValueError):
    return {}, False
  curves = [Curve.from_json(c, found["reasons"]) for c in found["curves"]]
  own = arguments.cut, list(arguments.bounds), arguments.workers, generator_digest()
  names = ("cut_s", "bounds", "workers", "generator")
  same = own == tuple(map(found.get, names))
  return {(c.program, c.off): c for c in curves}, same


def _json(value):
  return json.dumps(value, separators=(",", ":"))


def parse():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), metavar="NAME")
  parser.add_argument("--without", nargs="*", metavar="NAME", help=f"default: {WITHOUT}")
  parser.add_argument("--all", action="store_true", help="--without all programs")
  parser.add_argument("--bounds", type=bounds_from, default=(3, 4, 5, 6, 7, 8, 9))
  parser.add_argument("--cut", type=float, default=300.0, metavar="SECONDS")
  parser.add_argument("--total", type=float, default=inf, metavar="SECONDS", help="of the whole run")
  parser.add_argument("--jobs", type=int, default=1, help="searches at once")
  parser.add_argument("--workers", type=int, default=1, help="processes of each search")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "search.json")
  parser.add_argument("--resume", action="store_true", help="run what OUT lacks")
  parser.add_argument("--show", action="store_true", help="print OUT, run nothing")
  parser.add_argument("--one", type=Point.from_text, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.all:
    arguments.without = arguments.programs
  elif arguments.without is None:
    arguments.without = [p for p in WITHOUT if p in arguments.programs]
  if unknown := sorted({*arguments.programs, *arguments.without} - set(PROGRAMS)):
    parser.error(f"no program is called {', '.join(unknown)}")
  return arguments


def main():
  start, arguments = time.monotonic(), parse()
  if arguments.one is not None:
    print(json.dumps(asdict(run(arguments.one))))
    return 0
  if arguments.show:
    print(shown(arguments.out), end="")
    return 0
  wanted = [(p, "") for p in dict.fromkeys([*arguments.programs, *arguments.without])]
  wanted += [(p, off) for p in dict.fromkeys(arguments.without) for off in PRUNINGS]
  before, same = known(arguments)
  kept = {w: c for w, c in before.items() if arguments.resume and same and c.last[1].stop != ENDED}
  done = {w: kept[w] for w in wanted if w in kept}
  seconds = {w: sum(o.seconds for _, o in c.outcomes) for w, c in before.items()}
  left = sorted(set(wanted) - set(done), key=lambda w: (-seconds.get(w, arguments.cut), w))
  with ThreadPoolExecutor(arguments.jobs) as pool:
    limits = arguments.bounds, arguments.cut, arguments.workers, start + arguments.total
    running = [pool.submit(measure, *w, *limits) for w in left]
    for future in as_completed(running):
      curve = future.result()
      done[curve.program, curve.off] = curve
      last, outcome = curve.last
      print(
        f"{curve.program} {f'without {curve.off} ' if curve.off else ''}up to {last}: "
        f"{outcome.stop}, {outcome.states} states, {outcome.cpu_s} s, "
        f"{outcome.best_us} us after {outcome.best_s} s",
        flush=True,
      )
      curves = [done[w] for w in wanted if w in done]
      write(arguments.out, record(arguments, curves))
  outcomes = [o for c in done.values() for _, o in c.outcomes]
  return int(any(o.stop.startswith("EXIT") for o in outcomes))


if __name__ == "__main__":
  sys.exit(main())
