"""The candidates of a region and their times, as a picture with the numbers in it."""

from __future__ import annotations

from mirage_onnx.report.page.figures import at, colour, figure, number, ticks
from mirage_onnx.report.page.html import Markup, el, markup, us
from mirage_onnx.report.run_record import CandidateRecord, RegionRecord

_LEFT, _ROW, _TOP = 34.0, 18.0, 18.0
#: Of the part with the bars; what is right of it is text.
_BARS = 430.0


def candidates(index: int, region: RegionRecord) -> Markup | None:
  """A bar a verified program, the chosen one in colour; lines for ONNX Runtime and the limit."""
  programs = [c for c in region.candidates if c.kernels]
  looks = [c for c in region.candidates if not c.kernels and c.measured_us is not None]
  if not programs:
    return None
  times = [t for c in region.candidates for t in (c.predicted_us, c.measured_us) if t]
  most = max([*times, region.baseline_us or 0.0, region.work.floor_us])
  scale = (_BARS - _LEFT) / most if most > 0 else 1.0
  bottom = _TOP + _ROW * (len(programs) + bool(looks))
  parts = [_tick(value, scale, bottom) for value in ticks(most, 5)]
  for i, c in enumerate(programs):
    parts += _program(i, c, scale, index)
  if looks:
    y = bottom - _ROW / 2
    parts.append(el("text", "…", class_="tick", x=_LEFT - 8, y=at(y + 4), text_anchor="end"))
    parts += [_dot(c.measured_us or 0.0, y, scale) for c in looks]
    text = f"{len(looks)} more, with other numbers, as measured"
    parts.append(el("text", text, class_="small", x=_BARS + 12, y=at(y + 4)))
  parts += _lines(region, scale, bottom)
  says = (
    f"{len(programs)} verified programs, {us(programs[0].predicted_us)} microseconds predicted for the first"
  )
  caption = (
    "Microseconds: bars predicted, dots measured. Full colour: the chosen program. "
    "Solid line: the limit; dashed line: ONNX Runtime."
  )
  return figure(parts, bottom + 22, says, caption)


def _tick(value: float, scale: float, bottom: float) -> Markup:
  x = at(_LEFT + value * scale)
  line = el("path", class_="grid", d=f"M{x} {at(_TOP - 4)}V{at(bottom)}")
  return markup(line, el("text", number(value), class_="tick", x=x, y=at(bottom + 14), text_anchor="middle"))


def _program(i: int, c: CandidateRecord, scale: float, region: int) -> list[Markup]:
  y = _TOP + _ROW * i
  kind = f"fill {colour(region)}" if c.chosen else "stays"
  width = at(max(1.0, c.predicted_us * scale))
  measured = f", {us(c.measured_us)} measured" if c.measured_us is not None else ""
  text = f"{us(c.predicted_us)}{measured}; {'; '.join(c.numbers)}"
  parts = [
    el(
      "text",
      str(i + 1),
      class_="strong" if c.chosen else "tick",
      x=_LEFT - 8,
      y=at(y + 12),
      text_anchor="end",
    ),
    el("rect", el("title", text), class_=kind, x=_LEFT, y=at(y + 2), width=width, height=at(_ROW - 5)),
    el(
      "text",
      _shortened(text, 48 if c.chosen else 54),
      class_="strong small" if c.chosen else "small",
      x=_BARS + 12,
      y=at(y + 12),
    ),
  ]
  return [*parts, *([_dot(c.measured_us, y + _ROW / 2, scale)] if c.measured_us else [])]


def _shortened(text: str, most: int) -> str:
  text = text.replace("loop_tile", "step")
  return text if len(text) <= most else f"{text[: most - 1]}…"


def _dot(time_us: float, y: float, scale: float) -> Markup:
  return el("circle", class_="dot", cx=at(_LEFT + time_us * scale), cy=at(y), r=3)


def _lines(region: RegionRecord, scale: float, bottom: float) -> list[Markup]:
  x = at(_LEFT + region.work.floor_us * scale)
  parts = [el("path", class_="limit", d=f"M{x} {at(_TOP - 6)}V{at(bottom)}")]
  parts.append(el("text", "limit", class_="tick", x=x, y=10, text_anchor="middle"))
  if region.baseline_us is not None:
    x = at(_LEFT + region.baseline_us * scale)
    parts.append(el("path", class_="runtime", d=f"M{x} {at(_TOP - 6)}V{at(bottom)}"))
    close = abs(region.baseline_us - region.work.floor_us) * scale < 90
    anchor = "start" if close else "end" if region.baseline_us * scale > _BARS - _LEFT - 40 else "middle"
    shifted = at(float(x) + (22 if close else 0))
    parts.append(el("text", "ONNX Runtime", class_="tick", x=shifted, y=10, text_anchor=anchor))
  return parts
