"""How the search's rankings of numbers with wgmma, and the one formula, order what was measured on an H100.

    python bench/rankings.py [RECORD.json ...]

Of every case of the records (bench/results/h100: wgmma_*.json, many_queries*.json) all numbers with wgmma
that were timed are ranked by the search's own formula (``superopt/warpgroup_numbers.py``,
``warpgroup_chains.py``) and by that of thread graphs (``cost/kernel_time.py``): how much longer the first
took than the fastest, and by what factor measured times are off (geometric mean, root mean square).
"""

import argparse
import json
import sys
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path

from warpgroup_attention import CASES as CHAINS
from warpgroup_products import CASES as PRODUCTS
from warpgroup_products import text

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.superopt import warpgroup_chains, warpgroup_numbers
from mirage_onnx.target import H100

FOLDER = Path(__file__).resolve().parent / "results" / "h100"
FORMULAS = ("own", "one")


@dataclass(frozen=True)
class Ranked:
  """A case: measured us and those of each formula, by numbers."""

  measured: dict[str, float]
  said: dict[str, dict[str, float]]

  def first(self, formula):
    """The numbers that a formula would take, and how much longer they took than the fastest."""
    best = min(self.measured, key=lambda p: (self.said[formula][p], p))
    return best, self.measured[best] / min(self.measured.values())


def ranked(name, record):
  """The times of a case's numbers with wgmma by every formula; None where none were measured."""
  chain = CHAINS.get(name)
  if chain is None:
    rows, depth, columns, kind, dtype = PRODUCTS[name]
    graph, sizes = parse_ugraph(text(kind, dtype)), {"a0": rows, "a1": depth, "a2": columns}
  else:
    graph, sizes = parse_ugraph(chain.text), chain.extents
  (kernel,), tensors = graph.kernels, {t.name: t for t in graph.tensors}
  measured = {p: us[0] for p, us in record["us"].items() if "wgmma" in p}
  said = {formula: {} for formula in FORMULAS}
  for p in measured:
    params = KernelParams.from_text(p)
    extents = ugraph_extents(graph, (params,), sizes)
    if chain is None:
      shape = warpgroup_numbers.Shape.of(kernel, tensors, extents)
      own = warpgroup_numbers._time_us(kernel, tensors, extents, shape, params, H100)
    else:
      rows = warpgroup_chains.rows_of(kernel, extents)
      own = warpgroup_chains._time_us(kernel, tensors, extents, rows, params, H100)
    said["own"][p] = own
    said["one"][p] = lowered_us(graph, kernel, extents, params, H100)
  return Ranked(measured, said) if measured else None


def summary(cases, formula):
  """(first over fastest, measured over said, and how far that is off), of several cases."""
  firsts = [log(c.first(formula)[1]) for c in cases]
  off = [log(us / c.said[formula][p]) for c in cases for p, us in c.measured.items()]
  return (
    exp(sum(firsts) / len(firsts)),
    exp(sum(off) / len(off)),
    exp(sqrt(sum(x * x for x in off) / len(off))),
  )


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("records", nargs="*", type=Path)
  every = (p for names in ("wgmma_*.json", "many_queries*.json") for p in sorted(FOLDER.glob(names)))
  paths = parser.parse_args().records or every
  for path in paths:
    cases = json.loads(path.read_text())["cases"]
    found = {n: r for n, c in cases.items() if (r := ranked(n, c))}
    print(f"{path.stem}: {len(found)} cases; first over fastest, measured over said, off")
    for formula in FORMULAS:
      print(f"  {formula:7}" + "".join(f"{x:7.3f}" for x in summary(found.values(), formula)))
    for name, case in found.items():
      own, one = map(case.first, FORMULAS)
      if own[0] != one[0]:
        print(f"    {name}")
        for formula, (params, longer) in zip(FORMULAS, (own, one), strict=True):
          print(f"      {formula} {longer:.3f} {params.removesuffix(' instruction=wgmma')}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
