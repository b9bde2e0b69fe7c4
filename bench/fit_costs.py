"""Fits the weights of ``cost/kernel_time.py`` to what kernels took on a GPU; says how far they are off.

    python3 bench/fit_costs.py [--fit] [--worst 12] [--l2 TBPS] bench/results/h100/kernel_times*.json

Of the records only times and numbers are read: the counts are those of the present tree; of a kernel in two
records the first counts. Printed is measured over predicted, per kind of plan and for golden programs and
speed rows: the geometric mean, and the factor within which 95 % are. ``--fit``: with the weights that are
best for these kernels and for the order of the numbers of ``bench/rankings.py`` within a case (least squares
of the logarithms, half of the kernels left out of the fit are shown, too), else with those of the tree.
``--l2``: as if the GPU's row had another rate of L2.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from kernel_times import every_kernel, hides_steps, name_of
from protocol import print_table
from rankings import graph_of, measured, records, timed

from mirage_onnx.cost.counts import BlockCounts, counts_of
from mirage_onnx.cost.kernel_time import CostWeights, share_of, time_us
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.lower.lanes import streamed_of_values
from mirage_onnx.lower.tensor_view import touched_bytes
from mirage_onnx.superopt.expected_time import CLUSTER
from mirage_onnx.target import get_target

#: Other numbers of a kernel that a record may have.
MOST_POINTS = 8
#: What weights are taken to be before anything was timed; how strongly they stay there; and the (logarithm of
#: the) factor beyond which a kernel counts less.
PRIOR = CostWeights(
  start=1.0, lane=1.5, special=6.0, request=8.0, shared_request=4.0, mma=12.0, dependent=2.0, trip_us=0.5,
  barrier_us=0.03, cluster_us=0.8, iteration_us=0.1, block_us=0.0012, warp_us=5e-6, memory=0.9, l2=0.5,
  shared=1.0, registers=40.0, overlap=1.6, product=1.0, partial=4.0, fold_us=0.08,
  remote=4.0,
)  # fmt: skip
HOLD, SOFT = 0.6, 0.2
#: Kernels that are no golden program or speed row count so much.
OTHERS = 0.6


def contracts_activations(graph, kernel):
  """Whether neither operand of a contraction is more of a weight than the other."""
  streamed = streamed_of_values(kernel, {t.name: t for t in graph.tensors})
  products = (op.args for op in kernel.ops if op.op == "matmul")
  return any(streamed[a] == streamed[b] for a, b in products)


def counted(target, work):
  """(name, kind of its plan, counts, bytes from memory, share of the tensor cores), or None."""
  entry, at, point, text = work
  graph, target = parse_ugraph(entry.graph), get_target(target)
  numbers = [KernelParams.from_text(p) for p in entry.params]
  numbers[at] = KernelParams.from_text(text)
  extents = ugraph_extents(graph, numbers, entry.extents)
  try:
    threads = lowered(graph, graph.kernels[at], numbers[at], extents, target)
  except RejectionError:
    return None
  if hides_steps(threads):
    return None
  moved = touched_bytes(graph, graph.kernels[at], extents)
  kind = type(threads.plan).__name__
  if kind == "TiledPlan" and contracts_activations(graph, graph.kernels[at]):
    kind += " of two activations" + (" in clusters of 8" if numbers[at].cluster >= CLUSTER else "")
  return name_of(entry, at, point), kind, counts_of(threads), moved, share_of(numbers[at])


def ordered(target):
  """The rows of ``counted`` and us by names (record, case, numbers) of what ``rankings.py`` ranks."""
  rows, times = [], {}
  for record in records():
    for case, numbers, us in timed(record):
      graph, sizes = graph_of(case)
      params = KernelParams.from_text(numbers)
      extents = ugraph_extents(graph, (params,), sizes)
      kernel, name = graph.kernels[0], f"{record.stem}/{case}/{numbers}"
      threads = lowered(graph, kernel, params, extents, target)
      rows.append((name, "", counts_of(threads), touched_bytes(graph, kernel, extents), share_of(params)))
      times[name] = ("", us)
  return Sample(rows, times)


def same(row, known):
  """Whether a kernel is the one that was timed: the corpus may have another of its name by now."""
  _, _, counts, moved, _ = row
  return (moved, counts.blocks) == known[2:]


class Sample:
  """Arrays of what is known of kernels."""

  def __init__(self, rows, times):
    self.names, self.kinds, counts, moved, share = (list(x) for x in zip(*rows, strict=True))
    arrays = {f.name: np.array([float(getattr(c, f.name)) for c in counts]) for f in fields(BlockCounts)}
    self.counts, self.moved, self.share = BlockCounts(**arrays), np.array(moved, float), np.array(share)
    self.us = np.array([times[n][1] for n in self.names])
    self.group = np.array([n.split("/")[0] for n in self.names])
    base = np.array([".p" not in n.rsplit("/", 1)[1].rsplit(".k", 1)[-1] for n in self.names])
    self.judged = np.isin(self.group, ("goldens", "programs", "speed")) & base
    cases = [n.rpartition("/")[0] for n in self.names]
    self.case = np.unique(cases, return_inverse=True)[1]

  def ratios(self, target, weights):
    """Logarithms of measured over predicted."""
    return np.log(self.us / time_us(self.counts, self.moved, self.share, target, weights))

  def within(self, target, weights):
    """The same, over the mean of the case that a kernel is of."""
    ratios = self.ratios(target, weights)
    return ratios - (np.bincount(self.case, ratios) / np.bincount(self.case))[self.case]


def fitted(sample, target, some, order=None):
  """The weights that are best for ``some`` kernels of a sample and for ``order`` within cases of another."""
  names = [f.name for f in fields(CostWeights)]
  first = np.log([getattr(PRIOR, n) for n in names])

  def off(logs):
    weights = CostWeights(**dict(zip(names, np.exp(logs), strict=True)))
    ratios = sample.ratios(target, weights) * np.where(sample.judged, 1.0, OTHERS)
    within = [order.within(target, weights)] if order else []
    return np.concatenate([ratios[some], *within, HOLD * (logs - first)])

  best = least_squares(off, first, loss="soft_l1", f_scale=SOFT)
  return CostWeights(**{n: float(f"{x:.3g}") for n, x in zip(names, np.exp(best.x), strict=True)})


def table(sample, ratios):
  """Of every kind and of golden programs and speed rows: count, geometric mean, factor of 95 %."""
  parts = [("golden programs and speed rows", sample.judged), ("all", sample.judged | True)]
  parts += [(kind, np.array(sample.kinds) == kind) for kind in sorted(set(sample.kinds))]
  for name, some in parts:
    if some.any():
      spread = np.quantile(np.abs(ratios[some]), 0.95)
      mean = np.exp(ratios[some].mean())
      yield name, str(int(some.sum())), f"{mean:.3f}", f"{np.exp(spread):.2f}"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("records", nargs="+", type=Path)
  parser.add_argument("--target", default="h100")
  parser.add_argument("--fit", action="store_true")
  parser.add_argument("--l2", type=float, default=0.0, metavar="TBPS")
  parser.add_argument("--worst", type=int, default=0)
  options = parser.parse_args()
  times, target = measured(options.records), get_target(options.target)
  target = replace(target, l2_tbps=options.l2 or target.l2_tbps)
  groups = ("goldens", "programs", "speed", "models", "hopper")
  work = [(*w, times[n][0]) for w in every_kernel(groups, MOST_POINTS) if (n := name_of(*w)) in times]
  with ProcessPoolExecutor(os.cpu_count()) as pool:
    rows = [r for r in pool.map(partial(counted, options.target), work, chunksize=8) if r]
  rows = [r for r in rows if same(r, times[r[0]])]
  sample, weights = Sample(rows, times), CostWeights()
  head = ("kernels", "count", "measured / predicted", "95 % within")
  if options.fit:
    some, order = np.random.default_rng(0).random(len(rows)) < 0.5, ordered(target)
    left_out = sample.ratios(target, fitted(sample, target, some, order))[~some]
    spread = np.exp(np.quantile(np.abs(left_out), 0.95))
    print(f"fitted to half, the others: {np.exp(left_out.mean()):.3f}, 95 % within {spread:.2f}")
    weights = fitted(sample, target, np.ones(len(rows), bool), order)
    print(*(f"  {n}: float = {x}" for n, x in asdict(weights).items()), sep="\n")
  ratios = sample.ratios(target, weights)
  print_table(f"Kernels on {options.target}", head, list(table(sample, ratios)))
  for i in np.argsort(-np.abs(ratios))[: options.worst]:
    print(
      f"{sample.names[i]} {times[sample.names[i]][0]}: {sample.us[i]:.2f} us, off {np.exp(ratios[i]):.2f}"
    )


if __name__ == "__main__":
  main()
