"""Each kernel of the replay's corpus on the present GPU: its time, what was predicted, what its threads do.

    python3 bench/kernel_times.py [--out DIR] [--seconds 400] [--points 2] [GROUP ...]

A cost model is fitted to such a record, and judged by it: measured over predicted, per kind of thread
graph. Beside the times stand the counts of the thread graph (``cost/counts.py``). ``--points``: each kernel
also with so many other numbers, further and further from what the model likes. Kernels are emitted and
compiled for the present GPU on all cores, and timed in a CUDA graph of many of them in a row, each with its
own tensors behind a flush of the L2, on data that repeats; right or wrong is not asked here. Writes
DIR/kernel_times.json; what is in one is not timed again (exit 2: a kernel has ended the run, the next goes on
without it).
"""

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from protocol import PROTOCOL, facts, print_table, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from replay_record import FOLDER, read_group

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler import compile_cubin
from mirage_onnx.cost.counts import BlockCounts, counts_of
from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.cost.model import features, kernel_cost
from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import MMA
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.lower.tensor_view import touched_bytes
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.tiled_numbers import solve_tiled, tiled_cost
from mirage_onnx.target import get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import gpu_of

SAMPLES = 3
#: Memory that kernels are given tensors of.
MOST_BYTES = 16 << 30
#: Bytes of a row of kernels, several times the L2; and how many it has.
ROW_BYTES, MOST_SETS = 256 << 20, (8, 96)
#: Places in the model's order between the numbers that ``--points`` takes.
APART = 12
COLUMNS = (
  "kernel", "kind", "params", "us", "counted_us", "expected_us", "dram_bytes", "registers",
  "spill_bytes", *BlockCounts.names(),
)  # fmt: skip


def every_kernel(groups, points):
  """(entry, number of the kernel, point), each text once: entries whose sizes a run knows are left out."""
  seen = set()
  for group in groups:
    for entry in read_group(FOLDER / f"{group}.jsonl"):
      for at, line in enumerate(entry.made):
        if not entry.runtime and line[:64].isalnum() and line[:64] not in seen:
          seen.add(line[:64])
          same = (entry.graph, at, *entry.extents.items())
          more = points if same not in seen else 0
          seen.add(same)
          yield from ((entry, at, point) for point in range(more + 1))


def name_of(entry, at, point):
  return f"{entry.name}.k{at}" + f".p{point}" * bool(point)


def other_numbers(kernel, tensors, extents, target, point):
  """The numbers that stand ``point * APART`` places behind the best, or none where there are not so many."""
  family = lay_out(kernel, tensors).family
  solver = solve_tiled if family is Family.TILED else solve
  found = solver(kernel, tensors, extents, target, keep=point * APART + 1)
  return found[-1][1] if len(found) > point * APART else None


def predicted(graph, kernel, params, extents, target):
  """(what the model that ranks says, what generated kernels are expected to take) in us."""
  tensors = {t.name: t for t in graph.tensors}
  if params.instruction != MMA.name:  # ranked by the same (superopt/warpgroup_numbers.py)
    return None, lowered_us(graph, kernel, extents, params, target)
  family = lay_out(kernel, tensors).family
  if family is not Family.TILED:
    us = kernel_cost(features(kernel, tensors, extents), params, target).time_us
    return us, us
  cost = tiled_cost(kernel, tensors, extents, params, target)
  return cost.time_us if cost else None, lowered_us(graph, kernel, extents, params, target)


def hides_steps(threads):
  """Whether iterations are left out only as far as a mask's data say so: the data here is not a mask's."""
  return getattr(threads.plan, "unseen", None) is not None


def build(target, work):
  """A kernel compiled for the GPU at hand, with what is known of it; or why there is none."""
  entry, at, point = work
  target = get_target(target)
  graph = parse_ugraph(entry.graph)
  numbers = [KernelParams.from_text(p) for p in entry.params]
  extents = ugraph_extents(graph, numbers, entry.extents)
  kernel = replace(graph.kernels[at], name="k")
  try:
    if point:
      tensors = {t.name: t for t in graph.tensors}
      params = other_numbers(graph.kernels[at], tensors, extents, target, point)
      if params is None:
        return "no other numbers"
      numbers[at] = params
      extents = ugraph_extents(graph, numbers, entry.extents)
    params = numbers[at]
    source = emit_kernel(graph, kernel, params, extents, target)
    threads = lowered(graph, kernel, params, extents, target)
    if hides_steps(threads):
      return "a mask's data"
    us = predicted(graph, graph.kernels[at], params, extents, target)
    moved = touched_bytes(graph, graph.kernels[at], extents)
    cubin = compile_cubin(source.text, target, name="k")
  except RejectionError as error:
    return str(error.rejection.code)
  except ZeroDivisionError:  # numbers that no solver gives
    return "no prediction"
  counts = asdict(counts_of(threads)).values()
  compiled = cubin.registers, cubin.spill_bytes
  row = (name_of(*work), type(threads.plan).__name__, params.to_text(), *us, moved, *compiled, *counts)
  return graph, extents, source, cubin, row


