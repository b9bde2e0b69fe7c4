"""What could be fused in a model and what that would bring, without a search and without a GPU.

Every candidate of the matcher is priced at its roofline floor, and the partition is chosen as if
kernels ran that fast: its gain is an upper bound of what ``optimize`` can save with these regions.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum

from mirage_onnx.choosing.disappearing import shares
from mirage_onnx.choosing.partition import choose
from mirage_onnx.cost.region_work import Flops, Work, count_flops, region_work, tensor_bytes
from mirage_onnx.importer import LoadedModel, import_model
from mirage_onnx.ir import Program, Region
from mirage_onnx.match.candidates import Matches, RegionCandidate, find_candidates
from mirage_onnx.match.cuts import PREDICTED
from mirage_onnx.target import Target
from mirage_onnx.tune.baseline import COPIES, FREE, alone_us, load_table, node_times_us, with_floors
from mirage_onnx.tune.declared_sizes import Sizes, declared_sizes
from mirage_onnx.tune.dynamic import Dynamic
from mirage_onnx.tune.known_sizes import Unpredicted, unpredicted_at

#: Other operators that compute nothing with numbers.
MOVES = frozenset({
  "Cast", "Constant", "ConstantOfShape", "DepthToSpace", "EyeLike", "GatherElements", "GatherND", "Pad",
  "Range", "ScatterElements", "ScatterND", "Shape", "Size", "SpaceToDepth", "Tile", "Transpose",
})  # fmt: skip

#: The time that the choice may take, at least and by the nodes of the program. Layers of real models are
#: proven the best within; where it is over, the best that is known is shown.
LEAST_CHOICE_S, CHOICE_S_PER_NODE = 1.0, 2e-3


@dataclass(frozen=True, slots=True)
class Offer:
  """One distinct region that the matcher offers.

  ``instances``: all cones of the model with this canonical form; ``chosen``: those in the
  partition. ``ort_us``: what the nodes of one instance cost in ONNX Runtime. ``saved_us``: what
  of that goes if all of the partition is replaced, for the chosen instances together; the time of
  a node that several regions compute is shared out among them. ``unknown``: nodes of an instance
  without a known time, which are in neither.
  """

  instances: tuple[RegionCandidate, ...]
  chosen: tuple[RegionCandidate, ...]
  work: Work
  floor_us: float
  ort_us: float
  saved_us: float
  unknown: int = 0

  @property
  def region(self) -> Region:
    """Of the first chosen instance, or of the first one."""
    return (self.chosen or self.instances)[0].region

  @property
  def gain_us(self) -> float:
    """The most that one instance can save by itself."""
    return self.ort_us - self.floor_us

  @property
  def total_gain_us(self) -> float:
    """The most that the chosen instances save together, beside the rest of the partition."""
    return self.saved_us - len(self.chosen) * self.floor_us


@dataclass(frozen=True, slots=True)
class Barrier:
  """Nodes that no region can hold for one reason: by operator, with the first one's sentence."""

  code: str
  ops: Mapping[str, int]
  reason: str
  nodes: tuple[str, ...]


