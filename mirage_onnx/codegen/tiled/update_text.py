"""Updates in place as text (``lower/in_place.py``): what says that a row changes, the rest where it does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mirage_onnx.codegen.tiled.spot import Spot
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower.in_place import InPlace
from mirage_onnx.lower.steps import Fold, ThreadRun, ThreadStep, ThreadSteps


@dataclass(frozen=True, slots=True)
class UpdateText:
  """``turns``: how many tiles of its rows a block looks at; ``all``: writes steps."""

  values: ValueWriter
  update: InPlace
  turns: int
  all: Callable[[tuple[ThreadStep, ...]], None]

  def is_of_rows(self, step: ThreadStep) -> bool:
    """Whether a step is done in every turn."""
    ops = step.ops if isinstance(step, ThreadRun) else (step.index,)
    return self.turns > 1 and any(self.values.pieces.rows in self.values.own(i).values() for i in ops)

  def run(self, early: Sequence[ThreadStep], steps: ThreadSteps) -> None:
    """``early``: what is left of the steps before all others."""
    of_rows = tuple(s for s in early if self.is_of_rows(s))
    self.all(tuple(s for s in early if s not in of_rows))
    with self.values.writer.scope(self.turns > 1, f"for (int turn = 0; turn < {self.turns}; ++turn)"):
      if self.turns > 1:
        lanes = self.values.lowering.assignment.frames[0].lanes.lanes
        self.values.pieces.declare_row(self.values.writer, lanes, "turn")
      self.all(of_rows)
      self._where_changed(steps)

  def _where_changed(self, steps: ThreadSteps) -> None:
    values, condition = self.values, self.update.condition
    own = values.own(condition).values()
    form = values.lowering.assignment.frames[0].of(own)
    at = dict.fromkeys([*"ije", *(f"q_{p.name}" for p in form.rest)], "0")
    spot = Spot(values.writer, values.pieces, values.lowering.warps, form, at)
    spot.declare(own)
    apart = [f"{values.view(a).pointer} != {values.view(b).pointer}" for a, b in self.update.pairs]
    changes = " || ".join([f"{values.element(condition, spot)} != 0.0f", *apart])
    if values.pieces.rows in own and not values.pieces.rows_are_whole:
      changes = f"exists && ({changes})"
    values.writer.line(f"const bool changes = {changes};")
    # Lanes of a warp that reduce do so together; only those whose row changes write.
    values.changes = any(isinstance(s, Fold) for s in steps.after)
    with values.writer.block("if (ptx::any(changes))" if values.changes else "if (changes)"):
      self.all(steps.after)
