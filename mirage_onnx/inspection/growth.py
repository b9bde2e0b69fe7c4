"""Where a region stopped growing: for every neighbour, the reason why it is not inside.

The matcher enumerates cones within ``Limits``. Here the region of one cone and one neighbour more
is put to the same conditions, one after the other, and the first that it breaks is the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mirage_onnx.cost.region_work import REDUCING
from mirage_onnx.errors import Rejection
from mirage_onnx.inspection.survey import Survey
from mirage_onnx.ir.program import Node
from mirage_onnx.match.candidates import RegionCandidate, candidate
from mirage_onnx.match.cuts import PREDICTED, Limits, meets
from mirage_onnx.match.graph import Graph
from mirage_onnx.match.repeated import RegionMaker


@dataclass(frozen=True, slots=True)
class Border:
  """The border of a region at ``tensor``: what lies beyond, and why it is not inside.

  ``node`` is None where the model itself ends.
  """

  tensor: str
  is_input: bool
  node: str | None
  rejection: Rejection


def borders(survey: Survey, instance: RegionCandidate, limits: Limits | None = None) -> list[Border]:
  """Every neighbour of ``instance``: of its inputs that are no weights, then of its outputs."""
  growth = _Growth(survey, instance, limits or PREDICTED)
  program = survey.program
  maker = {o: n.name for n in program.nodes for o in n.outputs if o}
  readers = program.consumers()
  found = []
  region = instance.region
  for i in (i for i in region.reads if i not in program.weights):
    if i in maker:
      found.append(Border(i, True, maker[i], growth.reason(maker[i])))
    else:
      found.append(Border(i, True, None, _graph_border(i, "input")))
  for o in dict.fromkeys(o.source.name for o in region.outputs):
    if o in program.outputs:
      found.append(Border(o, False, None, _graph_border(o, "output")))
    outside = (r for r in readers.get(o, ()) if r not in instance.nodes)
    found += [Border(o, False, r, growth.reason(r)) for r in outside]
  return found


def _graph_border(tensor: str, kind: str) -> Rejection:
  return Rejection("GRAPH_BORDER", f"{tensor} is an {kind} of the model")


@dataclass(frozen=True)
class _Growth:
  survey: Survey
  instance: RegionCandidate
  limits: Limits

  @cached_property
  def _nodes(self) -> Mapping[str, Node]:
    return {n.name: n for n in self.survey.program.nodes}

  @cached_property
  def _alone(self) -> Mapping[str, Rejection]:
    """Nodes that are in no region, with their reason."""
    return {n: r for r in self.survey.matches.rejections for n in r.nodes}

  def reason(self, neighbour: str) -> Rejection:
    """Why ``neighbour`` is not in the region."""
    alone = self._alone.get(neighbour)
    if alone is not None and alone.code != "TOO_SMALL":
      return Rejection(alone.code, alone.reason, (neighbour,))
    wider = self.instance.nodes | {neighbour}
    code, why = self._larger(wider) or self._limit(wider) or self._refusal(wider, neighbour)
    return Rejection(code, why, (neighbour,))

  def _larger(self, wider: frozenset[str]) -> tuple[str, str] | None:
    survey = self.survey
    holding = [c.region.key for c in survey.matches.candidates if wider <= c.nodes]
    if not holding:
      return None
    offers = survey.offers
    best = max(holding, key=lambda k: (bool(offers[k].chosen), offers[k].gain_us))
    mine = offers[self.instance.region.key]
    return "LARGER_OFFERED", (
      f"region {best} holds it too and may save {offers[best].gain_us:.2f} us, this one "
      f"{mine.gain_us:.2f} us; regions are chosen together"
    )

  def _limit(self, wider: frozenset[str]) -> tuple[str, str] | None:
    """The first bound of one cone that ``wider`` breaks."""
    bounds = self.limits
    for name in wider:
      if (count := len(self._nodes[name].outputs)) != 1:
        return "CONE_LIMIT", f"{name} has {count} outputs, a node of a region has one"
    repeated = self._repeated(wider)
    if repeated is not None:
      name, columns = repeated
      return "CONE_LIMIT", (
        f"every block would compute the {columns} columns of {name} again, {bounds.inner_columns} are allowed"
      )
    measures = {
      "contractions": (sum(map(self._contractions, wider)), bounds.contractions),
      "reductions one after the other": (max(self._depths(wider).values()), self._depth(wider)),
      "nodes": (len(wider), bounds.nodes),
      "inputs besides weights": (len(self._leaves(wider)), bounds.leaves),
    }
    for what, (count, most) in measures.items():
      if count > most:
        return "CONE_LIMIT", f"{count} {what}, a region has at most {most}"
    return None

  def _refusal(self, wider: frozenset[str], neighbour: str) -> tuple[str, str]:
    """Why ``wider`` has no canonical form, or that better cones were kept."""
    below = set(self._nodes[neighbour].operands) & self.instance.outputs
    outputs = frozenset(self._nodes[neighbour].outputs) if below else self.instance.outputs
    found = candidate(RegionMaker(self.survey.program), wider, outputs)
    if isinstance(found, Rejection):
      return found.code, found.reason
    return "CUT_PRUNED", (
      "cones with less traffic per node were kept instead of the one with this node, or a "
      "border of it would lie inside a chain of elementwise operations"
    )

  def _leaves(self, nodes: frozenset[str]) -> set[str]:
    made = {o for n in nodes for o in self._nodes[n].outputs}
    fixed = self.survey.program.weights | set(self.survey.program.constants)
    return {i for n in nodes for i in self._nodes[n].operands} - made - fixed

  def _depth(self, wider: frozenset[str]) -> int:
    """How deep such a region may be."""
    deep = meets(Graph(self.survey.program), wider)
    return self.limits.depth if deep else self.limits.weights_depth

  def _contractions(self, name: str) -> int:
    return sum(s.op == "matmul" for s in self._nodes[name].steps)

  def _parents(self, name: str, inside: frozenset[str]) -> list[str]:
    made = {o: n for n in inside for o in self._nodes[n].outputs}
    return [made[i] for i in self._nodes[name].operands if i in made]

  def _depths(self, nodes: frozenset[str]) -> dict[str, int]:
    """Node -> reductions and contractions on the longest path that ends with it."""
    depth: dict[str, int] = {}
    for node in self.survey.program.nodes:
      if node.name in nodes:
        own = sum(s.op in ("matmul", *REDUCING) for s in node.steps)
        before = (depth[p] for p in self._parents(node.name, nodes))
        depth[node.name] = own + max(before, default=0)
    return depth

  def _repeated(self, nodes: frozenset[str]) -> tuple[str, int] | None:
    """A contraction in front of another one that has too many columns for that."""
    wide: dict[str, tuple[str, int] | None] = {}
    for node in self.survey.program.nodes:
      if node.name not in nodes:
        continue
      above = [w for p in self._parents(node.name, nodes) if (w := wide[p]) is not None]
      wide[node.name] = above[0] if above else None
      if self._contractions(node.name):
        if above:
          return above[0]
        shape = self.survey.program.tensors[node.outputs[0]].shape or (1,)
        if isinstance(shape[-1], int) and shape[-1] > self.limits.inner_columns:
          wide[node.name] = node.name, shape[-1]
    return None
