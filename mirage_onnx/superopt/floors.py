"""Floors: what no kernel and no rest of a plan can cost less than, by the cost model.

Tensors are moved at the full rate of the memory and contractions run at the full rate of the tensor
cores; a kernel has its launch. Streaming and row kernels (``cost/model.py``) add to this. A kernel that can
only be tiled takes what the formula of thread graphs says of the best that there could be (``least_us``),
which computes every element of its values once.
"""

from collections.abc import Iterable
from fractions import Fraction
from math import ceil, inf, prod

from mirage_onnx.cost.kernel_time import least_us
from mirage_onnx.cost.model import LATENCY_US
from mirage_onnx.instructions import fastest_of_warps
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.term import MUL, POW, SUM
from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.superopt.choices import Place
from mirage_onnx.superopt.derive import Derivation
from mirage_onnx.superopt.egraph import COPY, PSCALED, PSUM, SCALED, ENode, is_part, reachable
from mirage_onnx.superopt.roles import KernelRoles
from mirage_onnx.superopt.saturated import Saturated
from mirage_onnx.target import Target

#: Functions of the special function unit, and powers that are.
SPECIAL = frozenset(op for op, f in ELEMENTWISE.items() if f.price is not Price.LANE)
ROOTS = (-1, Fraction(1, 2), Fraction(-1, 2))
#: The smallest tile of an axis whose reduction is split.
PART_TILE = 32
#: How much more kernels with contractions take that can only be tiled, with their best numbers, than the best
#: that there could be: of 3800 of six searches (H200) the median is 2.3, 95 % took 1.3 times as long and more.
#: Of 11 programs the best were the same with 1, 1.3 and 1.6, of 5238, 4271 and 3711 kernels that were built.
NEAR = 1.6


