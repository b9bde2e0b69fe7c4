"""Blocks that do the tiles of several blocks, one after the other.

Where a multiprocessor has more than one tile to do, its tensor cores would wait while a block ends and
the next one begins. A block that stands starts the first copies of its next tile when it has
multiplied, and then writes its results beside them.
"""

from collections.abc import Mapping

from mirage_onnx.ir.ugraph import UGraph, is_part_axis
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.smem_plan import MemoryPlan
from mirage_onnx.lower.tensor_view import TensorView
from mirage_onnx.target import Target

#: Registers of a thread beside the values that it holds.
_BESIDE = 48


def standing_blocks(
  graph: UGraph, extents: Mapping[str, int], target: Target, lowering: Lowered, memory: MemoryPlan,
  live: int, tiles: int,
) -> int:  # fmt: skip
  """As many as the GPU holds at once, if there are more ``tiles``; 0: every block has one tile.

  Only where products are under way, and the ring alone is in shared memory: its bytes are free when
  the loop has ended.
  """
  kernel, pieces = lowering.kernel, lowering.assignment.pieces
  ring = {lowering.homes[i] for i in lowering.ring}
  alone = bool(lowering.under_way) and set(lowering.tiles) == ring and not memory.graph.before
  every = lowering.stages >= pieces.most_steps
  tensors = graph.tensors_of(kernel)
  parts = any(is_part_axis(a) for t in tensors for a in t.axes)
  picked = any(TensorView.of(t, extents, packed=True).picked for t in tensors)
  if not alone or every or parts or picked or lowering.ranks > 1 or pieces.grid.tiles:
    return 0
  resident = target.resident(32 * lowering.warps.total, memory.size, live + _BESIDE)
  blocks = target.multiprocessors * max(1, resident)
  return blocks if tiles > blocks else 0
