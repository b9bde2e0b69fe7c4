"""A µGraph as an SVG drawing, without a tool to lay it out: what every kernel moves and combines.

A box is a heavy value (a load, contraction, reduction, accumulator, cluster reduction or running
maximum; ``superopt/canonical.py``) with the elementwise chains of its arguments written in it, in infix;
a dashed frame is what every iteration of the loop does, or what is done once behind it. Boxes are in
layers: everything is below what it is computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import prod

from mirage_onnx.inspection.dot import Level
from mirage_onnx.inspection.infix import infix
from mirage_onnx.inspection.layers import CHARACTER, GAP, LAYER, LINE, MARGIN, Box, placed
from mirage_onnx.inspection.printable import printable
from mirage_onnx.ir.block_ops import CLUSTER
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Phase, UGraph
from mirage_onnx.superopt.canonical import Heavy, block_terms, in_order, leaves_of

#: Characters of a line in a box, and of a tensor's name in it: of a longer one the end.
WIDEST, LONGEST = 34, 30
#: Short names of the levels: classes of the boxes in the style.
CLASSES: Mapping[Level, str] = {
  Level.KERNEL: "kernel",
  Level.CLUSTER: "cluster",
  Level.BLOCK: "block",
  Level.THREAD: "thread",
}
#: Of a drawing, as a file and within a page; the second half for dark grounds.
STYLE = """
.ug text{font:11px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:#1a1a1a}
.ug .quiet{fill:#666}.ug .edge{fill:none;stroke:#777}
.ug .phase{fill:none;stroke:#999;stroke-dasharray:4}.ug .box{stroke:#333;stroke-width:.5}
.ug .kernel{fill:#c3d7ee}.ug .cluster{fill:#e3c6e8}.ug .block{fill:#f3e6a6}.ug .thread{fill:#c4e8c4}
"""
DARK = """
.ug text{fill:#e8e8e8}.ug .quiet{fill:#aaa}.ug .edge{stroke:#8a8a8a}.ug .phase{stroke:#777}
.ug .box{stroke:#ccc}.ug .kernel{fill:#2b4a6b}.ug .cluster{fill:#5b3a63}
.ug .block{fill:#5a5020}.ug .thread{fill:#2c5a34}
"""


@dataclass(frozen=True, slots=True)
class PictureFacts:
  """What is known of a µGraph beside it: extents of axes, and the model's names of its tensors."""

  extents: Mapping[str, int] = field(default_factory=dict)
  names: Mapping[str, str] = field(default_factory=dict)

  def name(self, tensor: str) -> str:
    return printable(self.names.get(tensor, tensor))

  def short(self, tensor: str) -> str:
    name = self.name(tensor)
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def to_svg(
  graph: UGraph,
  params: Sequence[KernelParams] = (),
  extents: Mapping[str, int] | None = None,
  names: Mapping[str, str] | None = None,
  *,
  in_page: bool = False,
) -> str:
  """The drawing, kernels below each other, and a legend.

  ``params``: their numbers, for the titles; ``extents``: of the axes; ``names``: tensor of the µGraph ->
  what the model calls it. ``in_page``: without what the page has once for all drawings, style and legend.
  """
  known = PictureFacts(extents or {}, names or {})
  parts: list[str] = []
  top, right = MARGIN, 0.0
  for i, kernel in enumerate(graph.kernels):
    numbers = params[i] if i < len(params) else None
    drawn, width, top = _kernel(kernel, graph.tensors, numbers, known, top)
    parts += drawn
    right = max(right, width)
  notes = _axes(graph, known)
  for line in notes:
    parts.append(_text(MARGIN, top + LINE, line, "quiet"))
    top += LINE
  right = max([right, *(MARGIN + len(line) * CHARACTER for line in notes)])
  if not in_page:
    drawn, width, top = _legend(graph, top + GAP)
    parts, right = [*parts, *drawn], max(right, width)
  width, height = right + MARGIN, top + MARGIN
  says = f"µGraph with {len(graph.kernels)} kernel{'s' * (len(graph.kernels) != 1)}"
  head = (
    f'<svg xmlns="http://www.w3.org/2000/svg" class="ug" role="img" aria-label="{says}" '
    f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
  )
  if not in_page:
    dark = f"@media(prefers-color-scheme:dark){{{DARK}.ug .ground{{fill:#1b1b1b}}}}"
    head += f"<style>{STYLE}.ug .ground{{fill:#fff}}{dark}</style>"
    head += '<rect class="ground" width="100%" height="100%"/>'
  return "\n".join([head, *parts, "</svg>"]) + "\n"


def legend(graph: UGraph) -> list[Level]:
  """The levels that its boxes have."""
  ops = [op.op for k in graph.kernels for op in k.ops]
  used = {_level(op) for op in ops if op in ("load", "matmul", "sum", "rmax") or "_" in op or op == "prev"}
  return [x for x in Level if x in used or x is Level.KERNEL]


def _kernel(
  kernel: Kernel, tensors: Sequence[KTensor], params: KernelParams | None, known: PictureFacts, top: float
) -> tuple[list[str], float, float]:
  """Its lines, and where it ends on the right and below."""
  layers = placed(_boxes(kernel, tensors, known))
  out, right = [], 0.0
  for i, line in enumerate(_titles(kernel, params, known)):
    out.append(_text(MARGIN, top + LINE, line, "quiet" if i else ""))
    right = max(right, MARGIN + len(line) * CHARACTER)
    top += LINE
  y = top + GAP
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
    says = f"every iteration of the loop over {kernel.loop}" if phase == "loop" else "once"
    out.append(
      f'<rect class="phase" x="{MARGIN:.0f}" y="{start:.0f}" width="{right - MARGIN:.0f}" '
      f'height="{end - start:.0f}"/>'
    )
    out.append(_text(MARGIN + 5, start + 12, says, "quiet"))
  boxes = [b for row in layers for b in row]
  edges = [_edge(a, b) for b in boxes for a in b.above]
  out += ['<g class="edge">', *edges, "</g>", *(_box(b) for b in boxes if b.text)]
  return out, right, y


def _titles(kernel: Kernel, params: KernelParams | None, known: PictureFacts) -> Iterator[str]:
  """What the grid, the cluster and the loop walk; then the numbers."""
  grid = " × ".join(kernel.grid) or "-"
  yield f"{kernel.name}: grid {grid}, cluster {kernel.cluster or '-'}, loop {kernel.loop or '-'}"
  if params is None:
    return
  yield params.to_text()
  if kernel.grid and all(a in known.extents for a in kernel.grid):
    blocks = [-(-known.extents[a] // n) for a, n in zip(kernel.grid, params.tile, strict=True)]
    many = "block" if prod(blocks) == 1 else "blocks"
    yield (
      f"{' × '.join(map(str, blocks))} {many} of {' × '.join(map(str, params.tile))}, "
      f"{params.cluster} rank{'s' * (params.cluster != 1)} each, {32 * params.warps} threads"
    )


def _boxes(kernel: Kernel, tensors: Sequence[KTensor], known: PictureFacts) -> list[Box]:
  """A box per heavy value and save, after what it is computed from, numbered as the canonical text is."""
  terms, heavies = block_terms(kernel)
  place = {x.name: n for n, x in enumerate(tensors)}
  saves = sorted(kernel.saves, key=lambda s: place[s.tensor])
  order = in_order((terms[s.arg] for s in saves), heavies)
  number = {str(h.leaf.attr): f"%{n}" for n, h in enumerate(order)}
  made: dict[Term, Box] = {}

  def written(x: Term) -> str:
    return infix(x, lambda leaf: number[leaf], known.extents)

  def above(args: Iterable[Term]) -> list[Box]:
    return list(dict.fromkeys(made[leaf] for a in args for leaf in leaves_of(a)))

  for h in order:
    head = f"{number[str(h.leaf.attr)]} {h.op.op}"
    if h.op.op == "load":
      lines = (f"{head} {known.short(h.op.tensor)}", *_wrapped(_split(h)))
      hint = known.name(h.op.tensor)
    else:
      over = f"[{','.join(sorted(h.op.reduced))}]" if h.op.reduced else ""
      lines, hint = _wrapped(f"{head}{over} {', '.join(map(written, h.args))}"), ""
    made[h.leaf] = Box(lines, str(h.op.phase), _level(h.op.op), above(h.args), hint)
  found = [made[h.leaf] for h in order]
  for s in saves:
    own = " × ".join(a for a in s.omap if a)
    lines = _wrapped(f"save {known.short(s.tensor)} = {written(terms[s.arg])}")
    where = (f"grid {own}",) if own else ()
    found.append(
      Box((*lines, *where), str(Phase.POST), Level.KERNEL, above([terms[s.arg]]), known.name(s.tensor))
    )
  return found


def _split(h: Heavy) -> str:
  """What cuts a tile out of a tensor."""
  grid = [a for a in h.op.imap if a]
  parts = (("grid", " × ".join(grid)), ("cluster", h.op.cmap), ("loop", h.op.fmap))
  return ", ".join(f"{what} {axes}" for what, axes in parts if axes) or "all of it"


def _level(op: str) -> Level:
  if op == "load":
    return Level.KERNEL
  return Level.CLUSTER if op in CLUSTER else Level.BLOCK


def _wrapped(text: str) -> tuple[str, ...]:
  """Lines that break between words, those behind the first indented."""
  lines = [""]
  for part in text.split(" "):
    if lines[-1].strip() and len(lines[-1]) + 1 + len(part) > WIDEST:
      lines.append(f"  {part}")
    else:
      lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
  return tuple(lines)


def _axes(graph: UGraph, known: PictureFacts) -> list[str]:
  """How long the axes of its tensors are, some in a line."""
  used = dict.fromkeys(a for t in graph.tensors for a in t.axes if a in known.extents)
  texts = [f"{a} = {known.extents[a]}" for a in sorted(used)]
  return [", ".join(texts[i : i + 6]) for i in range(0, len(texts), 6)]


def _legend(graph: UGraph, top: float) -> tuple[list[str], float, float]:
  out, right = [], 0.0
  for x in legend(graph):
    out.append(f'<path class="box {CLASSES[x]}" d="M{MARGIN:.0f} {top + 3:.0f}h14v10h-14z"/>')
    out.append(_text(MARGIN + 20, top + 12, str(x), ""))
    right = max(right, MARGIN + 20 + len(x) * CHARACTER)
    top += LINE + 2
  return out, right, top


def _edge(a: Box, b: Box) -> str:
  x, y = a.x + a.width / 2, a.y + a.height
  u, v = b.x + b.width / 2, b.y
  bend = (v - y) / 2
  bent = f"{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} {u:.0f} {v:.0f}"
  return f'<path d="M{x:.0f} {y:.0f}C{bent}"/>'


def _box(b: Box) -> str:
  """The frame with its text, and behind both what was too long for it."""
  hint = f"<title>{escape(b.hint)}</title>" if b.hint else ""
  frame = (
    f'<rect class="box {CLASSES[b.level]}" x="{b.x:.0f}" y="{b.y:.0f}" width="{b.width:.0f}" '
    f'height="{b.height:.0f}" rx="3"/>'
  )
  lines = (_text(b.x + GAP / 4, b.y + LINE * (i + 1) - 1, line, "") for i, line in enumerate(b.text))
  return f"<g>{hint}{frame}{''.join(lines)}</g>"


def _text(x: float, y: float, text: str, of: str) -> str:
  kind = f' class="{of}"' if of else ""
  return f'<text{kind} x="{x:.0f}" y="{y:.0f}" xml:space="preserve">{escape(text)}</text>'
