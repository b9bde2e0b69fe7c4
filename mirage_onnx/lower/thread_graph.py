"""What the threads of a block do: all that the text and the time of a kernel follow from.

Every kernel has one, whatever its values lie in: tiles, fragments and vectors of rows (``tiled_graph.py``),
or a ring of registers in each warp (``stream_graph.py``). These are ``plan``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.grid import Grid
from mirage_onnx.lower.steps import ThreadSteps

if TYPE_CHECKING:
  from mirage_onnx.lower.feed import Feed
  from mirage_onnx.lower.ring_feed import RingFeed
  from mirage_onnx.lower.stream_graph import StreamedPlan
  from mirage_onnx.lower.tiled_graph import TiledPlan


@dataclass(frozen=True, slots=True)
class ThreadGraph:
  """A kernel with numbers, as its threads do it.

  ``plan``: where values lie. ``steps``: in order, with barriers; of the loop those of one iteration, of which
  there are at most ``iterations``, and whose operands come through so many ``stages``.
  ``live``: elements that a lane holds at once (0: not counted). ``ahead``: the kernel waits for those in
  front of it as late as it can (``read_ahead.py``). ``standing``: blocks that do the tiles of several
  (``standing.py``), or 0; ``kernels``: how many, alike but for their tensors, share its launch. ``feed``: its
  copies are made by a warp of their own.
  """

  graph: UGraph
  kernel: Kernel
  params: KernelParams
  extents: Mapping[str, int]
  grid: Grid
  plan: TiledPlan | StreamedPlan
  steps: ThreadSteps
  smem_bytes: int
  iterations: int = 1
  stages: int = 1
  live: int = 0
  ahead: bool = False
  standing: int = 0
  kernels: int = 1
  feed: Feed | RingFeed | None = None

  @property
  def threads(self) -> int:
    """Of a block."""
    return self.feed.threads if self.feed else 32 * self.params.warps

  @property
  def cluster(self) -> int:
    """Blocks of a cluster."""
    return self.params.cluster * self.sharing

  @property
  def sharing(self) -> int:
    """Tiles that blocks of a cluster take together."""
    return self.feed.sharing if self.feed else 1

  @property
  def tiles(self) -> int:
    """Of all kernels of the launch."""
    return self.kernels * prod(self.grid.launch)

  @property
  def launch(self) -> tuple[int, int, int]:
    """Blocks by dimension; of x, those of ``grid.tiles`` are left out."""
    if self.standing or self.kernels > 1:
      return self.standing or self.tiles, 1, 1
    return self.grid.launch
