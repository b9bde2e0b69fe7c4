"""What is behind the sums of a cluster's ranks is done by the lanes that save it.

All lanes did it: of a cluster of eight each of 1024 threads read 128 times from the shared memory of other
multiprocessors, for a tile that one rank's lanes save. Where only warps meet it is no gain: on an H100 .84 to
1.21 of the time of 124 kernels, .99 in the mean, and four spilled; nor beside wgmma (a residual behind a
product 1.11; ``bench/results/h100/tiled_rules.json``).
"""

from collections.abc import Sequence

from mirage_onnx.codegen.tiled.spot import owner
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower.steps import Fetch, Gather, GatherRanks, Store, ThreadRun, ThreadStep


def first_of_savers(w: ValueWriter, after: Sequence[ThreadStep]) -> int:
  """The first step behind the loop from which on lanes need no others, if ranks meet there."""
  first = len(after)
  while first and isinstance(after[first - 1], Gather | GatherRanks | Fetch | ThreadRun | Store):
    first -= 1
  meets = any(isinstance(s, GatherRanks) for s in after[first:])
  return first if meets and not w.lowering.warpgroup else len(after)


def savers(w: ValueWriter) -> list[str]:
  """The conditions that a lane may save something of what others have too: what all saves ask for."""
  own = [owner(w.lowering.save_form(s.arg), w.lowering.warps) for s in w.lowering.kernel.saves]
  return ["ptx::cluster_rank() == 0", *(c for c in own[0] if all(c in o for o in own))]
