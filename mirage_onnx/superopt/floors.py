"""Floors: what no kernel and no rest of a plan can cost less than, by the cost model.

Tensors are moved at the full rate of the memory and contractions run at the full rate of the tensor
cores; a kernel has its launch. Both cost models (``cost/model.py``, ``cost/tiled.py``) add to this. A
kernel that can only be tiled also computes every element of its values once, in the lanes of all
multiprocessors (``lane_us``).
"""

from collections.abc import Iterable
from math import ceil, prod

from mirage_onnx.cost.model import LATENCY_US
from mirage_onnx.cost.tiled import SPECIALS
from mirage_onnx.cost.tiled_block import REDUCE_OPERATIONS, SPECIAL
from mirage_onnx.instructions import fastest_of_warps
from mirage_onnx.ir.term import POW
from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.superopt.choices import Place
from mirage_onnx.superopt.derive import Derivation
from mirage_onnx.superopt.egraph import COPY, is_part, reachable
from mirage_onnx.superopt.roles import KernelRoles
from mirage_onnx.superopt.saturated import Saturated
from mirage_onnx.target import Target

#: The smallest tile of an axis whose reduction is split.
PART_TILE = 32


class Floors:
  """The floors of one search."""

  def __init__(self, saturated: Saturated, target: Target) -> None:
    self._region, self._target = saturated, target
    self._rest: dict[frozenset[int], float] = {}
    self._inputs: dict[int, frozenset[int]] = {}
    self._program: dict[tuple[object, ...], float] = {}
    #: Class, whether as an input -> bytes of its tensor.
    self._known_bytes: dict[tuple[int, bool], int] = {}
    self._known_elements: dict[int, int] = {}

  def kernel_us(self, classes: tuple[int, ...], roles: KernelRoles, derivation: Derivation) -> float:
    """Any kernel of this derivation: it moves its tensors and does its contractions."""
    region = self._region
    loads = {c for (c, _), choice in derivation.items() if choice.kind in ("load", "read")}
    moved = sum(self._bytes(c, is_input=c in region.inputs) for c in loads)
    moved += sum(map(self._bytes, classes))
    flops = 0
    for (c, _), choice in derivation.items():
      if choice.kind in ("contract", "rescale") and choice.axis:
        axes = {*roles.axes_in_block(region.graph.axes(c)), choice.axis, *roles.parts}
        flops += 2 * prod(region.extents[a] for a in axes)
    return self._us(moved, flops, self._busy(roles))

  def lane_us(self, roles: KernelRoles, derivation: Derivation) -> float:
    """Any kernel of this derivation: its elementwise work and reductions, if it is tiled.

    0 where a streaming or row kernel may compute the same.
    """
    if not self.is_tiled(roles, derivation):
      return 0.0
    target, cycles = self._target, 0.0
    lanes = float(target.lanes)
    halves = set[Place]()
    for place, choice in derivation.items():
      if choice.kind == "pure" and choice.node.op != COPY:
        node = choice.node
        special = node.op in SPECIAL or (node.op == POW and node.attr != 2)
        cycles += self._elements(place) / (SPECIALS if special else lanes)
      elif choice.weight and (choice.kind == "acc" or not choice.axis):
        cycles += REDUCE_OPERATIONS * self._elements(choice.needs[0]) / lanes
      elif choice.weight:
        halves.update(choice.needs[:2])
    computed = (p for p in halves if derivation[p].kind == "pure")
    cycles += sum(map(self._elements, computed)) / lanes
    busy = target.multiprocessors * self._busy(roles)
    # Blocks are not in whole rounds: ``cost.tiled.fill_of`` forgives a twentieth of one.
    work_us = cycles / (target.cycles_per_us * busy * 1.05)
    return target.launch_us + work_us + min(target.ramp_us, 0.25 * work_us)

  def _elements(self, place: Place) -> int:
    c, region = place[0], self._region
    if c not in self._known_elements:
      self._known_elements[c] = prod(region.extents[a] for a in region.graph.axes(c) if not is_part(a))
    return self._known_elements[c]

  def is_tiled(self, roles: KernelRoles, derivation: Derivation) -> bool:
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
      work_us = moved / (self._target.stream_tbps * 1e6)
      launch_us = self._target.launch_us * (2 if reads else 1)
      ramp_us = min(self._target.ramp_us, 0.25 * work_us)
      self._program[key] = launch_us + work_us + ramp_us
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
      self._rest[missing] = self._us(moved, 0, 1.0)
    return self._rest[missing]

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
