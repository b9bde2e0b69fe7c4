"""Cones by cut enumeration, as in technology mapping: what candidate regions are made of.

A *cut* of a tensor is a set of tensors (its leaves) from which understood nodes compute it; the
nodes between are its *cone*. Cones may overlap: a norm that feeds three projections may be computed
again in each of their kernels, and the original disappears when nobody reads it any more. Per
tensor the best few cuts are kept (priority cuts). No cone knows what its operators are called: it
is bounded by counts of contractions, nodes and leaves.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from mirage_onnx.importer.split_caches import CACHED
from mirage_onnx.ir.program import Node
from mirage_onnx.match.borders import Borders
from mirage_onnx.match.graph import Graph
from mirage_onnx.match.sinking import SLICING

#: Joined cuts of a node: of many operands that all come from one value every subset is a cut.
MOST_UNIONS = 1 << 13


@dataclass(frozen=True, slots=True)
class Limits:
  """Bounds of one cone and of how many cuts of a tensor are kept."""

  contractions: int = 6
  #: Reductions and contractions one after the other on a path: what one kernel can hold, and where no
  #: two activations meet.
  depth: int = 4
  weights_depth: int = 4
  nodes: int = 32
  leaves: int = 5
  kept: int = 24
  kept_per_contractions: int = 8
  outputs: int = 3
  #: A contraction with a weight feeds another one of its region only if its result has at most
  #: this many columns: every block of the second would compute it again.
  inner_columns: int = 32
  #: Nodes whose results others read, too, and that a region computes again one from the other: of a chain
  #: of residual sums through many layers it reads one.
  again: int = 2
  #: The same of a region in which two activations are contracted.
  again_meeting: int = 2
  #: Whether there what has rows that begin between 16 bytes counts as computed again, too.
  again_ragged: bool = True
  #: Whether of cones with one kernel that with the fewest nodes is kept: others may yield what is moved.
  fewest: bool = True
  #: How many more one operator may have: attention whose queries have a norm.
  within: int = 1
  #: Whether one operator alone is a region: ONNX Runtime has a kernel for it, so only to test ours.
  single: bool = False
  #: Whether one that reduces is, as its kernel is timed beside ours: several others may read what it yields.
  reductions: bool = False
  #: Whether of cones that contract activations one is kept that reads nothing of a product with a weight.
  sums_apart: bool = True
  #: Whether the border behind parts of an operator is in front of the concatenation that reads them, where
  #: they are one matrix, and not where the operator ended.
  rows_apart: bool = True


#: Where kernels are timed.
TIMED = Limits()
#: Of the steps of a decoder, where a node is a norm and the sum before it: with more, four times as many
#: regions are searched, most of them chains of sums that no choice wants.
STEPS = Limits(again=1, again_meeting=1)
#: Where nothing is timed: attention computes nothing again (a third of the regions of BERT-base), of which
#: the choice by prediction loses nothing; norms before products do (a LLaMA layer: 56 us, 75 without). But
#: for a mask in rows that no vector reads: a ViT's of 197 is made of truth values in the kernel (16 images
#: 2205 -> 1593 us on an H100 where the region may; BERT's, in rows of 512, 1816 and 1818).
PREDICTED = Limits(weights_depth=3, again_meeting=0, again_ragged=False, fewest=False, rows_apart=False)


def limits_of(*, steps: bool, timed: bool) -> Limits:
  """Those of a run: of a decoder's steps, with a GPU that times."""
  return STEPS if steps else TIMED if timed else PREDICTED


@dataclass(frozen=True, slots=True)
class Cut:
  """Leaves (activations only) and the nodes between them and the tensor."""

  leaves: frozenset[str]
  nodes: frozenset[str]
  contractions: int
  depth: int


def find_cuts(borders: Borders, limits: Limits, until: float = inf) -> dict[str, tuple[Cut, ...]]:
  """The kept cuts of every tensor that a region may compute, in topological order.

  ``until``: when (of ``time.monotonic``) those that are left have none.
  """
  graph = borders.graph
  found: dict[str, tuple[Cut, ...]] = {}
  for node in graph.program.nodes:
    if graph.reasons[node.name] is not None:
      continue
    if time.monotonic() > until:
      break
    choices = _choices(borders, node, found, limits)
    cuts, too_large = _joined(graph, node, choices, limits)
    if too_large and not cuts:
      cuts = _behind_new_borders(borders, node, choices, limits)
    made = {s.output.name for s in node.steps}
    found |= dict.fromkeys((o for o in node.outputs if o in made), _best(graph, cuts, limits))
  return found


