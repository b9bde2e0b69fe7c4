"""The timeline: the model's nodes in their order, before and after, on one scale.

A path a colour, so that a model of a thousand nodes is some kilobytes; what a node is called is found by the
script, in the data, where the pointer or the arrow keys are. The same numbers are in a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.report.page.figures import at, colour, number, ticks
from mirage_onnx.report.page.html import Markup, el, us
from mirage_onnx.report.run_record import RunRecord

#: Units of the lanes: their width.
_UNITS = 20000.0
#: Pixels from above: ticks, the lanes, the bands between them.
_BEFORE, _LANE, _BAND, _HIGH = 22, 34, 46, 168
_AFTER = _BEFORE + _LANE + _BAND
_ZOOMS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class LaneNode:
  """A node of a lane: a node of the original (``place`` -1), or the custom node of a place."""

  node: int
  place: int
  start_us: float
  us: float


def lanes(record: RunRecord) -> tuple[list[LaneNode], list[LaneNode]]:
  """The nodes before and after, one behind the other; a custom node is where the last of its nodes was."""
  last: dict[int, list[int]] = {}
  for i, p in enumerate(record.places):
    last.setdefault(p.nodes[-1], []).append(i)
  before, after = list[LaneNode](), list[LaneNode]()
  then = now = 0.0
  for i, n in enumerate(record.nodes):
    before.append(LaneNode(i, n.places[0] if n.places else -1, then, n.us or 0.0))
    then += n.us or 0.0
    if not n.places or n.left_us > 0:
      after.append(LaneNode(i, -1, now, n.left_us))
      now += n.left_us
    for place in last.get(i, ()):
      after.append(LaneNode(i, place, now, record.places[place].us))
      now += record.places[place].us
  return before, after


def timeline(record: RunRecord) -> Markup | None:
  """The section, or None where no time is known."""
  before, after = lanes(record)
  whole = max((p.start_us + p.us for lane in (before, after) for p in lane), default=0.0)
  if whole <= 0 or not any(n.us for n in record.nodes):
    return None
  scale = _UNITS / whole
  marks: list[Markup] = []
  for tick in ticks(whole, 8):
    x = f"{at(100 * tick / whole)}%"
    anchor = "start" if not tick else "end" if tick > 0.97 * whole else "middle"
    marks.append(el("line", class_="grid", x1=x, x2=x, y1=16, y2=_AFTER + _LANE))
    marks.append(el("text", number(tick), class_="tick", x=x, y=11, text_anchor=anchor))
  marks += [
    _lane(record, before, scale, _BEFORE),
    _inner(_bands(record, before, after, scale), _BEFORE + _LANE, _BAND),
    _lane(record, after, scale, _AFTER),
    el("rect", class_="cursor", x=0, y=0, width=0, height=0),
  ]
  says = (
    "The model's nodes in order: above in ONNX Runtime, below with the kernels. Left and right go from node "
    "to node, up and down between the two."
  )
  strip = el(
    "div",
    el("svg", marks, class_="strip", width="100%", height=_HIGH - 22, aria_hidden="true"),
    class_="scroll timeline", tabindex=0, role="application", aria_label=says,
  )  # fmt: skip
  zoom = el(
    "div",
    [el("button", f"{k}×", type="button", data_zoom=k, aria_pressed=str(k == 1).lower()) for k in _ZOOMS],
    class_="zoom", role="group", aria_label="Zoom of the timeline",
  )  # fmt: skip
  end_before, end_after = (lane[-1].start_us + lane[-1].us for lane in (before, after))
  return el(
    "section",
    el("h2", "Timeline", id="timeline"),
    el("p", f"Above: {us(end_before)} µs before, as the nodes follow each other. Below: {us(end_after)} µs "
       "after. Grey nodes stay; colours are regions. Point at a node, or use the arrow keys.", class_="note"),
    zoom,
    strip,
    el("p", "No node is chosen.", class_="readout", aria_live="polite"),
    el("details", el("summary", f"All {len(record.nodes)} nodes as a table"), el("div", class_="all-nodes")),
    aria_labelledby="timeline",
  )  # fmt: skip


def _inner(parts: Sequence[Markup], y: int, height: int) -> Markup:
  """A part of the strip that stretches with it."""
  return el(
    "svg", parts, x=0, y=y, width="100%", height=height, viewBox=f"0 0 {_UNITS:.0f} 10",
    preserveAspectRatio="none",
  )  # fmt: skip


def _lane(record: RunRecord, lane: Sequence[LaneNode], scale: float, y: int) -> Markup:
  paths: dict[str, list[str]] = {}
  for i, p in enumerate(lane):
    if p.us <= 0:
      continue
    kind = f"fill {colour(record.places[p.place].region)}" if p.place >= 0 else f"stays s{i % 2}"
    # A gap between neighbours, where there is room for one.
    width = p.us * scale
    path = f"M{p.start_us * scale:.0f} 0h{max(width - 6, width / 2):.0f}V10H{p.start_us * scale:.0f}z"
    paths.setdefault(kind, []).append(path)
  return _inner([el("path", class_=kind, d="".join(all_of)) for kind, all_of in paths.items()], y, _LANE)


def _bands(
  record: RunRecord, before: Sequence[LaneNode], after: Sequence[LaneNode], scale: float
) -> list[Markup]:
  """From the nodes of every place to its kernel."""
  made = {p.place: p for p in after if p.place >= 0}
  paths: dict[int, list[str]] = {}
  for i, place in enumerate(record.places):
    if i not in made:
      continue
    now = made[i]
    left, right = now.start_us * scale, (now.start_us + now.us) * scale
    for start, end in _runs([before[n] for n in place.nodes]):
      path = f"M{start * scale:.0f} 0L{left:.0f} 10H{right:.0f}L{end * scale:.0f} 0z"
      paths.setdefault(place.region, []).append(path)
  return [el("path", class_=f"band fill {colour(r)}", d="".join(all_of)) for r, all_of in paths.items()]


def _runs(pieces: Sequence[LaneNode]) -> list[tuple[float, float]]:
  """Where neighbours begin and end."""
  runs: list[tuple[float, float]] = []
  for p in pieces:
    if p.us <= 0:
      continue
    if runs and abs(runs[-1][1] - p.start_us) < 1e-6:
      runs[-1] = (runs[-1][0], p.start_us + p.us)
    else:
      runs.append((p.start_us, p.start_us + p.us))
  return runs


def timeline_data(record: RunRecord, nodes: dict[int, str]) -> dict[str, object]:
  """What the script needs; ``nodes``: the names of custom nodes, by number of the place."""
  before, after = lanes(record)
  return {
    "nodes": [[n.name, n.op, n.us, int(n.bound), n.left_us, n.places] for n in record.nodes],
    "places": [[p.region, p.nodes, p.us, nodes.get(i, "")] for i, p in enumerate(record.places)],
    "regions": [r.id for r in record.regions],
    "before": [[p.node, p.place, round(p.us, 3)] for p in before],
    "after": [[p.node, p.place, round(p.us, 3)] for p in after],
    "geometry": [_BEFORE, _AFTER, _LANE],
  }
