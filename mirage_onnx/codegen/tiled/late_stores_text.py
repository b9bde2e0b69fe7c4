"""Results of a part that are stored in the steps of the next one, packed in registers until then.

Behind a part all multiprocessors store at once, and the tensor cores wait for L2. So a lane keeps what it
has, and stores 16 bytes at a time while the next products run; of the last part at the end. It is right in
the emulator and was not run on a GPU yet: no search asks for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorText
from mirage_onnx.codegen.tiled.quads_text import QUAD_TILES, in_quads
from mirage_onnx.codegen.tiled.spot import Spot, digit, owner
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.errors import RejectionError
from mirage_onnx.lower.feed import Feed
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.thread_graph import ThreadGraph

#: Registers of a thread beside results and what is kept of them.
_BESIDE = 48


@dataclass(frozen=True, slots=True)
class LateStores:
  """Of a save: ``rows`` and ``columns`` of 16 bytes of a lane; ``stride``: elements from row to row."""

  view: TensorText
  form: Form
  rows: int
  columns: int
  stride: int
  steps: int

  @property
  def _count(self) -> int:
    return self.rows * self.columns

  def begin(self, w: ValueWriter) -> None:
    """Nothing is kept."""
    w.writer.line(f"ptx::U4 late[{self.rows}][{self.columns}] = {{}};")
    w.writer.line(f"{self.view.storage}* late_to = nullptr;")
    w.writer.line("int late_rows = 0;")
    w.writer.line("int late_columns = 0;")

  def keep(self, w: ValueWriter, own: Mapping[str, Piece]) -> None:
    """Where what is kept belongs."""
    ((r,), (c,)), writer = (self.form.g, self.form.t), w.writer
    units = {f"q_{p.name}": "0" for p in self.form.rest}
    spot = Spot(writer, w.pieces, w.lowering.warps, self.form, {**units, "i": "0", "j": "0", "e": "0"})
    with writer.block():
      spot.declare(p for p in own.values() if p != c)
      each = 8 * QUAD_TILES * self.columns
      writer.line(f"const int c = {total(times(digit(w.lowering.warps, self.form.t), each), 't * 8')};")
      spot.known[c] = "c"
      writer.line(f"late_to = {self.view.address(w.global_index(self.view, own, spot))};")
      writer.line(f"late_rows = {w.pieces.size(r)} - {spot.known[r]};")
      writer.line(f"late_columns = {w.pieces.size(c)} - c;")

  def store(self, w: ValueWriter, step: str = "") -> None:
    """What is kept; a part of it in each ``step``."""
    i, j = f"n / {self.columns}", f"n % {self.columns}"
    there = [f"{i} * 8 < late_rows", f"{j} * {8 * QUAD_TILES} < late_columns"]
    when = [f"{step} == n * {min(self.steps, 2 * self._count)} / {self._count}"] if step else []
    w.writer.line("#pragma unroll")
    with w.writer.block(f"for (int n = 0; n < {self._count}; ++n)"):
      to = f"late_to + {i} * {8 * self.stride} + {j} * {8 * QUAD_TILES}"
      w.writer.line(f"if ({' && '.join([*when, *there])}) ptx::st_v4({to}, late[{i}][{j}]);")


def late_stores(w: ValueWriter, threads: ThreadGraph) -> LateStores | None:
  """How the save of a kernel is late, if its numbers say so.

  Raises:
      RejectionError: LAYOUT, a block has one part, or a lane no registers for it.
  """
  if not threads.params.late:
    return None
  found = _late_stores(w, threads)
  if found is None:
    raise RejectionError("LAYOUT", f"{threads.kernel.name} has nothing that is stored late")
  return found


def _late_stores(w: ValueWriter, threads: ThreadGraph) -> LateStores | None:
  feed, lowering = threads.feed, w.lowering
  kernel, warps = lowering.assignment.kernel, lowering.warps
  if not isinstance(feed, Feed) or not feed.registers or len(kernel.saves) != 1 or threads.kernels > 1:
    return None
  (save,) = kernel.saves
  view, own, form = w.view(save.tensor), w.own(save.arg), lowering.save_form(save.arg)
  several = threads.tiles > threads.standing and feed.teams == 1 and lowering.ranks == 1
  if not several or not in_quads(w, form, view, own) or len(form.g) != 1 or owner(form, warps):
    return None
  if any(p.length > 1 for p in {*form.rest, *own.values()} - {*form.g, *form.t}):
    return None
  results = warps.registers(form)
  stride = view.stride(form.g[0].axis)
  if not isinstance(stride, int) or 3 * results // 2 + _BESIDE > feed.registers[1]:
    return None
  rows, columns = warps.tiles(form.g, 8), warps.tiles(form.t, 8) // QUAD_TILES
  return LateStores(view, form, rows, columns, stride, lowering.assignment.pieces.most_steps)