def _choices(
  borders: Borders, node: Node, found: Mapping[str, tuple[Cut, ...]], limits: Limits
) -> list[tuple[str, list[Cut]]]:
  """Each activation that a node reads, with its cuts."""
  graph = borders.graph
  own = graph.contractions(node.name)
  choices: list[tuple[str, list[Cut]]] = []
  for tensor in graph.activations(node):
    in_memory = borders.is_put_together(tensor) or graph.is_table(node, tensor)
    options = [] if in_memory else list(found.get(tensor, ()))
    if own:
      options = [c for c in options if _feeds(graph, c, limits, tensor)]
    if len(graph.consumers.get(tensor, ())) > 1:
      options = [c for c in options if graph.with_readers.isdisjoint(c.nodes)]
    if own and borders.regrouped(tensor):
      weight = graph.is_moved_weight(tensor)
      options = [c for c in options if borders.may_contract(node.name, c.nodes, weight=weight)]
    moved = graph.is_read_as_weight(tensor, node)  # no kernel reads it as an activation
    picks = graph.picks(node, tensor)
    natural = (borders.is_natural(tensor) or picks) and not moved
    if graph.inside(tensor) is None or natural or graph.is_table(node, tensor):
      options.append(_border(tensor))
    choices.append((tensor, options))
  return choices


def _border(tensor: str) -> Cut:
  """What reads a tensor and computes nothing of it."""
  return Cut(frozenset({tensor}), frozenset(), 0, 0)


def _behind_new_borders(
  borders: Borders, node: Node, choices: Sequence[tuple[str, list[Cut]]], limits: Limits
) -> tuple[Cut, ...]:
  """The cuts of a node with a border in front of it, where it and what it reads are more than a region holds.

  Those that are used are natural from here on.
  """
  graph = borders.graph
  inside = {
    tensor
    for tensor, cuts in choices
    if cuts
    and graph.inside(tensor)
    and not borders.is_natural(tensor)
    and not borders.is_inseparable(tensor)
    and not graph.is_read_as_weight(tensor, node)
  }
  more = [(tensor, [*cuts, _border(tensor)] if tensor in inside else cuts) for tensor, cuts in choices]
  found, _ = _joined(graph, node, more, limits)
  for tensor in inside & {leaf for cut in found for leaf in cut.leaves}:
    borders.set_natural(tensor)
  return found


def _joined(
  graph: Graph, node: Node, choices: Sequence[tuple[str, list[Cut]]], limits: Limits
) -> tuple[tuple[Cut, ...], bool]:
  """The cuts of a node with one of each operand, and whether some have too many nodes."""
  own = graph.contractions(node.name)
  cuts: dict[Cut, None] = {}
  many = own > 1 or node.op_type == CACHED  # keys, values and two caches, with what says where
  unions, too_large = _unions(
    [options for _, options in choices], limits, max(limits.leaves, len(choices) if many else 0)
  )
  self_depth, makers = graph.depth(node.name), graph.makers
  for leaves, below, depth_below in unions:
    nodes = below | {node.name}
    if not nodes.isdisjoint([makers[x] for x in leaves if x in makers]):
      continue
    contracting = nodes & graph.contracting
    met = not contracting <= graph.contracting_weights
    if met and not contracting.isdisjoint(graph.contracting_weights):
      continue  # a projection and the attention behind it are searched apart
    count = own + sum([graph.contractions(n) for n in contracting if n != node.name])
    depth = self_depth + depth_below
    deepest = limits.depth if met else limits.weights_depth
    if count <= limits.contractions and depth <= deepest + (limits.within if depth_below == 0 else 0):
      cuts[Cut(leaves, nodes, count, depth)] = None
  return tuple(cuts), too_large


def _unions(
  choices: Sequence[Sequence[Cut]], limits: Limits, leaves: int
) -> tuple[list[tuple[frozenset[str], frozenset[str], int]], bool]:
  """A cut of every operand, joined, within the limits: leaves, nodes and depth; whether some are too large.

  ``leaves``: at most so many, of which attention, or what writes its cache, may have many itself.
  """
  found, too_large = [(frozenset[str](), frozenset[str](), 0)], False
  for options in choices:
    distinct = dict[tuple[frozenset[str], frozenset[str], int], None]()
    for (a_leaves, a_nodes, a_depth), b in product(found, options):
      # Of the first operand as they are: nothing is copied, and their hashes are known.
      joined = a_leaves | b.leaves if a_leaves else b.leaves
      if len(joined) > leaves:
        continue
      nodes = a_nodes | b.nodes if a_nodes else b.nodes
      if len(nodes) >= limits.nodes:
        too_large = True
        continue
      distinct[joined, nodes, a_depth if a_depth > b.depth else b.depth] = None
      if len(distinct) == MOST_UNIONS:
        break
    found = list(distinct)
  return found, too_large


def meets(graph: Graph, nodes: frozenset[str]) -> bool:
  """Whether two activations are contracted."""
  return not nodes & graph.contracting <= graph.contracting_weights