class Floors:
  """The floors of one search."""

  def __init__(self, saturated: Saturated, target: Target) -> None:
    self._region, self._target = saturated, target
    self._rest: dict[frozenset[int], float] = {}
    self._inputs: dict[int, frozenset[int]] = {}
    #: Operations of contractions by class, once somebody asks.
    self._contracted: dict[int, int] | None = None
    self._program: dict[tuple[object, ...], float] = {}
    #: Class, whether as an input -> bytes of its tensor.
    self._known_bytes: dict[tuple[int, bool], int] = {}

  def kernel_us(self, classes: tuple[int, ...], roles: KernelRoles, derivation: Derivation) -> float:
    """Any kernel of this derivation: it moves its tensors, does its contractions and its elementwise work."""
    region, busy = self._region, self._busy(roles)
    loads = {c for (c, _), choice in derivation.items() if choice.kind in ("load", "read")}
    moved = sum(self._bytes(c, is_input=c in region.inputs) for c in loads)
    moved += sum(map(self._bytes, classes))
    flops, lanes, special = 0, 0, 0
    for place, choice in derivation.items():
      if choice.kind in ("contract", "rescale") and choice.axis:
        axes = {*roles.axes_in_block(region.graph.axes(place[0])), choice.axis, *roles.parts}
        flops += 2 * prod(region.extents[a] for a in axes)
      elif choice.kind == "pure" and choice.node.op != COPY:
        if choice.node.op in SPECIAL or (choice.node.op == POW and choice.node.attr in ROOTS):
          special += self._elements(place)
        else:
          lanes += self._elements(place)
      elif choice.weight and (choice.kind == "acc" or not choice.axis):
        lanes += self._elements(choice.needs[0])
    saved = sum(self._elements((c, Phase.POST)) for c in classes)
    tiled_us = least_us(moved, saved, flops, lanes, special, busy, self._target)
    if self._is_tiled(roles, derivation):
      return tiled_us * (NEAR if flops else 1.0)
    return min(tiled_us, self._us(moved, flops, busy))

  def _elements(self, place: Place) -> int:
    extents = self._region.extents
    return prod(extents[a] for a in self._region.graph.axes(place[0]) if not is_part(a))

  def _is_tiled(self, roles: KernelRoles, derivation: Derivation) -> bool:
    """Whether no streaming and no row kernel has these values (``lower/layouts.py``)."""
    axes_of = self._region.graph.axes
    if roles.loop is None:
      return any(c.axis for c in derivation.values() if c.kind in ("contract", "rescale"))
    return any(
      phase is Phase.LOOP
      and choice.kind in ("pure", "load", "read")
      and len(set(roles.axes_in_block(axes_of(c))) - {roles.loop}) > 1
      for (c, phase), choice in derivation.items()
    )

  def _busy(self, roles: KernelRoles) -> float:
    """The share of the multiprocessors that the most blocks of a grid can fill."""
    target, extents = self._target, self._region.extents
    blocks = prod(ceil(extents[a] / PART_TILE) if a in roles.parts else extents[a] for a in roles.grid)
    if roles.loop is not None and target.has_clusters:
      blocks *= target.max_cluster
    return min(1.0, blocks / target.multiprocessors)

  def program_us(self, classes: tuple[int, ...], reads: frozenset[int], loads: frozenset[int]) -> float:
    """A kernel that computes ``classes`` from these, maybe from more, and what makes ``reads``.

    To read or load more costs no less: every input is read at least once.
    """
    key = classes, reads, loads
    if key not in self._program:
      under = self._under(reads)
      moved = sum(self._bytes(c) for c in (*classes, *reads, *reads))
      inputs = (*self._under(classes), *(loads & under))
      moved += sum(self._bytes(c, is_input=True) for c in inputs)
      launch_us = self._target.launch_us * (1 if reads else 0)
      self._program[key] = launch_us + self._kernels_us(moved, ())
    return self._program[key]

  def _under(self, classes: Iterable[int]) -> frozenset[int]:
    """The inputs that some spelling of these mentions."""
    for c in classes:
      if c not in self._inputs:
        found = reachable(self._region.graph, (c,))
        self._inputs[c] = frozenset(i for i in self._region.inputs if i in found)
    return frozenset().union(*(self._inputs[c] for c in classes))

  def rest_us(self, missing: frozenset[int]) -> float:
    """Making all of ``missing``: a launch, the inputs under it read and it written once."""
    if not missing:
      return 0.0
    if missing not in self._rest:
      moved = sum(self._bytes(c, is_input=True) for c in self._under(missing))
      moved += sum(map(self._bytes, missing))
      self._rest[missing] = self._kernels_us(moved, missing)
    return self._rest[missing]

  def _kernels_us(self, moved: int, classes: Iterable[int]) -> float:
    """Any kernels that compute classes from inputs: one that did all of it would take no more."""
    if self._contracted is None:
      self._contracted = self._contractions()
    flops = max((self._contracted.get(self._region.graph.find(c), 0) for c in classes), default=0)
    if flops:
      return least_us(moved, 0, flops, 0, 0, 1.0, self._target) * NEAR
    return min(self._us(moved, 0, 1.0), least_us(moved, 0, 0, 0, 0, 1.0, self._target))

  def _contractions(self) -> dict[int, int]:
    """Of each class the operations of contractions of activations that no spelling of it does without.

    Those on the way to one input: what several share is done once. Only tiled kernels have such contractions.
    """
    g, region = self._region.graph, self._region
    weights = {c for c, t in region.inputs.items() if t.streamed}
    active = {c for c in g.classes() if not reachable(g, (c,)).isdisjoint(region.inputs.keys() - weights)}
    own = {(c, n): self._contraction(n, active) for c in g.classes() for n in g.nodes(c)}
    found = dict.fromkeys(region.inputs, 0)
    changed = True
    while changed:
      changed = False
      for (c, n), flops in own.items():
        children = [g.find(k) for k in n.children]
        if all(k in found for k in children):
          least = flops + max((found[k] for k in children), default=0)
          if least < found.get(c, inf):
            found[c], changed = least, True
    return found

  def _contraction(self, node: ENode, active: set[int]) -> int:
    """Operations of a sum of products, none of whose factors has all axes or is made of weights alone."""
    if node.op not in (SUM, PSUM, SCALED, PSCALED):
      return 0
    g = self._region.graph
    summed, axes = node.children[0], set(g.axes(node.children[0]))
    for product in g.nodes(summed):
      factors = [g.find(f) for f in product.children if set(g.axes(f)) & set(node.over)]
      if product.op != MUL or not all(set(g.axes(f)) < axes and f in active for f in factors):
        return 0
    return 2 * prod(self._region.extents[a] for a in axes if not is_part(a))

  def _us(self, moved: int, flops: int, busy: float) -> float:
    target = self._target
    memory_us = moved / (target.stream_tbps * 1e6 * busy)
    compute_us = flops / (target.mma_tflops * fastest_of_warps((), target).share * 1e6 * busy)
    work = max(memory_us, compute_us)
    return target.launch_us + max(1.25 * LATENCY_US, work + min(target.ramp_us, 0.25 * work))

  def _bytes(self, c: int, *, is_input: bool = False) -> int:
    """Of the tensor of a class."""
    key = c, is_input
    if key not in self._known_bytes:
      tensor = self._region.inputs[c] if is_input else self._region.tensor(c)
      # How many parts there are is not known yet: one at least.
      axes = (self._region.extents[a] for a in tensor.axes if not is_part(a))
      self._known_bytes[key] = tensor.dtype.bytes_of(prod(axes)) // tensor.repeat
    return self._known_bytes[key]
