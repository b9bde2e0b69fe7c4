"""What is behind the sums of a cluster's ranks: each rank has a part of the tile, where lanes need no others.

The parts are tiles of rows and columns as ``store_quads`` writes them, so they are known when the loops are
unrolled. A rank tells the others what they have of the tile, 16 bytes at a time, and adds theirs to its own;
a register that it has no part in keeps the rank's own sum, which nothing saves.
"""

from mirage_onnx.codegen.tiled.quads_text import QUAD_TILES, in_quads
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower.steps import Fetch, GatherRanks, Store, ThreadRun
from mirage_onnx.lower.thread_graph import ThreadGraph


def parts_of_ranks(w: ValueWriter, threads: ThreadGraph) -> int:
  """Tiles that a rank has: as many for all; 0: each has all of them, and the first rank's are saved."""
  lowering, steps = w.lowering, threads.steps.after
  kernel = lowering.assignment.kernel
  gathers = [n for n, s in enumerate(steps) if isinstance(s, GatherRanks)]
  if lowering.ranks == 1 or not lowering.warpgroup or not gathers:
    return 0
  behind = steps[gathers[0] :]
  forms = {lowering.forms[s.index] for s in behind if isinstance(s, GatherRanks)}
  forms |= {lowering.save_form(s.arg) for s in kernel.saves}
  if len(forms) != 1 or not all(isinstance(s, GatherRanks | Fetch | ThreadRun | Store) for s in behind):
    return 0
  (form,) = forms
  if not all(in_quads(w, form, w.view(s.tensor), w.own(s.arg)) for s in kernel.saves):
    return 0
  if any(p.length > 1 for p in form.rest):
    return 0
  tiles = lowering.warps.tiles(form.g, 8) * lowering.warps.tiles(form.t, 8) // QUAD_TILES
  return tiles // lowering.ranks if tiles % lowering.ranks == 0 else 0
