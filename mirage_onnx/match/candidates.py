"""Candidate regions: the cones of ``cuts``, with what each yields, in canonical form."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from mirage_onnx.errors import Rejection
from mirage_onnx.failures import refusal
from mirage_onnx.importer.split_caches import CACHED
from mirage_onnx.ir import Program, Region, RegionTensor
from mirage_onnx.match.borders import Borders
from mirage_onnx.match.cuts import Cut, Limits, find_cuts, meets
from mirage_onnx.match.graph import LAYOUT, Graph
from mirage_onnx.match.repeated import LateRegion, RegionMaker

#: Terms of the regions that are made of a program, each form once: 0.07 ms a term. Of 120 real models those
#: of more than 10,000 terms have 45 a node at most; where everything reads everything there are hundreds.
#: Beyond, from the end, a tensor that no region has yet has its best cut.
LEAST_WORK, WORK_PER_NODE = 10_000, 48


@dataclass(frozen=True, slots=True)
class RegionCandidate:
  """A possible region: canonical form and what of the program it covers.

  What is asked of thousands (``key``, ``reads``, ``weights``) needs no region that is only a copy.
  """

  made: Region | LateRegion
  nodes: frozenset[str]
  outputs: frozenset[str]

  @property
  def region(self) -> Region:
    return self.made.region if isinstance(self.made, LateRegion) else self.made

  @property
  def key(self) -> str:
    """Of the region."""
    return self.made.key

  @property
  def form(self) -> object:
    """The same one of candidates whose regions are copies of each other."""
    return self.made.form if isinstance(self.made, LateRegion) else self.made

  @property
  def extents(self) -> Mapping[str, int]:
    """Of the region."""
    return self.made.extents

  @property
  def weights(self) -> tuple[RegionTensor, ...]:
    """The inputs of the region that no run changes."""
    return self.made.weights

  @property
  def reads(self) -> tuple[str, ...]:
    """The tensors of the program that its node reads, each once."""
    return self.made.reads


@dataclass(frozen=True, slots=True)
class Matches:
  """All candidates, and for every node that is in none the reason."""

  candidates: tuple[RegionCandidate, ...]
  rejections: tuple[Rejection, ...]

  def beside(self, others: Sequence[RegionCandidate]) -> "Matches":
    """Those that are one of ``others``, or have no node of theirs: all can be nodes of one graph."""
    if not others:
      return self
    same = {(c.nodes, c.outputs) for c in others}
    covered = frozenset[str]().union(*(c.nodes for c in others))
    fit = (c for c in self.candidates if (c.nodes, c.outputs) in same or not c.nodes & covered)
    return replace(self, candidates=tuple(fit))


def find_candidates(
  program: Program,
  limits: Limits | None = None,
  sizes: Mapping[str, int] | None = None,
  until: float = inf,
) -> Matches:
  """All candidate regions of ``program``, and why nodes are in none.

  ``sizes``: what regions assume of the names of dimensions, at least 2 (else ``ASSUMED``). ``until``: when
  (of ``time.monotonic``) no more are looked for; of dense graphs a node takes 4 ms.
  """
  bounds = limits or Limits()
  graph = Graph(program)
  borders = Borders(graph, reductions=bounds.reductions, rows_apart=bounds.rows_apart)
  cuts, maker = find_cuts(borders, bounds, until), RegionMaker(program, sizes)
  candidates: dict[tuple[frozenset[str], frozenset[str]], RegionCandidate] = {}
  failures: dict[str, Rejection] = {}
  leaves = {x for options in cuts.values() for cut in options for x in cut.leaves}

  def make(tensor: str, *, one: bool = False) -> frozenset[str]:
    """Candidates of the cuts of a tensor, or of the first that has any; the nodes of one of them."""
    found = frozenset[str]()
    # Unless what reads it has the views inside.
    only_viewed = borders.is_only_viewed(tensor) and tensor not in leaves
    for cut in (cut for cut in cuts[tensor] if not _is_trivial(graph, cut, bounds)):
      if found and (one or maker.work > most_work):
        break
      outward = _outward(graph, cut.nodes)
      for outputs in _variants(borders, tensor, cut, bounds, outward):
        key = (cut.nodes, outputs)
        if key in candidates or (only_viewed and len(outputs) == 1):
          continue
        if _is_again(graph, cut, outputs, bounds, outward):
          continue
        made = candidate(maker, cut.nodes, outputs)
        if isinstance(made, RegionCandidate):
          candidates[key] = made
          found = cut.nodes
        else:
          failures.setdefault(tensor, made)
    return found

  natural = deque(x for x in cuts if borders.is_natural(x))
  most_work = max(LEAST_WORK, WORK_PER_NODE * len(program.nodes))
  while natural and maker.work <= most_work and time.monotonic() < until:
    make(natural.popleft())
  inside = set[str]()
  while natural and time.monotonic() < until:
    if graph.producer[tensor := natural.pop()].name not in inside:
      inside |= make(tensor, one=True)
  covered = {n for c in candidates.values() for n in c.nodes}
  alone = ("TOO_SMALL", "nothing beside it to fuse with")
  if time.monotonic() >= until:
    alone = ("BUDGET", "the time budget ended before regions with it were looked for")
  rejections = []
  for node in program.nodes:
    reason = graph.reasons[node.name]
    if reason is not None:
      rejections.append(Rejection(reason.code, reason.reason, (node.name,)))
    elif node.name not in covered:
      failed = next((failures[o] for o in node.outputs if o in failures), None)
      rejections.append(
        Rejection(failed.code, failed.reason, (node.name,)) if failed else Rejection(*alone, (node.name,))
      )
  return Matches(tuple(candidates.values()), tuple(rejections))


def _outward(graph: Graph, nodes: frozenset[str]) -> list[tuple[str, str]]:
  """What others read of the results of ``nodes``, each behind the node that makes it."""
  consumers, ends = graph.consumers, graph.outputs
  return [
    (n, o)
    for n in nodes
    for o in graph.node[n].outputs
    if o in ends or not nodes.issuperset(consumers.get(o, ()))
  ]


def _variants(
  borders: Borders, tensor: str, cut: Cut, limits: Limits, outward: Sequence[tuple[str, str]]
) -> Iterator[frozenset[str]]:
  """Output sets of a cone: the tensor alone (the rest recomputed), or all that others read.

  Of an operator that yields tensors of other shapes (a cache beside what is attended) those alike.
  ``outward``: as of ``_outward``.
  """
  graph = borders.graph
  yield frozenset({tensor})
  escaping = {tensor, *(o for _, o in outward if borders.is_natural(o))}
  # One kernel computes several outputs only over equal axes; others are regions of their own.
  own = graph.producer[tensor].outputs
  if len(own) > 1:  # what only moves something (queries, keys and values apart) stays for its other readers
    escaping -= {o for o in escaping - set(own) if graph.producer[o].name in graph.moves}
  if escaping <= set(own):
    escaping = {o for o in escaping if graph.program.numbers(o) == graph.program.numbers(tensor)}
  shapes = {graph.program.numbers(o) for o in escaping}
  if 1 < len(escaping) <= limits.outputs and len(shapes) == 1 and _is_convex(graph, cut, escaping):
    yield frozenset(escaping)


def _is_convex(graph: Graph, cut: Cut, outputs: set[str]) -> bool:
  """Whether no leaf depends on an output through nodes outside the cone."""
  seen: set[str] = set()
  # Nothing before the first node that yields an output depends on one.
  first = min(graph.order[graph.producer[o].name] for o in outputs)
  todo = list(cut.leaves)
  while todo:
    producer = graph.producer.get(todo.pop())
    if producer is None or producer.name in seen or graph.order[producer.name] < first:
      continue
    seen.add(producer.name)
    if outputs & set(producer.outputs):
      return False
    todo += producer.inputs
  return True


def _is_trivial(graph: Graph, cut: Cut, limits: Limits) -> bool:
  """Nothing but casts and moves, or one operator that neither streams a weight nor contracts twice.

  One that reduces and does more beside it may be a region (``Limits.reductions``), and so may a product
  that is a part of an operator: of that ONNX Runtime has another kernel.
  """
  if any(map(graph.streams, cut.nodes)) or not graph.with_readers.isdisjoint(cut.nodes):
    return False
  steps = [s for n in cut.nodes for s in graph.node[n].steps]
  computing = [s for s in steps if s.op not in ("cast", *LAYOUT)]
  if limits.single:
    return not computing
  if limits.reductions and len(computing) > 1 and not cut.contractions and any(map(graph.reduces, cut.nodes)):
    return False
  if len(cut.nodes) < 2 and cut.contractions < 2:
    # What writes a cache is one operator for each of its tensors.
    return not any(n.op_type == CACHED for n in map(graph.node.__getitem__, cut.nodes))
  return len(computing) < 2


def _is_again(
  graph: Graph, cut: Cut, outputs: frozenset[str], bounds: Limits, outward: Sequence[tuple[str, str]]
) -> bool:
  """Whether too many nodes on a path are computed here, and for others who read what they yield.

  ``outward``: as of ``_outward``.
  """
  nodes, meeting = cut.nodes, meets(graph, cut.nodes)
  most = bounds.again_meeting if meeting else bounds.again
  free = meeting and not bounds.again_ragged
  shared = {n for n, o in outward if o not in outputs and not (free and graph.is_ragged(o))}
  if len(shared) <= most:
    return False
  found: dict[str, int] = {}
  for name in sorted(nodes, key=graph.order.__getitem__):
    before = max((found.get(i, 0) for i in graph.reads[name]), default=0)
    found |= dict.fromkeys(graph.node[name].outputs, before + (name in shared))
  return max(found[o] for o in outputs) > most


def candidate(
  maker: RegionMaker, nodes: frozenset[str], outputs: frozenset[str]
) -> RegionCandidate | Rejection:
  """The region of these nodes that yields these of their outputs, or why there is none."""
  try:
    return RegionCandidate(maker.make(nodes, outputs), nodes, outputs)
  except Exception as error:
    return refusal(error, "match", tuple(sorted(nodes)))
