"""Choosing regions: the set of candidates that saves the most time, by integer programming.

Variables: r_i (candidate i is used) and e_n (node n disappears). A node disappears only if a used
candidate covers it, and then either that candidate also yields its result or all readers of the
result disappear too and no used candidate reads it; so a value that two kernels recompute costs
nothing extra, and a value that somebody else still needs keeps its node. Each tensor is yielded by
at most one candidate.

    maximise  sum_n e_n * time(n) - sum_i r_i * time(i)

A node that ONNX Runtime computes in the kernel of another one costs nothing, until only that other
one disappears: then it is alone, which a third kind of variables counts.

Up to ``WHOLE`` candidates this is solved to the optimum, if the solver proves one in its time. Larger
programs are chains of layers, and the relaxation of their whole integer program is loose; there a
window of candidates moves down the topological order, each solved to the optimum beside what is
already chosen near it, and what it chose of about its first half is kept. Windows of equal layers are
one problem, solved once. Where they end decides what they see together, so windows half as large
again go down it, too, and the better choice is taken. (Of LoRA's 823 candidates the whole saves
213.3 us and takes 0.3 s, windows save 202.5 and 208.6; of Mixtral's 537 152.6 and 147.2.) Where the time
ends before the solver has proven anything, as on a busy machine, the choice is at least a greedy one.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from math import fsum, inf
from typing import Any, Protocol

import numpy as np

from mirage_onnx.choosing.disappearing import Place, disappearing
from mirage_onnx.choosing.far_nodes import far_nodes
from mirage_onnx.choosing.kept_choice import answered, question, solution
from mirage_onnx.choosing.small_choice import least_cost
from mirage_onnx.ir.program import Program

#: Cost added per used candidate, so that of two equal choices the one with fewer nodes wins, and
#: gained by every node that disappears, so that it is left with fewer.
TIE_US, GONE_US = 1e-3, 1e-4
#: The time that one integer program may take: at most, and also where the time is over.
MOST_S, LEAST_S = 20.0, 0.2
#: Most candidates of one integer program, and of a window of a larger one.
WHOLE, WINDOW = 1000, 200
#: How much worse than the best a rough choice may be.
ROUGH = 0.005


class Solutions(Protocol):
  """Proven solutions of integer programs by the hash of the program, which somebody keeps.

  Of what it gives only the rows are checked again: the costs of what it was are another hash.
  """

  def get(self, key: str) -> Mapping[str, Any] | None: ...
  def put(self, key: str, value: Mapping[str, Any]) -> None: ...


def choose(
  program: Program,
  candidates: Sequence[Place],
  times_us: Sequence[float],
  node_us: Mapping[str, float],
  alone: Mapping[str, tuple[str, float]] | None = None,
  until: float = inf,
  *,
  rough: bool = False,
  kept: Solutions | None = None,
) -> tuple[int, ...]:
  """Indices of the chosen candidates.

  ``times_us``: the cost of each candidate, ``node_us``: what each node costs in ONNX Runtime.
  ``alone``: node -> the one whose kernel also computes it, and what it costs where only that one
  disappears. ``until``: when (of ``time.monotonic``) the best that is known then is taken. ``rough``: a
  choice within ``ROUGH`` of the best of each window, where costs are guesses. ``kept``: of earlier runs.
  """
  problem = _Problem(program, candidates, times_us, node_us, alone or {}, until, kept, rough)
  if rough:
    windowed = problem.windowed(WINDOW)
    return windowed if problem.proven else min(windowed, problem.greedy(), key=problem.cost_us)
  if kept is None:
    return _best_choice(problem, until)
  name = question(program, candidates, times_us, node_us, alone or {})
  known = answered(kept.get(name), candidates, problem.is_possible)
  if known is None:
    known = _best_choice(problem, until)
    if problem.proven and problem.whole:
      kept.put(name, {"chosen": list(known)})
  return known


def _best_choice(problem: "_Problem", until: float) -> tuple[int, ...]:
  """The whole problem's, or else the better one of windows of two sizes."""
  count, found = len(problem.candidates), []
  if count <= WHOLE:
    found.append(problem.best(range(count), 0, 0))
    if problem.proven:
      return found[0]
  for window in (WINDOW, 3 * WINDOW // 2):
    if found and time.monotonic() > until:
      problem.whole = False
    else:
      found.append(problem.windowed(window))
  if not problem.proven:  # the time ended, perhaps before the solver had anything
    found.append(problem.greedy())
    some = problem.roughly().windowed(WINDOW)
    found += [some] if problem.is_possible(some) else []  # layers are alike there, and soon solved
  return min(found, key=problem.cost_us)


class _Problem:
  """The candidates of a program, and what every window asks of them.

  ``first``, ``last``: the places of a candidate's first and last node in the program; of a rough choice
  without ``far`` ones.
  """

  def __init__(
    self,
    program: Program,
    candidates: Sequence[Place],
    times_us: Sequence[float],
    node_us: Mapping[str, float],
    alone: Mapping[str, tuple[str, float]],
    until: float,
    kept: Solutions | None = None,
    rough: bool = False,
  ) -> None:
    self.until, self.kept = until, kept
    self.program, self.candidates = program, candidates
    self.times_us, self.node_us, self.alone = times_us, node_us, alone
    self.readers = program.consumers()
    self.by_name = {n.name: n for n in program.nodes}
    self.maker = {o: n.name for n in program.nodes for o in n.outputs if o}
    self.reads = [c.reads for c in candidates]
    place = {n.name: i for i, n in enumerate(program.nodes)}
    self.place = place
    self.first = [min(place[n] for n in c.nodes) for c in candidates]
    self.last = [max(place[n] for n in c.nodes) for c in candidates]
    self.far, self.rough = far_nodes(candidates, self.last, self.by_name, self.readers), rough
    #: ``first`` without far nodes.
    self.own_first = [
      min((place[n] for n in c.nodes if n not in self.far.names), default=first)
      for c, first in zip(candidates, self.first, strict=True)
    ]
    self.first = self.own_first if rough else self.first
    # Place -> how many candidates begin there or before and end behind it.
    begun, ended = (np.bincount(x, minlength=len(place)) for x in (self.first, self.last))
    self.spanning = np.cumsum(begun - ended)
    self._solved: dict[tuple[int, bytes], frozenset[int]] = {}
    #: How far from its best an answer may be, as a part of it.
    self.gap = ROUGH if rough else 0.0
    #: Whether every answer so far is the best of its problem, not only of what there was time for.
    self.proven = True
    #: Whether there was time to ask all that is asked: of another run's time the question says nothing.
    self.whole = True

  def roughly(self) -> "_Problem":
    """The same, for a rough choice."""
    given = self.program, self.candidates, self.times_us, self.node_us, self.alone, self.until
    return _Problem(*given, rough=True)

  def windowed(self, window: int) -> tuple[int, ...]:
    """What windows of so many candidates choose.

    Without what is far away layers are the same problem again.
    """
    found = self._windows(window, apart=bool(self.far.names))
    if self.rough or not self.far.names or self.is_possible(found):
      return found
    return self._windows(window, apart=False)

  def _windows(self, window: int, *, apart: bool) -> tuple[int, ...]:
    count = len(self.candidates)
    order = sorted(range(count), key=lambda i: (self.last[i], i))
    kept: list[int] = []
    start = 0
    while start < count:
      end = start + window
      middle = self.border(order, start, window) if end < count else count
      end = max(end, middle)
      free = order[start:end]
      alike = apart and (self.rough or self.far.do_not_matter(free, self.last))
      fixed, since = self.near(kept, free, apart=alike)
      picked = set(self.best([*fixed, *free], len(fixed), since))
      kept += [i for i in order[start:middle] if i in picked]
      start = middle
    return tuple(sorted(kept))

  def greedy(self) -> tuple[int, ...]:
    """The most gain by itself first, of candidates that share no node."""
    gain = [self.gain_us(i) for i in range(len(self.candidates))]
    taken: set[str] = set()
    chosen: list[int] = []
    for i in sorted(range(len(gain)), key=lambda i: (-gain[i], i)):
      if gain[i] > TIE_US and taken.isdisjoint(self.candidates[i].nodes):
        taken.update(self.candidates[i].nodes)
        chosen.append(i)
    while chosen:
      left = disappearing(self.program, [self.candidates[i] for i in chosen])
      cycle = [i for i in self._cycle(sorted(chosen), set(left), 0) if isinstance(i, int)]
      if not cycle:
        break
      chosen.remove(min(cycle, key=lambda i: (gain[i], i)))
    return tuple(sorted(chosen))

  def is_possible(self, chosen: Sequence[int]) -> bool:
    """Whether none of ``chosen`` needs what needs it."""
    gone = disappearing(self.program, [self.candidates[i] for i in chosen])
    return not self._cycle(chosen, set(gone), 0)

  def gain_us(self, i: int) -> float:
    """What candidate ``i`` saves where it is the only one."""
    c = self.candidates[i]
    gone, wanted = set(c.nodes), {*self.reads[i], *self.program.outputs}
    for n in sorted(c.nodes, key=self.place.__getitem__, reverse=True):  # readers first
      kept = [o for o in self.by_name[n].outputs if o not in c.outputs]
      if any(o in wanted or not gone.issuperset(self.readers.get(o, ())) for o in kept):
        gone.discard(n)
    return fsum(self.node_us.get(n, 0.0) for n in sorted(gone)) - self.times_us[i]

  def cost_us(self, chosen: Sequence[int]) -> float:
    """What a choice costs, less what it saves."""
    gone = disappearing(self.program, [self.candidates[i] for i in chosen])
    left = fsum(us for n, (p, us) in self.alone.items() if p in gone and n not in gone)
    used = fsum(self.times_us[i] + TIE_US for i in chosen)
    return used + left - fsum(self.node_us.get(n, 0.0) + GONE_US for n in gone)

  def border(self, order: Sequence[int], start: int, window: int) -> int:
    """How many in ``order`` are decided with the window from ``start`` on.

    Candidates that end with the same node are decided together. The place that fewest
    candidates span is taken: equal layers are then cut alike, and are the same problem again.
    """
    ends = [self.last[i] for i in order]
    low, high = start + max(1, window // 4), start + 3 * window // 4
    borders = [b for b in range(low, high) if ends[b] != ends[b - 1]]
    if borders:
      return min(borders, key=lambda b: (self.spanning[ends[b - 1]], -b))
    return next((b for b in range(high, len(ends)) if ends[b] != ends[b - 1]), len(ends))

  def near(self, kept: Sequence[int], free: Sequence[int], *, apart: bool) -> tuple[list[int], int]:
    """Which of ``kept`` a choice among ``free`` has to do with, and where in the program.

    ``apart``: without far nodes.

    A circle of dependence goes back only inside a candidate, so one that has to do with what is
    free lies behind the first node that the free candidates, or kept ones that overlap these,
    have. Nodes before it can still disappear with one that reads them.
    """
    first = self.own_first if apart else self.first
    since = min(first[i] for i in free)
    for i in sorted(kept, key=lambda i: -self.last[i]):
      if self.last[i] >= since:
        since = min(since, first[i])
    nodes = self.program.nodes
    end = max(self.last[i] for i in free)
    feeding = {self.maker.get(x) for n in nodes[since : end + 1] for x in n.inputs}
    feeding -= self.far.names if apart else frozenset()
    near = [i for i in kept if self.last[i] >= since or not feeding.isdisjoint(self.candidates[i].nodes)]
    return near, since

  def best(self, some: Sequence[int], fixed: int, since: int) -> tuple[int, ...]:
    """The best choice of ``some`` that has the first ``fixed`` of them in it.

    ``since``: no circle of dependence goes through nodes of the program before this one.
    """
    if not some:
      return ()
    candidates = [self.candidates[i] for i in some]
    # In the order of the program, so that what repeats itself is the same matrix again.
    nodes = sorted({n for c in candidates for n in c.nodes}, key=self.place.__getitem__)
    count = len(some)
    index = {n: count + i for i, n in enumerate(nodes)}
    rows: list[tuple[dict[int, float], float]] = []
    covers = _indices(c.nodes for c in candidates)
    yields = _indices(c.outputs for c in candidates)
    for n in nodes:
      # e_n <= sum of the candidates that cover n
      rows.append(({index[n]: 1.0, **dict.fromkeys(covers[n], -1.0)}, 0.0))
      for o in self.by_name[n].outputs:
        yielding = yields.get(o, [])
        free = dict.fromkeys(yielding, -1.0)
        if o in self.program.outputs:
          # a graph output must be yielded
          rows.append(({index[n]: 1.0, **free}, 0.0))
        for r in self.readers.get(o, ()):
          # e_n <= yielded(o) + e_reader
          row = {index[n]: 1.0, **free}
          if r in index:
            row[index[r]] = row.get(index[r], 0.0) - 1.0
          rows.append((row, 0.0))
        if len(yielding) > 1:
          rows.append((dict.fromkeys(yielding, 1.0), 1.0))
    for k, i in enumerate(some):
      for leaf in self.reads[i]:
        if (producer := self.maker.get(leaf)) in index:
          # what a used candidate reads is made by its node or yielded by another one
          row = {index[producer]: 1.0, k: 1.0}
          for j in yields.get(leaf, []):
            row[j] = row.get(j, 0.0) - 1.0
          rows.append((row, 1.0))
    left = [(n, p, us) for n, (p, us) in self.alone.items() if p in index]
    for k, (n, p, _) in enumerate(left, count + len(nodes)):
      # e_p <= e_n + (n is alone)
      rows.append(({index[p]: 1.0, **({index[n]: -1.0} if n in index else {}), k: -1.0}, 0.0))
    cost = np.zeros(count + len(nodes) + len(left))
    cost[count + len(nodes) :] = [us for *_, us in left]
    for k, i in enumerate(some):
      cost[k] = self.times_us[i] + TIE_US * (1 + 1e-2 * len(candidates[k].nodes))
    for n in nodes:
      cost[index[n]] = -self.node_us.get(n, 0.0) - GONE_US
    while True:
      taken = least_cost(cost, rows, fixed, count)
      if taken is None:
        taken = self._solve(cost, rows, fixed)
      chosen = tuple(some[k] for k in range(count) if k in taken)
      cycle = self._cycle(chosen, {n for n in nodes if index[n] in taken}, since)
      if not cycle:
        return chosen
      # Regions that each may be replaced, but that would need each other's results: not all
      # of them, unless a node between disappears or another candidate yields what it makes.
      at = {i: k for k, i in enumerate(some)}
      broken = dict.fromkeys((at[i] for i in cycle if isinstance(i, int)), 1.0)
      limit = len(broken) - 1.0
      for between in (self.by_name[x] for x in cycle if isinstance(x, str)):
        outs = [j for o in between.outputs for j in yields.get(o, []) if j not in broken]
        outs += [index[between.name]] if between.name in index else []
        broken |= dict.fromkeys(outs, -1.0)
      rows.append((broken, limit))

  def _solve(
    self, cost: np.ndarray, rows: list[tuple[dict[int, float], float]], fixed: int
  ) -> frozenset[int]:
    """The variables that are 1."""
    size = len(cost)
    # What all layers share (a mask) has readers in each of them: of those outside of a window the rows are
    # alike, and which comes first says nothing.
    rows = [(dict(row), limit) for row, limit in sorted({(tuple(sorted(row.items())), x) for row, x in rows})]
    r = np.repeat(np.arange(len(rows)), [len(row) for row, _ in rows])
    c = np.array([j for row, _ in rows for j in row])
    v = np.array([x for row, _ in rows for x in row.values()])
    limits = np.array([limit for _, limit in rows])
    key = (fixed, b"".join(x.tobytes() for x in (cost, r, c, v, limits)))
    if key not in self._solved:
      # Here: they take 0.4 s to import, and a model without regions needs neither.
      from scipy.optimize import Bounds, LinearConstraint, milp
      from scipy.sparse import coo_array

      matrix = coo_array((v, (r, c)), shape=(len(rows), size)).tocsc()
      name = hashlib.sha256(f"{self.gap} {key}".encode()).hexdigest()
      known = solution(None if self.kept is None else self.kept.get(name), matrix, limits, fixed)
      if known is not None:
        self._solved[key] = known
        return known
      time_s = max(LEAST_S, min(MOST_S, self.until - time.monotonic()))
      found = milp(
        cost,
        constraints=LinearConstraint(matrix, -np.inf, limits),
        bounds=Bounds(np.arange(size) < fixed, 1),
        integrality=np.ones(size),
        options={
          "time_limit": time_s,
          "mip_rel_gap": self.gap,
        },
      )
      self.proven &= found.status == 0
      ones = range(fixed) if found.x is None else np.flatnonzero(found.x > 0.5).tolist()
      self._solved[key] = frozenset(ones)
      if self.kept is not None and found.status == 0:
        self.kept.put(name, {"ones": list(ones)})
    return self._solved[key]

  def _cycle(self, chosen: Sequence[int], gone: set[str], since: int) -> tuple[int | str, ...]:
    """Chosen candidates, and nodes between, that need each other in a circle; () for none.

    ``gone``: nodes that disappear, through which nothing depends on anything.
    """
    end = max((self.last[i] for i in chosen), default=0) + 1
    left = [n for n in self.program.nodes[since:end] if n.name not in gone]
    makers: dict[str, str | int] = {o: n.name for n in left for o in n.outputs if o}
    makers |= {o: i for i in chosen for o in self.candidates[i].outputs}
    inputs: dict[str | int, tuple[str, ...]] = {n.name: n.inputs for n in left}
    inputs |= {i: self.reads[i] for i in chosen}
    graph = TopologicalSorter({i: [makers[t] for t in read if t in makers] for i, read in inputs.items()})
    try:
      graph.prepare()
    except CycleError as error:
      return tuple(dict.fromkeys(error.args[1]))
    return ()


def _indices(names: Iterable[frozenset[str]]) -> dict[str, list[int]]:
  """Name -> the places of the sets that hold it, ascending."""
  found: dict[str, list[int]] = {}
  for i, some in enumerate(names):
    for name in some:
      found.setdefault(name, []).append(i)
  return found
