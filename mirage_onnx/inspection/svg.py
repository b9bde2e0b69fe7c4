"""A µGraph as an SVG drawing, without a tool to lay it out: what every kernel moves and combines.

A box is a heavy value (a load, contraction, reduction, accumulator, cluster reduction or running
maximum; ``superopt/canonical.py``) with the elementwise chains of its arguments written in it; a
dashed frame is what every iteration of the loop does, or what is done once behind it. Boxes are in
layers: everything is below what it is computed from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from mirage_onnx.inspection.dot import COLOURS, Level
from mirage_onnx.ir.block_ops import CLUSTER
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, UGraph
from mirage_onnx.superopt.canonical import canonical_kernel

#: Pixels: of a character, a line of text, between boxes, layers and frames.
CHARACTER, LINE, GAP, LAYER, MARGIN = 7.0, 15.0, 16.0, 30.0, 14.0
#: Characters of a line in a box; sweeps that put boxes near what they are computed from.
WIDEST, SWEEPS = 34, 6
_VALUE = re.compile(r"  (%\d+) = (.*) : (loop|post)")
_SAVE = re.compile(r"  save (\S+) = (.*) omap=(\S+)")
_BREAK = re.compile(r"(?<=,) ")


@dataclass(slots=True, eq=False)
class _Box:
  """A box, or with no text the place where an edge passes a layer."""

  text: tuple[str, ...]
  phase: str
  level: Level
  above: list[_Box] = field(default_factory=list)
  layer: int = 0
  x: float = 0.0
  y: float = 0.0

  @property
  def width(self) -> float:
    return max((len(line) for line in self.text), default=0) * CHARACTER + GAP / 2

  @property
  def height(self) -> float:
    return len(self.text) * LINE + (8.0 if self.text else 0.0)


def to_svg(graph: UGraph, params: Sequence[KernelParams] = ()) -> str:
  """The drawing, kernels below each other; ``params``: their numbers, for the titles."""
  parts: list[str] = []
  top, right = MARGIN, 0.0
  for i, kernel in enumerate(graph.kernels):
    numbers = params[i].to_text() if i < len(params) else ""
    drawn, width, top = _kernel(kernel, graph.tensors, numbers, top)
    parts += drawn
    right = max(right, width)
  head = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + MARGIN:.0f}" '
    f'height="{top:.0f}" font-family="monospace" font-size="11">'
  )
  ground = '<rect width="100%" height="100%" fill="white"/>'
  return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def _kernel(
  kernel: Kernel, tensors: Sequence[KTensor], numbers: str, top: float
) -> tuple[list[str], float, float]:
  """Its lines, and where it ends on the right and below."""
  layers = _placed(_boxes(kernel, tensors))
  out = []
  title = canonical_kernel(kernel, tensors).partition("\n")[0].replace("kernel", kernel.name, 1)
  for line in (title, numbers):
    if line:
      out.append(f'<text x="{MARGIN:.0f}" y="{top + LINE:.0f}">{escape(line)}</text>')
      top += LINE
  y, right = top + GAP, max(MARGIN + len(title) * CHARACTER, 0.0)
  phases: dict[str, tuple[float, float]] = {}
  for row in layers:
    (phase,) = {b.phase for b in row}
    if phase not in phases:
      y += GAP + LINE
    height = max(b.height for b in row)
    for b in row:
      b.y = y + (height - b.height) / 2
    start, _ = phases.get(phase, (y - LINE - 4, 0.0))
    phases[phase] = (start, y + height + 6)
    y += height + LAYER
    right = max(right, *(b.x + b.width + MARGIN for b in row))
  for phase, (start, end) in phases.items():
    says = "every iteration of the loop" if phase == "loop" else "once"
    out.append(
      f'<rect x="{MARGIN:.0f}" y="{start:.0f}" width="{right - MARGIN:.0f}" '
      f'height="{end - start:.0f}" fill="none" stroke="gray" stroke-dasharray="4"/>'
      f'<text x="{MARGIN + 5:.0f}" y="{start + 12:.0f}" fill="gray">{says}</text>'
    )
  boxes = [b for row in layers for b in row]
  edges = [_edge(a, b) for b in boxes for a in b.above]
  frames = [_frame(b) for b in boxes if b.text]
  out += ['<g fill="none" stroke="dimgray">', *edges, "</g>"]
  out += ['<g stroke="black" stroke-width=".5">', *frames, "</g>"]
  out += [line for b in boxes for line in _lines(b)]
  return out, right, y


def _boxes(kernel: Kernel, tensors: Sequence[KTensor]) -> list[_Box]:
  """A box per line of the canonical text, after what it is computed from."""
  known: dict[str, _Box] = {}
  found: list[_Box] = []
  for line in canonical_kernel(kernel, tensors).splitlines()[1:]:
    if value := _VALUE.fullmatch(line):
      name, text, phase = value.groups()
      op = re.split(r"[ \[]", text)[0]
      box = _Box(_wrapped(f"{name} {text}"), phase, _level(op))
      known[name] = box
    else:
      save = _SAVE.fullmatch(line)
      assert save is not None, line
      name, text, omap = save.groups()
      box = _Box(_wrapped(f"save {name} {text}, omap={omap}"), "post", Level.KERNEL)
    box.above = [known[n] for n in dict.fromkeys(re.findall(r"%\d+", text))]
    found.append(box)
  return found


def _level(op: str) -> Level:
  if op == "load":
    return Level.KERNEL
  return Level.CLUSTER if op in CLUSTER else Level.BLOCK


def _wrapped(text: str) -> tuple[str, ...]:
  """Lines that break after commas."""
  lines = [""]
  for part in _BREAK.split(text.replace(" imap=", ", imap=", 1)):
    if lines[-1] and len(lines[-1]) + 1 + len(part) > WIDEST:
      lines.append(part)
    else:
      lines[-1] = f"{lines[-1]} {part}".strip()
  return tuple(lines)


def _placed(boxes: list[_Box]) -> list[list[_Box]]:
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
  layers: list[list[_Box]] = [[] for _ in range(1 + max(b.layer for b in boxes))]
  for b in boxes:
    layers[b.layer].append(b)
  phases = [row[0].phase if row else "post" for row in layers]
  passing: dict[tuple[int, int], _Box] = {}
  for b in boxes:
    for i, a in enumerate(b.above):
      at = a
      for layer in range(a.layer + 1, b.layer):
        if (id(a), layer) not in passing:
          place = _Box((), phases[layer], Level.BLOCK, [at], layer)
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


def _wanted(b: _Box, layers: list[list[_Box]], *, down: bool) -> float:
  """Where the middle of a box would be best."""
  near = b.above if down else [u for row in layers for u in row if b in u.above]
  own = b.x + b.width / 2
  return sum(u.x + u.width / 2 for u in near) / len(near) if near else own


def _spread(layers: list[list[_Box]]) -> None:
  """Rows side by side in their order, each in the middle of the widest."""
  widths = [sum(b.width for b in row) + GAP * (len(row) - 1) for row in layers]
  for row, width in zip(layers, widths, strict=True):
    x = 2 * MARGIN + (max(widths) - width) / 2
    for b in row:
      b.x = x
      x += b.width + GAP


def _edge(a: _Box, b: _Box) -> str:
  x, y = a.x + a.width / 2, a.y + a.height
  u, v = b.x + b.width / 2, b.y
  bend = (v - y) / 2
  bent = f"{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} {u:.0f} {v:.0f}"
  return f'<path d="M{x:.0f} {y:.0f}C{bent}"/>'


def _frame(b: _Box) -> str:
  return (
    f'<rect x="{b.x:.0f}" y="{b.y:.0f}" width="{b.width:.0f}" height="{b.height:.0f}" rx="3" '
    f'fill="{COLOURS[b.level]}"/>'
  )


def _lines(b: _Box) -> Iterator[str]:
  for i, line in enumerate(b.text):
    x, y = b.x + GAP / 4, b.y + LINE * (i + 1) - 1
    yield f'<text x="{x:.0f}" y="{y:.0f}">{escape(line)}</text>'