class Pool:
  """Memory of every type that kernels in a row are given, piece by piece and round and round."""

  def __init__(self, gpu):
    self.gpu, self.pools, self.used = gpu, {}, {}

  def take(self, tensor, size):
    """An address of ``size`` bytes that has not been given for as long as possible."""
    kind = "written" if tensor.role in ("output", "temp") else tensor.dtype.name
    room = MOST_BYTES // 4 if kind in ("written", "F16") else MOST_BYTES // 16
    if kind not in self.pools:
      self.pools[kind], self.used[kind] = self.gpu.empty(room), 0
      self.fill(self.pools[kind], room, tensor.dtype)
    if size > room:
      return None
    if self.used[kind] + size > room:
      self.used[kind] = 0
    at = self.pools[kind] + self.used[kind]
    self.used[kind] += -(-size // 256) * 256
    return at

  def fill(self, at, size, dtype):
    """Small numbers; whole numbers are 0, the first row of every table."""
    values = np.random.default_rng(0).standard_normal(1 << 22) * (0.1 * dtype.is_float)
    data = (np.zeros(1 << 22, np.uint8) if dtype.is_packed else values.astype(dtype.numpy)).view(np.uint8)
    for first in range(0, size, data.nbytes):
      self.gpu.write(at + first, data[: size - first])


@contextmanager
def in_a_row(gpu, pool, graph, extents, source):
  """Tensors of many launches, for which the body has a GPU's scope; None if they are too large.

  In a row, as in a model: kernels of one CUDA graph, each with its own tensors, which are not in the L2.
  """
  tensors = [graph.tensor(n) for n in source.args]
  sizes = [t.bytes(extents) for t in tensors]
  counts = {t.limit[1]: extents[t.limit[0]] - t.limit[2] for t in tensors if t.limit}
  sets = max(MOST_SETS[0], min(MOST_SETS[1], ROW_BYTES // max(1, sum(sizes))))
  # Outside of the scope: pools that are made here stay.
  given = [{t.name: pool.take(t, n) for t, n in zip(tensors, sizes, strict=True)} for _ in range(sets)]
  if any(a is None for at in given for a in at.values()):
    yield None
    return
  with gpu.scope():
    for at in given:
      for tensor in tensors:
        if tensor.name in counts:
          at[tensor.name] = gpu.put(
            np.full(tensor.elements(extents), counts[tensor.name], tensor.dtype.numpy)
          )
    yield given


def timed_in_turns(gpu, given, source, functions):
  """Microseconds of one launch of each function, median of samples that take turns."""

  def row(function):
    for at in given:
      gpu.launch_source(function, source, at)

  graphs = [gpu.capture(partial(row, f)) for f in functions]
  return [float(t) / len(given) for t in np.median(gpu.time_us(graphs, SAMPLES), axis=1)]


def timed(gpu, pool, graph, extents, source, cubin):
  """Microseconds of one in a row, median; None if its tensors are too large."""
  with in_a_row(gpu, pool, graph, extents, source) as given:
    if given is None:
      return None
    (us,) = timed_in_turns(gpu, given, source, [gpu.load(cubin, source.name, source.smem_bytes)])
    return us


def summary(rows):
  """Of each kind: kernels, measured over expected (geometric mean), and within which factor 95 % are."""
  for kind in sorted({r[1] for r in rows}):
    ratio = np.log([r[3] / r[5] for r in rows if r[1] == kind and r[5]])
    if ratio.size:
      spread = np.quantile(np.abs(ratio), 0.95)
      yield kind, str(ratio.size), f"{np.exp(ratio.mean()):.2f}", f"{np.exp(spread):.2f}"


def kept(path):
  """(rows, names of kernels that ended a run) of a record that an earlier run has left, or nothing."""
  if not path.exists():
    return [], []
  record = json.loads(path.read_text())
  return [tuple(r) for r in record["kernels"]], record["faults"]


def record_of(rows, faults, left_out):
  """The text of a record, a kernel a line."""
  record = facts() | {"protocol": PROTOCOL, "faults": faults, "left_out": left_out, "columns": COLUMNS}
  lines = ",\n  ".join(json.dumps(r) for r in sorted(rows))
  return json.dumps(record, indent=1)[:-2] + f',\n "kernels": [\n  {lines}\n ]\n}}\n'


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--seconds", type=float, default=400.0)
  parser.add_argument("--points", type=int, default=0)
  parser.add_argument("groups", nargs="*")
  options = parser.parse_args()
  deadline, target = time.monotonic() + options.seconds, present_target()
  if target is None:
    sys.exit("there is no GPU here that has a device profile")
  gpu, out = gpu_of(target), options.out / "kernel_times.json"
  memory = Pool(gpu)
  (rows, faults), left_out = kept(out), {}
  done = {*(r[0] for r in rows), *faults}
  groups = options.groups or ("speed", "goldens", "programs", "models")
  work = [w for w in every_kernel(groups, options.points) if name_of(*w) not in done]
  random.Random(0).shuffle(work)
  with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
    for n, built in enumerate(pool.map(partial(build, target.name), work, chunksize=2)):
      if time.monotonic() > deadline:
        left_out["time"] = len(work) - n
        break
      try:
        us = built if isinstance(built, str) else timed(gpu, memory, *built[:4]) or "too large"
      except Exception as error:  # of the driver: nothing more can be timed by this process
        print(f"{built[4][0]}: {error}")
        faults.append(built[4][0])
        left_out["a fault"] = len(work) - n
        break
      if isinstance(us, str):
        left_out[us] = left_out.get(us, 0) + 1
        continue
      name, kind, params, *rest = built[4]
      rows.append((name, kind, params, round(us, 3), *(round(x, 3) if x else x for x in rest)))
    pool.shutdown(wait=False, cancel_futures=True)
  write_text(out, record_of(rows, faults, left_out))
  head = ("kind", "kernels", "measured / expected", "95 % within")
  print_table("Kernels of the replay's corpus", head, list(summary(rows)))
  return 2 if "a fault" in left_out else 0


if __name__ == "__main__":
  sys.exit(main())