def _feeds(graph: Graph, cut: Cut, limits: Limits, tensor: str) -> bool:
  """Whether every contraction of the cone is small enough to be computed in front of another.

  One of two activations may be: blocks share out the axes (heads, rows) that both have. What
  ``tensor``, which the other one reads, has no part of is not computed.
  """
  sliced = any(s.op in SLICING for n in cut.nodes for s in graph.node[n].steps)
  least = (graph.program.numbers(tensor) or (1,))[-1:] if sliced else ()
  for name in cut.nodes:
    if graph.contractions(name) and graph.contracts_weight(name):
      shape = graph.program.numbers(graph.node[name].outputs[0]) or (1,)
      if min((shape[-1], *least)) > limits.inner_columns:
        return False
  return True


def _best(graph: Graph, cuts: tuple[Cut, ...], limits: Limits) -> tuple[Cut, ...]:
  """Priority cuts: per number of contractions those with the fewest leaf elements per node.

  The one with the fewest nodes is kept, too: it is the only way to some others. Of those that
  differ by views only, the one with most of them stays: it is the same kernel. Where activations
  are contracted, half of those with the fewest nodes that compute: cones that took all that feeds
  a softmax leave no room for what reads it. The first of these that reads no product with a weight is
  kept, too: what is behind such a product (a bias) is for nothing in that one's kernel, and a scale and the
  turning of keys have no other place than here (ViT-base: 12 times 12 us of nodes, and keys in rows
  that no copy takes 16 bytes of). A cone that picks its rows itself is kept beside the one that reads them
  picked, and takes the place of no other.
  """

  def rank(cut: Cut) -> tuple[float, int, tuple[str, ...]]:
    border = sum(graph.elements(x) for x in cut.leaves)
    border += sum(graph.elements(graph.node[n].outputs[0]) for n in cut.nodes & graph.embeddings)
    size = len(cut.nodes - graph.moves)
    return (border / max(size, 1), -size, tuple(sorted(cut.leaves)))

  def kernel(cut: Cut) -> frozenset[str]:
    """What of a cone decides about its kernel, of which moves are views."""
    return cut.nodes - graph.embeddings - graph.moves

  kept: list[list[Cut]] = []
  for count in sorted({c.contractions for c in cuts}):
    alike: dict[frozenset[str], list[Cut]] = {}
    for cut in sorted((c for c in cuts if c.contractions == count), key=rank):
      alike.setdefault(kernel(cut), []).append(cut)
    ranked, most = list(alike.items()), limits.kept_per_contractions
    if len(ranked) > most and meets(graph, ranked[0][0]):
      few = sorted(ranked[most // 2 :], key=lambda own: len(own[0]))
      ranked[most // 2 :] = few
    kept += [same for _, same in ranked[:most]]
    least = min(ranked, key=lambda own: len(own[0]))
    if least not in ranked[:most]:
      kept.append(least[1])
    if limits.sums_apart and meets(graph, ranked[0][0]):
      kept += _sums_apart(graph, alike, kept, limits)
  return tuple(dict.fromkeys(cut for same in kept[: limits.kept] for cut in _ends(graph, same, limits)))


def _sums_apart(
  graph: Graph, alike: Mapping[frozenset[str], list[Cut]], kept: Sequence[list[Cut]], limits: Limits
) -> list[list[Cut]]:
  """The first cones with one kernel, by rank, that read no product with a weight, unless they are kept.

  They compute no more that others read than a region may: in front of its products, for what is behind them
  is read by the cone that it is for.
  """

  def is_apart(cut: Cut) -> bool:
    makers = (graph.producer[x].name for x in cut.leaves if x in graph.producer)
    return graph.contracting_weights.isdisjoint(makers) and again(cut) <= limits.again_meeting

  def again(cut: Cut) -> int:
    first = min(graph.order[n] for n in cut.nodes & graph.contracting)
    before = (n for n in cut.nodes if graph.order[n] < first)
    readers = (set(graph.consumers.get(o, ())) for n in before for o in graph.node[n].outputs)
    return sum(bool(own & cut.nodes) and bool(own - cut.nodes) for own in readers)

  own = ([cut for cut in same if is_apart(cut)] for same in alike.values())
  first = next(filter(None, own), None)
  return [first] if first and not any(first[0] in same for same in kept) else []


def _ends(graph: Graph, same: Sequence[Cut], limits: Limits) -> list[Cut]:
  """Of cones with one kernel those with most nodes: that pick no rows themselves, and most of them.

  The one with the fewest is kept, too, where that is asked: somebody else may yield what is moved.
  """
  by_picks: dict[frozenset[str], Cut] = {}
  for cut in same:
    picked = cut.nodes & graph.embeddings
    if picked not in by_picks or len(cut.nodes) > len(by_picks[picked].nodes):
      by_picks[picked] = cut
  own = sorted(by_picks.items(), key=lambda x: len(x[0]))
  found = [own[0][1], own[-1][1]]
  return [*found, min(same, key=lambda cut: len(cut.nodes))] if limits.fewest else found
