"""Where the boxes of a drawing lie: in layers, everything below what it is computed from."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_onnx.inspection.dot import Level

#: Pixels: of a character, a line of text, between boxes, layers and frames.
CHARACTER, LINE, GAP, LAYER, MARGIN = 7.0, 15.0, 16.0, 30.0, 14.0
#: Sweeps that put boxes near what they are computed from.
SWEEPS = 6


@dataclass(slots=True, eq=False)
class Box:
  """A box, or with no text the place where an edge passes a layer. ``hint``: what is behind its text."""

  text: tuple[str, ...]
  phase: str
  level: Level
  above: list[Box] = field(default_factory=list)
  hint: str = ""
  layer: int = 0
  x: float = 0.0
  y: float = 0.0

  @property
  def width(self) -> float:
    return max((len(line) for line in self.text), default=0) * CHARACTER + GAP / 2

  @property
  def height(self) -> float:
    return len(self.text) * LINE + (8.0 if self.text else 0.0)


def placed(boxes: list[Box]) -> list[list[Box]]:
  """The boxes in layers, with ``x``, and with places where edges pass a layer."""
  for b in boxes:
    b.layer = 1 + max((a.layer for a in b.above), default=-1)
  behind = 1 + max((b.layer for b in boxes if b.phase == "loop"), default=-1)
  for b in boxes:
    if b.phase == "post":
      b.layer = max(behind, 1 + max((a.layer for a in b.above), default=-1))
  # What is loaded is close to where it is read first.
  for b in boxes:
    if not b.above:
      b.layer = max(b.layer, min(u.layer for u in boxes if b in u.above) - 1)
      b.layer = min(b.layer, behind - 1) if b.phase == "loop" else b.layer
  layers: list[list[Box]] = [[] for _ in range(1 + max(b.layer for b in boxes))]
  for b in boxes:
    layers[b.layer].append(b)
  phases = [row[0].phase if row else "post" for row in layers]
  passing: dict[tuple[int, int], Box] = {}
  for b in boxes:
    for i, a in enumerate(b.above):
      at = a
      for layer in range(a.layer + 1, b.layer):
        if (id(a), layer) not in passing:
          place = Box((), phases[layer], Level.BLOCK, [at], layer=layer)
          passing[id(a), layer] = place
          layers[layer].append(place)
        at = passing[id(a), layer]
      b.above[i] = at
  layers = [row for row in layers if row]
  for sweep in range(SWEEPS):
    for row in layers if sweep % 2 == 0 else layers[::-1]:
      row.sort(key=lambda b: _wanted(b, layers, down=sweep % 2 == 0))
    _spread(layers)
  return layers


def _wanted(b: Box, layers: list[list[Box]], *, down: bool) -> float:
  """Where the middle of a box would be best."""
  near = b.above if down else [u for row in layers for u in row if b in u.above]
  own = b.x + b.width / 2
  return sum(u.x + u.width / 2 for u in near) / len(near) if near else own


def _spread(layers: list[list[Box]]) -> None:
  """Rows side by side in their order, each in the middle of the widest."""
  widths = [sum(b.width for b in row) + GAP * (len(row) - 1) for row in layers]
  for row, width in zip(layers, widths, strict=True):
    x = 2 * MARGIN + (max(widths) - width) / 2
    for b in row:
      b.x = x
      x += b.width + GAP
