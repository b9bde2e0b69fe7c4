"""The text of a loop of which a block first does the iterations in which something is seen (``unseen.py``).

The other iterations change nothing where every row's running maximum is high enough. Where one of the
block's is not, they follow in turns of their own: those before, those behind.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mirage_onnx.codegen.grid_text import first_of
from mirage_onnx.codegen.index_text import total
from mirage_onnx.codegen.tiled.ring_feed_text import RingFeedText
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower.steps import Held
from mirage_onnx.lower.unseen import Unseen


@dataclass(slots=True)
class TurnsText:
  """Writes what stands around the loop of ``values``."""

  values: ValueWriter
  unseen: Unseen
  feed: RingFeedText | None = None

  def declare(self) -> None:
    """``from`` and ``to``, the steps that see something, and the steps of a turn: ``first`` to ``steps``."""
    line, band, cut = self.values.writer.line, self.unseen.band, self.values.pieces.cut
    at = cut.grid.tile(band.rows, cut.extents)
    columns, first = cut.extents[band.columns], first_of(at)
    assert cut.step is not None
    step = cut.step.length
    line(f"const int all = {self.values.pieces.steps};")
    if band.least is None:
      line("const int from = 0;")
    else:
      line(f"const int sees = at_most({total(first, str(band.least))}, {columns - 1});".replace("+ -", "- "))
      line(f"const int from = sees > 0 ? sees / {step} : 0;")
    if band.most is None:
      line("const int to = all;")
    else:
      end = total(first, str(at.tile + band.most + step - 1)).replace("+ -", "- ")
      line(f"const int seen = ({end}) / {step};")
      line("const int to = seen > from ? at_most(seen, all) : from + 1;")
    if self.splits:
      behind = total(first, str((band.most or 0) + 1)).replace("+ -", "- ")
      line(f"const int whole = at_least({behind}, 0) / {step};")
    line("int first = from;")
    line("int steps = to;")
    line("int turns = 1;")

  @property
  def splits(self) -> bool:
    """Whether the first steps see all of a mask that is computed."""
    band = self.unseen.band
    return band.least is None and band in self.values.lowering.computed.values()

  @property
  def loops(self) -> tuple[tuple[str, str, bool], ...]:
    """(first step, the step behind the last, whether masks hide nothing in them) of the loops of a turn."""
    if not self.splits:
      return (("first", "steps", False),)
    between = "at_most(at_least(whole, first), steps)"
    return ("first", between, True), (between, "steps", False)

  @contextmanager
  def around(self, *, asks: bool = True) -> Iterator[None]:
    """Inside stands a turn: all steps from ``first`` to ``steps``; unless it ``asks``, others know."""
    writer, band = self.values.writer, self.unseen.band
    both = band.least is not None and band.most is not None
    writer.line("#pragma unroll 1")
    with writer.block("for (int turn = 0; turn < turns; ++turn)"):
      writer.comment("Steps in which nothing is seen are for blocks with a row that sees nothing.")
      with writer.block("if (turn > 0)"):
        if both and self.feed is None:
          writer.line("ptx::sync_block();")
        before, behind = ("turn == 1 ? 0 : to", "turn == 1 ? from : all") if both else ("", "")
        writer.line(f"first = {before or ('to' if band.least is None else '0')};")
        writer.line(f"steps = {behind or ('all' if band.least is None else 'from')};")
      with writer.block("if (first < steps)"):
        yield
      with writer.block("if (turn == 0)"):
        self._ask(3 if both else 2, asks)

  def _ask(self, turns: int, asks: bool) -> None:
    """Whether a row that exists has too low a maximum, which is for the block to know."""
    w = self.values
    if asks or self.feed is None:
      w.writer.line("bool low = false;")
    for index in self.unseen.running if asks else ():
      form, own = w.lowering.forms[index], w.own(index).values()
      name = w.name(Held(index, form))
      with w.walk(form) as spot:
        spot.declare(own)
        high = f"{name}{spot.subscript(form)} >= {self.unseen.floor!r}f"
        w.writer.line(f"low |= {' && '.join([*spot.exists(own), f'!({high})'])};")
    vote = self.feed.vote("low" if asks else None) if self.feed else "ptx::sync_any(low)"
    w.writer.line(f"const bool others = {vote};")
    w.writer.line(f"if (others) turns = {turns};")