@dataclass(frozen=True)
class Survey:
  """``offers`` by region key, those with the most gain in the partition first.

  ``program``: at ``typical`` sizes; ``dynamic`` knows of others. ``unpredicted``: why no prediction
  can choose some regions. ``sizes``: of each dynamic dimension, those at which a kernel has to be faster.
  ``bounded_us``: of nodes without a known time, what moving their bytes takes.
  """

  program: Program
  matches: Matches
  node_us: Mapping[str, float]
  offers: Mapping[str, Offer]
  dynamic: Dynamic | None = None
  unpredicted: Unpredicted = field(default_factory=Unpredicted)
  sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
  typical: Sizes = field(default_factory=dict)
  bounded_us: Mapping[str, float] = field(default_factory=dict)

  @cached_property
  def op_type(self) -> dict[str, str]:
    return {n.name: n.op_type for n in self.program.nodes}

  @cached_property
  def chosen(self) -> tuple[RegionCandidate, ...]:
    return tuple(c for o in self.offers.values() for c in o.chosen)

  @cached_property
  def covered(self) -> frozenset[str]:
    """Nodes in regions of the partition."""
    return frozenset(n for c in self.chosen for n in c.nodes)

  @cached_property
  def offered(self) -> frozenset[str]:
    """Nodes in any candidate."""
    return frozenset(n for c in self.matches.candidates for n in c.nodes)

  @cached_property
  def saved_us(self) -> float:
    """What the nodes cost in ONNX Runtime that nobody would need any more."""
    return sum(o.saved_us for o in self.offers.values())

  @cached_property
  def floor_us(self) -> float:
    return sum(len(o.chosen) * o.floor_us for o in self.offers.values())

  @cached_property
  def barriers(self) -> tuple[Barrier, ...]:
    """By code, the most frequent first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for r in self.matches.rejections:
      groups.setdefault(r.code, []).extend((n, r.reason) for n in r.nodes)
    found = [
      Barrier(
        code, Counter(self.op_type[n] for n, _ in same), same[0][1],
        tuple(n for n, _ in same),
      )
      for code, same in groups.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda b: (-len(b.nodes), b.code)))

  def time_us(self, nodes: Iterable[str]) -> float:
    """What those of ``nodes`` whose times are known cost in ONNX Runtime."""
    return fsum(self.node_us.get(n, 0.0) for n in nodes)

  @cached_property
  def model_us(self) -> float:
    """What the whole model costs, as ``tune/model_times.py`` counts it: by bytes where that is all."""
    times = self.program.repeats
    return fsum(us * times.get(n, 1) for n, us in {**self.node_us, **self.bounded_us}.items())

  def flops(self, nodes: Iterable[str] | None = None) -> Flops:
    """Operations of ``nodes`` (default: all that were lowered), each node once."""
    wanted = None if nodes is None else set(nodes)
    total = Flops()
    for node in self.program.nodes:
      if wanted is None or node.name in wanted:
        total += count_flops(node.steps, self.program.tensors)
    return total

  @cached_property
  def flops_unknown(self) -> Counter[str]:
    """Operators that were not lowered and compute: type -> nodes whose operations nobody counted."""
    left = (n for n in self.program.nodes if n.barrier is not None and not n.steps)
    return Counter(n.op_type for n in left if n.op_type not in FREE | COPIES | MOVES)

  def weight_bytes(self, nodes: Iterable[str] | None = None) -> int:
    """Bytes of the weights that ``nodes`` (default: all) read, each tensor once."""
    wanted = None if nodes is None else set(nodes)
    read = {i for node in self.program.nodes if wanted is None or node.name in wanted for i in node.inputs}
    return sum(tensor_bytes(self.program.tensors[i]) for i in read & self.program.weights)


def survey_model(
  loaded: LoadedModel,
  target: Target,
  margin: float = 0.2,
  shapes: Mapping[str, Sequence[int]] | None = None,
) -> Survey:
  """What can be fused in ``loaded`` on ``target``, at typical sizes; takes seconds.

  ``shapes``: sizes of dynamic dimensions by name, instead of ``declared_sizes.DEFAULT``.

  Raises:
      MirageError: OPTION_INVALID for a name that the model does not have.
  """
  named = import_model(loaded)
  declared, table = declared_sizes(named, shapes or {}), load_table(target)
  matches = find_candidates(named, PREDICTED, declared.typical)

  def times(sizes: Sizes) -> dict[str, float]:
    return node_times_us(named.sized(sizes), table) if table else {}

  dynamic, node_us = Dynamic(named, declared, times, target, margin), times(declared.typical)
  program = named.sized(declared.typical)
  groups: dict[str, list[int]] = {}
  for i, c in enumerate(matches.candidates):
    groups.setdefault(c.region.key, []).append(i)
  work = {k: region_work(matches.candidates[same[0]].region) for k, same in groups.items()}
  floor = {k: w.floor_us(target) for k, w in work.items()}
  prices = [floor[c.region.key] for c in matches.candidates]
  until = time.monotonic() + max(LEAST_CHOICE_S, CHOICE_S_PER_NODE * len(program.nodes))
  alone = alone_us(program, target)
  picked = set(choose(program, matches.candidates, prices, node_us, alone, until))
  share_us = shares(program, [matches.candidates[i] for i in picked], node_us)
  offers = []
  for key, same in groups.items():
    instances = tuple(matches.candidates[i] for i in same)
    chosen = tuple(matches.candidates[i] for i in same if i in picked)
    ort_us = max(fsum(node_us.get(n, 0.0) for n in c.nodes) for c in instances)
    saved_us = fsum(share_us.get(n, 0.0) for c in chosen for n in c.nodes)
    unknown = sum(n not in node_us for n in instances[0].nodes)
    offers.append(Offer(instances, chosen, work[key], floor[key], ort_us, saved_us, unknown))
  offers.sort(key=lambda o: (not o.chosen, -o.total_gain_us, -o.gain_us, o.region.key))
  why = unpredicted_at(named, declared.points, target)
  offered = {o.region.key: o for o in offers}
  every = with_floors(node_us, program, target) if node_us else {}
  bounded = {n: us for n, us in every.items() if n not in node_us}
  return Survey(program, matches, node_us, offered, dynamic, why, declared.sizes, declared.typical, bounded)
