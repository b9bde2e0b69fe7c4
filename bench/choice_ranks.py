"""How predictions order choices that a GPU has timed, by the lines of ``never_slower.py --choices``.

    python bench/choice_ranks.py CHOICES.jsonl ... [--out bench/results/GPU/choice_ranks.json]

The choices of a region are ONNX Runtime's kernels (predicted by the table of nodes, measured beside ours) and
every candidate that was timed (predicted by the search). All ranks are Spearman's.

``choices``: predicted against measured times of all choices of all regions. ``gains``: of the candidate that
is predicted to be the fastest of its region, the microseconds that it saves; ``signs``: how often both say
the same of whether it saves any. ``within``: the mean over regions of the rank of their own choices,
``candidates`` of those without ONNX Runtime's: what is timed are those that were predicted alike.
``first_over_fastest``: what was predicted to be the fastest against what was, the geometric mean. ``again``:
what measuring again makes of the order of the finalists of a race (``FEWEST`` at least), beside what
predictions make of it.
"""

import argparse
import json
from itertools import chain
from math import exp, log
from pathlib import Path
from statistics import mean, median

#: Candidates of a region that have an order.
FEWEST = 4


def rank(pairs):
  """Spearman's correlation of pairs; None of fewer than three, or where one side is all the same."""
  from scipy.stats import spearmanr

  first, second = zip(*pairs, strict=True) if pairs else ((), ())
  if len(pairs) < 3 or len({*first}) == 1 or len({*second}) == 1:
    return None
  return float(spearmanr(first, second)[0])


def mean_of(ranks):
  kept = [r for r in ranks if r is not None]
  return (
    {"regions": len(kept), "mean": round(mean(kept), 3), "median": round(median(kept), 3)} if kept else {}
  )


def judged(regions):
  """The figures of regions, each with ``timed``."""
  regions = [{**r, "timed": [t for t in r["timed"] if t[1] > 0]} for r in regions]
  regions = [r for r in regions if r["timed"] and r["ort_us"] > 0]
  ort = [(r["baseline_us"], r["ort_us"]) for r in regions]
  own = [[(t[0], t[1]) for t in r["timed"]] for r in regions]
  firsts = [min(some) for some in own]
  gains = [(o[0] - f[0], o[1] - f[1]) for o, f in zip(ort, firsts, strict=True)]
  looked_again = [[t for t in r["timed"] if len(t) > 4] for r in regions]
  looked_again = [some for some in looked_again if len(some) >= FEWEST]
  return {
    "regions": len(regions),
    "choices": {"count": sum(map(len, own)) + len(ort), "rank": _round(rank([*ort, *chain(*own)]))},
    "gains": {
      "rank": _round(rank(gains)),
      "signs": _round(mean((a > 0) == (b > 0) for a, b in gains)) if gains else None,
    },
    "within": mean_of(rank([o, *some]) for o, some in zip(ort, own, strict=True)),
    "candidates": mean_of(rank(some) for some in own),
    "first_over_fastest": _round(
      exp(mean(log(f[1] / min(us for _, us in some)) for f, some in zip(firsts, own, strict=True)))
      if own else None
    ),
    "again": {
      "measured": mean_of(rank([(t[1], t[4]) for t in some]) for some in looked_again),
      "predicted": mean_of(rank([(t[0], t[4]) for t in some]) for some in looked_again),
    },
  }  # fmt: skip


def _round(x):
  return None if x is None else round(x, 3)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("paths", type=Path, nargs="+")
  parser.add_argument("--out", type=Path)
  parser.add_argument("--gpu", default="", help="for the record: card, driver, commit of the lines")
  o = parser.parse_args()
  found = judged([json.loads(line) for path in o.paths for line in path.read_text().splitlines()])
  for name, value in found.items():
    print(name, value)
  if o.out:
    o.out.write_text(json.dumps({"gpu": o.gpu, **found}, indent=1) + "\n")


if __name__ == "__main__":
  main()
