"""Blocks whose copies are made by a warpgroup of its own, for warpgroups that work on one tile in turns.

Where all warps copy, all of them meet in every iteration, and tensor cores wait until the last has come and
started its copies. With a warpgroup that only copies nobody has to meet: warpgroups that compute are as far
apart as the ring is long, and one multiplies while another does the rest of its iteration. Copies are of 16
bytes (``cp.async``), so tensors may lie as they like; where the copy engine can be told of them, and products
are all that a loop does, ``feed.py`` has blocks of another kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.ugraph import KernelParams, KTensor, UGraph
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.shared import in_chunks
from mirage_onnx.lower.smem_plan import MemoryPlan
from mirage_onnx.lower.tensor_view import TensorView
from mirage_onnx.target import Target

#: Registers of a thread that copies; what they are multiples of; the most that one has.
_COPYING, _STEP, _MOST = 40, 8, 240
#: Steps that a warpgroup does for itself.
_ALONE = (
  do.Advance, do.Contract, do.Fetch, do.Fold, do.Meet, do.Pack, do.Read, do.Store, do.ThreadRun, do.Update,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RingFeed:
  """``warps`` compute. ``registers``: of who copies, of who computes. ``barriers``: their first byte.

  ``read``: lanes read tiles of the ring, too, and not only products do.
  """

  warps: int
  registers: tuple[int, int]
  barriers: int
  read: bool
  teams: int = 1
  sharing: int = 1

  @property
  def threads(self) -> int:
    """Of a block."""
    return 32 * (self.warps + WGMMA.warps)


def ring_feed(
  graph: UGraph, params: KernelParams, lowering: Lowered, memory: MemoryPlan, target: Target
) -> RingFeed:
  """How such a block is fed.

  Raises:
      RejectionError: LAYOUT, warps exchange values, or copies are not all of 16 bytes.
  """
  if reason := _broken(params, lowering, memory, {t.name: t for t in graph.tensors}):
    raise RejectionError("LAYOUT", f"{graph.kernels[0].name} is not fed by warps of its own: {reason}")
  registers = _COPYING, _registers(params.warps, target)
  return RingFeed(params.warps, registers, memory.size, _lanes_read(lowering))


def ring_barrier_bytes(stages: int) -> int:
  """Full and free for every tile, one for what is no ring, and a vote: its barrier, a byte a warp."""
  return 16 * (stages + 2)


def _lanes_read(lowering: Lowered) -> bool:
  ops = lowering.ops
  return any(
    a in lowering.ring and not (index in lowering.warpgroup and a == op.args[1])
    for index, op in enumerate(ops)
    for a in op.args
  )


def _registers(warps: int, target: Target) -> int:
  """Of a thread that computes, when those that copy have given back theirs."""
  threads, copying = 32 * (warps + WGMMA.warps), 32 * WGMMA.warps
  launched = target.registers_per_sm // threads // _STEP * _STEP * threads
  return min(_MOST, (launched - _COPYING * copying) // (32 * warps) // _STEP * _STEP)


def _broken(
  params: KernelParams, lowering: Lowered, memory: MemoryPlan, tensors: Mapping[str, KTensor]
) -> str:
  """What is not so as it has to be; "" if nothing is."""
  inside = [s.index for s in memory.graph.body if isinstance(s, do.Contract)]
  if not inside or not set(inside) <= lowering.warpgroup:
    return "not all products are wgmma's"
  if params.teams != 1 or params.sharing != 1 or lowering.ranks > 1:
    return "there are teams, or ranks"
  if not lowering.ring or lowering.stages < 2:
    return "there is no ring"
  if lowering.under_way or lowering.widened:
    return "products are under way, or weights are packed"
  if memory.early or any(isinstance(s, do.Copy) for s in memory.graph.after):
    return "copies are behind the loop"
  before = memory.graph.before
  waits = [n for n, s in enumerate(before) if isinstance(s, do.ThreadBarrier)]
  copied = [n for n, s in enumerate(before) if isinstance(s, do.Copy)]
  others = [s for s in before if not isinstance(s, (do.Copy, do.ThreadBarrier))]
  alone = all(isinstance(s, _ALONE) for s in (*others, *memory.graph.body, *memory.graph.after))
  # What is copied before the loop may be waited for there, once.
  if not alone or len(waits) > 1 or (waits and max(copied, default=-1) > waits[0]):
    return "warps exchange values"
  loads = (*lowering.ring, *(s.index for s in before if isinstance(s, do.Copy)))
  return "" if _whole(lowering, tensors, loads) else "copies go by elements"


def _whole(lowering: Lowered, tensors: Mapping[str, KTensor], loads: Iterable[int]) -> bool:
  """Whether these loads are copied by 16 bytes, whatever a run says of sizes."""
  ops = lowering.ops
  views = {i: TensorView.of(tensors[ops[i].tensor], lowering.extents) for i in loads}
  return all(in_chunks(v, lowering.tiles[lowering.homes[i]]) for i, v in views.items())
