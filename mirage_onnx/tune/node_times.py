"""What ONNX Runtime's kernels of single nodes take on this GPU, measured where tables only guess.

A table of times knows operators by their elements and products by few rows; of BERT's 4096 rows it
expected a seventh of what nodes with scores take, and hardly any search was asked for them. With a
GPU at hand the nodes themselves are asked: each of a few dozen that differ, as a CUDA graph.

In a model a node's inputs come from the node in front, so what counts is one more run in a row of runs
(the slope); a node with large weights, which no cache keeps until the next run, counts cold. What the first
kernel of a graph takes longer than another one (3 us on an H100: a product of 128 rows seemed to take 7.6 us
where it took 4.2 in BERT) is what small nodes without weights take longer at first, and no part of it.
Nodes that ONNX Runtime computes in the kernel of another one are not asked alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import fsum
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mirage_onnx import deadline
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.constants import known_values
from mirage_onnx.importer.split_caches import is_attended, partners
from mirage_onnx.importer.split_norms import norms_of_one
from mirage_onnx.importer.split_projections import parts_of_one
from mirage_onnx.importer.split_windows import windows_of
from mirage_onnx.ir.program import Program
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import Target
from mirage_onnx.tune.machine import present_machine
from mirage_onnx.tune.node_models import NodeModel, distinct_nodes, node_feeds, node_model, whole_name
from mirage_onnx.tune.ort_joins import folded, joined

if TYPE_CHECKING:
  from mirage_onnx.tune.device import Gpu

#: Runs in one graph, of which one more is the slope; samples of each time.
RUNS, SAMPLES = (1, 5), 7
#: Bytes of weights that no cache keeps until the next run of the model: they count cold.
COLD_BYTES = 1 << 20
#: So many small nodes say what the first kernel of a graph takes longer.
LEAST_SMALL = 3


#: Of a step with a cache the part that writes it: 4.3 of 21.5 us with 4096 of 8192 rows on an H100, and 5.1
#: of 21.9 (bench/results/h100/genai_*.json).
WRITES = 0.2

#: Times of one node: (2, ``SAMPLES``) in microseconds, of ``RUNS`` runs in a row, caches cold before.
NodeClock = Callable[[NodeModel], np.ndarray]
#: The names of nodes, at some time.
Useful = Future[Set[str]]
_T = TypeVar("_T")


def timed_beside(
  find: Callable[[], _T],
  nodes_of: Callable[[_T], Set[str]],
  loaded: LoadedModel,
  program: Program,
  names: Iterable[str],
  target: Target,
  *,
  until: float,
) -> tuple[_T, dict[str, float]]:
  """What ``find`` makes, and ``measured_node_us``, which is asked meanwhile: both take seconds.

  ``nodes_of``: of what was found, the nodes of which times are of use; behind it no others are asked about.
  """
  useful = Future[Set[str]]()
  with ThreadPoolExecutor(1, thread_name_prefix="nodes") as pool:
    times = pool.submit(measured_node_us, loaded, program, names, target, until=until, useful=useful)
    try:
      found = find()
      useful.set_result(nodes_of(found))
    except BaseException:
      useful.set_result(frozenset())
      raise
    return found, times.result()


def measured_node_us(
  loaded: LoadedModel,
  program: Program,
  names: Iterable[str],
  target: Target,
  *,
  until: float,
  useful: Useful | None = None,
) -> dict[str, float]:
  """The times of those of ``names`` that could be asked about ``until`` then (of time.monotonic).

  Empty without a GPU. What fails at one node is unknown of this node. ``useful``: as of ``ask_nodes``.
  """
  machine = present_machine()
  if machine is None:
    return {}
  store = KeptFolder(cache_folder("measurements"), machine.text)
  names = set(names) - joined(program).keys() - folded(program)
  clock = gpu_clock(loaded, program, target)
  found = ask_nodes(distinct_nodes(loaded, program, names), clock, store, until, useful)
  return in_parts(found, loaded, program)


def in_parts(times: Mapping[str, float], loaded: LoadedModel, program: Program) -> dict[str, float]:
  """``times``, of operators that are several nodes shared out between these.

  Of two (``split_caches.py``) each was asked as the whole; of others (``split_projections.py``,
  ``split_norms.py``) both the parts and the whole, whose kernel is what a region is faster than. So are those
  of ``split_windows.py``, of which a region has all from the product on.
  """
  found = dict(times)
  with_reader = {n.name for n in program.nodes if n.with_reader}
  for parts in windows_of(loaded.proto, loaded.node_names):
    whole = found.pop(whole_name(parts), None)
    found |= _before_and_behind(whole or 0.0, [p for p in parts if p in found], times, with_reader)
  for parts in (p for f in (parts_of_one, norms_of_one) for p in f(loaded.proto, loaded.node_names)):
    whole = found.pop(whole_name(parts), None)
    if whole is None:
      continue
    known = {p: found[p] for p in parts if p in found}
    rest = whole - fsum(known.values())
    if len(known) < len(parts) and rest > 0:
      found |= dict.fromkeys(set(parts) - known.keys(), rest / (len(parts) - len(known)))
    elif (apart := fsum(known.values())) > 0:
      found |= {p: whole * us / apart for p, us in known.items()}
  for name, other in partners(loaded.proto, loaded.node_names).items():
    if name in times and other in times:
      found[name] *= 1 - WRITES if is_attended(loaded.node(name)) else WRITES
  return found


def share_of(loaded: LoadedModel, nodes: Iterable[str]) -> float:
  """The share of an operator's time of one of its two parts, where ``nodes`` have that alone; 1 elsewhere.

  ONNX Runtime runs the whole for either: of a step with 8 caches of 32768 rows both of our parts were faster
  than that (194.8 and 2.7 us, 195.4), and slower together.
  """
  others, own = partners(loaded.proto, loaded.node_names), set(nodes)
  alone = [n for n in own if n in others and others[n] not in own]
  return min((1 - WRITES if is_attended(loaded.node(n)) else WRITES for n in alone), default=1.0)


def _before_and_behind(
  whole: float, parts: Sequence[str], times: Mapping[str, float], with_reader: Set[str]
) -> dict[str, float]:
  """The times of parts of one operator, so that a region is worth what the whole takes less what stays.

  All from the product on is one region or none, and its time is that of the product. Where parts take longer
  than the whole, it counts against each of the two sides, for the other one may stay. ``whole``: 0 where that
  is not known, and then no part is worth anything.
  """
  behind = [p for p in parts if p in with_reader]
  before = [p for p in parts if p not in with_reader]
  if not behind:
    return dict.fromkeys(parts, 0.0)
  alone, rest = fsum(times[p] for p in before), fsum(times[p] for p in behind)
  found = dict.fromkeys(behind, 0.0) | {behind[0]: max(0.0, whole - alone)}
  factor = min(1.0, max(0.0, whole - rest) / alone) if alone > 0 else 1.0
  return found | {p: times[p] * factor for p in before}


def ask_nodes(
  nodes: Mapping[str, tuple[NodeModel, ...]],
  clock: NodeClock,
  store: KeptFolder,
  until: float,
  useful: Useful | None = None,
) -> dict[str, float]:
  """The time of every node that was asked: first those of which the model has most bytes to move.

  ``useful``: the nodes of which times are of use, once that is known; those of others are left out, so that
  it does not matter when that is.
  """
  from mirage_onnx.tune.kept_bench import kept_times  # here: it has the search and the code generator along

  asked = list[tuple[tuple[NodeModel, ...], np.ndarray]]()
  order = sorted(nodes.items(), key=lambda kv: (-len(kv[1]) * kv[1][0].moved_bytes, kv[0]))
  for text, same in order:
    if time.monotonic() > until:
      break
    if useful is not None and useful.done() and not _has_any(same, useful):
      continue
    try:
      with deadline.until(until):
        times = kept_times(store, ("node", text), (2, SAMPLES), lambda n=same[0]: clock(n))  # type: ignore[misc]
    except deadline.OverdueError:
      break
    except Exception:  # a model that ONNX Runtime refuses, memory, the driver: the table's time stays
      continue
    asked.append((same, times))
  if useful is not None:
    asked = [(same, times) for same, times in asked if _has_any(same, useful)]
  small = [t for same, t in asked if not same[0].weight_bytes and same[0].moved_bytes < COLD_BYTES]
  first_us = first_longer_us(small)
  return {n.node.name: node_us(times, same[0].weight_bytes, first_us) for same, times in asked for n in same}


def _has_any(same: Sequence[NodeModel], useful: Useful) -> bool:
  wanted = useful.result()
  return any(n.node.name in wanted or not wanted.isdisjoint((*n.parts, *n.beside)) for n in same)


def first_longer_us(small: Sequence[np.ndarray]) -> float:
  """What the first kernel of a graph takes longer, by times of small nodes; 0 where there are too few."""
  if len(small) < LEAST_SMALL:
    return 0.0
  return max(0.0, float(np.median([np.median(t[0]) - _slope_us(t) for t in small])))


def _slope_us(times: np.ndarray) -> float:
  once, several = np.median(times, axis=1)
  return float(several - once) / (RUNS[1] - RUNS[0])


def node_us(times: np.ndarray, weight_bytes: int, first_us: float = 0.0) -> float:
  """One run's time in a model, from those of ``RUNS`` runs in a row; ``first_us``: of no node."""
  once, slope = float(np.median(times[0])), _slope_us(times)
  return max(0.0, max(once - first_us, slope) if weight_bytes >= COLD_BYTES else min(once, slope))


def gpu_clock(loaded: LoadedModel, program: Program, target: Target) -> NodeClock:
  """The clock of the present GPU."""
  from mirage_onnx.tune.measure import gpu_of
  from mirage_onnx.tune.ort_run import own_run

  values = known_values(loaded)

  def clock(n: NodeModel) -> np.ndarray:
    gpu = gpu_of(target)
    with gpu.scope():
      model = partial(node_model, loaded, program, n.node, values, n.parts)
      feeds = node_feeds(n.node, program, values)
      return times_in_a_row(gpu, own_run(gpu, loaded, lambda out: model(outside=out), feeds))

  return clock


def times_in_a_row(gpu: Gpu, run: Callable[[], object], samples: int = SAMPLES) -> np.ndarray:
  """``NodeClock``'s times of a run on the GPU, each of ``RUNS`` in a row as one CUDA graph."""
  from mirage_onnx.tune.graph_clock import looked_us

  def several(count: int) -> Callable[[], object]:
    def work() -> None:
      for _ in range(count):
        run()

    return gpu.capture(work)

  return looked_us(gpu, [several(count) for count in RUNS], samples)
