"""The first section: what the whole model gains, in numbers and two bars."""

from __future__ import annotations

from mirage_onnx.report.band import MODELS
from mirage_onnx.report.page.figures import WIDE, at, colour, figure, number, ticks
from mirage_onnx.report.page.html import Markup, el, markup, table, times, us
from mirage_onnx.report.run_record import RunRecord
from mirage_onnx.report.timed import MeasuredReport

_LEFT = 64.0


def overview(record: RunRecord) -> Markup:
  """Tiles, bars, and what the times leave out."""
  m = record.model
  choices = sorted({r.choice for r in record.regions})
  places, distinct = len(record.places), len(record.regions)
  nodes_in = sum(bool(n.places) for n in record.nodes)
  before, after, how = _headline(record)
  tiles = [
    ("Whole model", f"{us(before)} → {us(after)} µs" if before else "unknown", how),
    ("Speedup", times(before, after) if before else "unknown", f"{_likely(record)}{_choices(choices)}"),
    ("Regions replaced", str(distinct), f"in {_count(places, 'place')}, of {record.found.regions} found"),
    ("Nodes", f"{len(record.nodes)} → {len(record.nodes) - (m.nodes_gone if m else nodes_in) + places}",
     f"{places} of them custom nodes"),
  ]  # fmt: skip
  boxes = [
    el("div", el("dt", name), el("dd", el("b", value), " ", el("span", note)), class_="tile")
    for name, value, note in tiles
  ]
  return el(
    "section",
    el("h2", "Whole model", id="whole"),
    el("dl", boxes, class_="tiles"),
    _measured(record.measured) if record.measured else None,
    _bars(record),
    el("p", _left_out(record), class_="note") if m else None,
    aria_labelledby="whole",
  )


def _headline(record: RunRecord) -> tuple[float, float, str]:
  """Before, after, and how that is known: as measured where it gained least, else predicted."""
  if record.measured and record.measured.rows:
    r = min(record.measured.rows, key=lambda r: r.speedup)
    return r.before_us, r.after_us, f"measured: {_HOW[r.how]}{f' at {r.sizes}' if r.sizes else ''}"
  m = record.model
  return (m.before_us, m.after_us, "predicted, every node once") if m else (0.0, 0.0, "no time is known")


_HOW = {"run": "a session's run", "graph": "its CUDA graph"}


def _likely(record: RunRecord) -> str:
  """Of a predicted speedup, what measured ones were; empty of others."""
  m = record.model
  if (
    m is None or m.speedup_low is None or m.speedup_high is None or (record.measured and record.measured.rows)
  ):
    return ""
  return f"likely {m.speedup_low:.2f}× to {m.speedup_high:.2f}×, as {MODELS} measured models had; "


def _measured(found: MeasuredReport) -> Markup:
  """Whole runs, as they were timed before the model was written."""
  rows = [
    (
      r.sizes or "–", _HOW[r.how], us(r.before_us), us(r.after_us), f"{r.speedup:.2f}×",
      f"{r.low:.2f} to {'∞' if r.high is None else f'{r.high:.2f}'}", str(r.openings),
    )
    for r in found.rows
  ]  # fmt: skip
  head = ("sizes", "how", "before µs", "after µs", "speedup", "bounds", "openings")
  made = table(head, rows, "Whole runs, measured before the model was written", (2, 3, 4, 5, 6))
  return markup(made if rows else None, el("p", f"{found.note}.", class_="note") if found.note else None)


def _choices(kinds: list[str]) -> str:
  names = {"measured": "measurement", "predicted": "prediction"}
  chosen = " and ".join(names.get(k, k) for k in kinds)
  return f"kernels chosen by {chosen}" if chosen else "no kernel was chosen"


def _left_out(record: RunRecord) -> str:
  m = record.model
  assert m is not None
  typical = {name: size for r in record.regions for name, size in r.typical.items()}
  at = ", ".join(f"{name} = {size}" for name, size in sorted(typical.items()))
  text = f"Predicted times are at {at}. " if at else ""
  if not m.nodes_unknown and not m.nodes_bounded:
    return f"{text}The time of every node is known."
  if m.nodes_unknown:
    gone = f" ({m.nodes_unknown_gone} of them replaced)" if m.nodes_unknown_gone else ""
    text += f"Left out of both times: {_nodes(m.nodes_unknown)} of unknown time{gone}. "
  if m.nodes_bounded:
    text += f"{_nodes(m.nodes_bounded)} counted as the time that moving their bytes takes."
  return text.strip()


def _nodes(count: int) -> str:
  return _count(count, "node")


def _count(number: int, what: str) -> str:
  return f"{number} {what}{'s' * (number != 1)}"


def _bars(record: RunRecord) -> Markup | None:
  """What nodes that stay take, and what each region takes: before, after, and at the limit."""
  m = record.model
  if m is None or m.before_us <= 0:
    return None
  before, after, limit = (dict.fromkeys(range(len(record.regions)), 0.0) for _ in range(3))
  for n in record.nodes:
    if n.places and n.us and n.left_us < n.us:
      before[record.places[n.places[0]].region] += n.us - n.left_us
  for p in record.places:
    after[p.region] += p.us
    limit[p.region] += min(p.us, record.regions[p.region].work.floor_us)
  stays = sum(n.left_us for n in record.nodes)
  rows = [("before", before), ("after", after), ("limit", limit)]
  scale = (WIDE - _LEFT - 70) / max(m.before_us, stays + sum(after.values()))
  parts: list[Markup] = []
  for tick in ticks(m.before_us):
    x = at(_LEFT + tick * scale)
    parts.append(el("path", class_="grid", d=f"M{x} 4V106"))
    parts.append(el("text", number(tick), class_="tick", x=x, y=120, text_anchor="middle"))
  for i, (name, values) in enumerate(rows):
    end, y = _LEFT, 8 + 34 * i
    parts.append(el("text", name, x=_LEFT - 8, y=y + 17, text_anchor="end"))
    segments = [("stays", "nodes that stay", stays)]
    segments += [(f"fill {colour(r)}", record.regions[r].id, v) for r, v in values.items()]
    for kind, what, value in segments:
      if value > 0:
        title = el("title", f"{what}: {us(value)} µs")
        parts.append(
          el("rect", title, class_=kind, x=at(end), y=y, width=at(max(0.5, value * scale)), height=24)
        )
        end += value * scale
    total = stays + sum(values.values())
    parts.append(el("text", f"{us(total)} µs", class_="strong", x=at(end + 6), y=y + 17))
  says = (
    f"Bars: before {us(m.before_us)} microseconds, after {us(m.after_us)}, "
    f"with every kernel at its limit {us(stays + sum(limit.values()))}; nodes that stay take {us(stays)}"
  )
  caption = markup(
    "Microseconds, predicted of every node once. ", el("span", class_="key stays"),
    " nodes that stay with ONNX Runtime; colours are ",
    "regions. Limit: every kernel at the speed of memory or tensor cores, with its launch.",
  )  # fmt: skip
  return figure(parts, 126, says, caption)
