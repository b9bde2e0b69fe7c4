"""One line of the coverage table: what ``optimize`` did to one model."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from coverage_table.node_work import Work, node_work, rows
from coverage_table.reasons import BY_CHOICE, Reason, reasons
from mirage_onnx.rewrite.model import DOMAIN_PREFIX

#: From this many rows on a matrix product is limited by arithmetic: the library's is hard to beat.
LIBRARY_ROWS = 64


@dataclass(frozen=True, slots=True)
class Share:
  """Parts of a model in replaced regions, each in [0, 1]."""

  nodes: float
  flops: float
  bytes: float


@dataclass(frozen=True, slots=True)
class Kept:
  """What one reason keeps with ONNX Runtime; ``ops``: operator -> nodes."""

  reason: Reason
  nodes: int
  flops: int
  bytes: int
  ops: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LibraryNodes:
  """Kept MatMul, Gemm or Conv nodes with a weight and at least ``LIBRARY_ROWS`` rows, of one reason.

  ``rows``: the least and the most. ``by_choice``: a kernel could be had (or there is nothing to
  fuse); otherwise it was refused.
  """

  op_type: str
  nodes: int
  rows: tuple[int, int]
  flops: int
  bytes: int
  code: str
  by_choice: bool


@dataclass(frozen=True, slots=True)
class Coverage:
  """Counts and shares of one model.

  ``nodes`` run at every inference; ``folded`` depend on constants only, ONNX Runtime computes
  them when it loads the model, and they are in no share. ``candidates``: instances offered,
  ``regions``: distinct ones, ``replaced``: distinct ones in use, ``instances``: how often.
  ``share_apart``: as ``share``, without the nodes of ``library`` that are there by choice.
  Times: ORT's, of it what is in replaced regions, and that of the result; ``unpriced``: nodes the
  table of times does not know, in none of them.
  """

  nodes: int
  folded: int
  unsized: int
  candidates: int
  regions: int
  replaced: int
  instances: int
  replaced_nodes: int
  flops: int
  bytes: int
  share: Share
  share_apart: Share
  before_us: float
  replaced_us: float
  after_us: float
  unpriced: int
  kept: tuple[Kept, ...]
  library: tuple[LibraryNodes, ...]


def coverage(run, node_us):
  """The line of a run; ``node_us``: what each node costs in ONNX Runtime, where that is known."""
  program = run.program
  folded = folded_nodes(program)
  nodes = [n for n in program.nodes if n.name not in folded]
  sized = {n.name: node_work(n, program) for n in nodes}
  work = {name: w or Work() for name, w in sized.items()}
  gone = vanished_nodes(program, run.model)
  covered = frozenset().union(*(c.nodes for c, _ in run.chosen))
  replaced = gone & covered & work.keys()
  why = reasons(run, covered)
  rest = [n for n in nodes if n.name not in replaced]
  large = {n.name: m for n in rest if (m := rows(n, program)) is not None and m >= LIBRARY_ROWS}
  apart = {n for n in large if why[n].code in BY_CHOICE}
  whole = _sum(work, work)
  before = sum(node_us.get(n, 0.0) for n in work)
  saved = sum(node_us.get(n, 0.0) for n in work.keys() & gone)
  return Coverage(
    nodes=len(nodes),
    folded=len(folded),
    unsized=sum(w is None for w in sized.values()),
    candidates=len(run.matches.candidates),
    regions=len(run.outcomes),
    replaced=len(run.counts()),
    instances=len(run.chosen),
    replaced_nodes=len(replaced),
    flops=whole.flops,
    bytes=whole.bytes,
    share=_share(work, replaced),
    share_apart=_share({n: w for n, w in work.items() if n not in apart}, replaced),
    before_us=round(before, 2),
    replaced_us=round(saved, 2),
    after_us=round(before - saved + sum(o.price_us(0.0) for _, o in run.chosen), 2),
    unpriced=sum(n not in node_us for n in work),
    kept=tuple(_kept(rest, work, why)),
    library=tuple(_library(rest, large, work, why)),
  )


def folded_nodes(program):
  """Nodes that read constants, and nothing else, however far back."""
  values = set(program.weights)
  found = []
  for node in program.nodes:
    if node.inputs and values.issuperset(node.inputs):
      values.update(node.outputs)
      found.append(node.name)
  return frozenset(found)


def vanished_nodes(program, result):
  """Nodes of which ``result`` computes no output as the original did."""
  kept = {o for n in result.graph.node if not n.domain.startswith(DOMAIN_PREFIX) for o in n.output if o}
  return frozenset(n.name for n in program.nodes if kept.isdisjoint(n.outputs))


def _sum(work, names):
  return sum((work[n] for n in names), Work())


def _share(work, replaced):
  part, whole = _sum(work, replaced), _sum(work, work)
  pairs = ((len(replaced), len(work)), (part.flops, whole.flops), (part.bytes, whole.bytes))
  return Share(*(round(a / b, 4) if b else 0.0 for a, b in pairs))


def _kept(rest, work, why):
  """Most bytes first."""
  groups = defaultdict(list)
  for node in rest:
    groups[why[node.name]].append(node)
  found = []
  for reason, nodes in groups.items():
    all_of = _sum(work, {n.name for n in nodes})
    ops = Counter(n.op_type for n in nodes)
    found.append(Kept(reason, len(nodes), all_of.flops, all_of.bytes, dict(ops.most_common())))
  return sorted(found, key=lambda k: (-k.bytes, -k.nodes, k.reason))


def _library(rest, large, work, why):
  """Most bytes first."""
  groups = defaultdict(list)
  for node in rest:
    if node.name in large:
      groups[node.op_type, why[node.name].code].append(node.name)
  found = []
  for (op_type, code), nodes in groups.items():
    w, sizes = _sum(work, nodes), [large[n] for n in nodes]
    spread = (min(sizes), max(sizes))
    found.append(LibraryNodes(op_type, len(nodes), spread, w.flops, w.bytes, code, code in BY_CHOICE))
  return sorted(found, key=lambda x: (-x.bytes, x.op_type, x.code))
