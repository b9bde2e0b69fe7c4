"""The roofline of all regions: what they compute a second, over what they compute for a byte that they move.

Williams, Waterman, Patterson: Roofline (CACM 2009). Work and bytes are those that a region cannot avoid, so
a region is at one place of the horizontal axis, and goes up by what its kernel gains.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import atan2, degrees, log10

from mirage_onnx.errors import MirageError
from mirage_onnx.report.page.figures import WIDE, at, colour, decades, figure, number
from mirage_onnx.report.page.html import Markup, el, markup, times, us
from mirage_onnx.report.run_record import KeptRecord, RegionRecord, RunRecord, WorkRecord
from mirage_onnx.target import get_target

_HIGH = 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 16.0, 14.0, 46.0
#: Pixels: half of a label's width and of a mark's, and how far lines of text are apart.
_LABEL, _MARK, _TALL = 11.0, 6.0, 11.0


@dataclass(frozen=True, slots=True)
class _Scale:
  """Both axes are logarithmic."""

  x: tuple[float, float]
  y: tuple[float, float]

  def at_x(self, value: float) -> float:
    low, high = map(log10, self.x)
    return _LEFT + (log10(value) - low) / (high - low) * (WIDE - _LEFT - _RIGHT)

  def at_y(self, value: float) -> float:
    low, high = map(log10, self.y)
    return _HIGH - _BOTTOM - (log10(value) - low) / (high - low) * (_HIGH - _TOP - _BOTTOM)


def roofline(record: RunRecord) -> Markup | None:
  """The section, or None where no region computes anything, or the target is unknown here."""
  try:
    target = get_target(record.target)
  except MirageError:
    return None
  peak, memory = target.mma_tflops, target.stream_tbps  # TFLOP/s, TB/s
  ours = [(i, r) for i, r in enumerate(record.regions) if _intensity(r.work) and r.ours_us > 0]
  kept = [k for k in record.kept if _intensity(k.work) and k.baseline_us and _is_timed(record, k)]
  if not ours:
    return None
  xs = [_intensity(work) for work in (*(r.work for _, r in ours), *(k.work for k in kept))]
  ys = [_tflops(r.work, t) for _, r in ours for t in (r.baseline_us, r.ours_us) if t]
  ys += [_tflops(k.work, k.baseline_us) for k in kept if k.baseline_us]
  scale = _Scale((min(*xs, 1.0) / 2, max(*xs, 2 * peak / memory) * 2), (min(ys) / 2, 2 * peak))
  parts = [*_axes(scale), *_roofs(scale, peak, memory)]
  for k in kept:
    assert k.baseline_us is not None
    x, y = scale.at_x(_intensity(k.work)), scale.at_y(_tflops(k.work, k.baseline_us))
    title = el("title", f"kept, {k.code}: {us(k.baseline_us)} µs, limit {us(k.work.floor_us)} µs")
    parts.append(el("path", title, class_="kept", d=f"M{at(x - 3)} {at(y)}h6M{at(x)} {at(y - 3)}v6"))
  parts += _regions(scale, ours)
  says = f"Roofline of {len(ours)} replaced regions; the table of regions has the same numbers"
  caption = markup(
    _key("before"), " before, ", _key("after"), " after, ", _key("limit"), " limit of the region with its ",
    "launch, ", _key("kept"), " regions that were kept, where their time is known.",
  )  # fmt: skip
  drawn = figure(parts, _HIGH, says, caption, role="group")
  return el("section", el("h2", "Roofline", id="roofline"), drawn, aria_labelledby="roofline")


def _is_timed(record: RunRecord, kept: KeptRecord) -> bool:
  """Whether the times of all its nodes are known: with less than they take it would lie above the roof."""
  nodes = (record.nodes[i] for i in kept.nodes)
  return all(n.us is not None and not n.bound for n in nodes)


def _intensity(work: WorkRecord) -> float:
  """FLOP a byte; 0 where nothing is computed or moved."""
  moved = work.weight_bytes + work.activation_bytes
  return work.flops / moved if moved > 0 and work.flops > 0 else 0.0


def _tflops(work: WorkRecord, time_us: float) -> float:
  return work.flops / time_us / 1e6


def _axes(scale: _Scale) -> list[Markup]:
  parts = []
  low, right = _HIGH - _BOTTOM, WIDE - _RIGHT
  for value in decades(*scale.x):
    x = at(scale.at_x(value))
    parts.append(el("path", class_="grid", d=f"M{x} {at(_TOP)}V{at(low)}"))
    parts.append(el("text", number(value), class_="tick", x=x, y=low + 16, text_anchor="middle"))
  for value in decades(*scale.y):
    y = at(scale.at_y(value))
    parts.append(el("path", class_="grid", d=f"M{at(_LEFT)} {y}H{at(right)}"))
    parts.append(el("text", number(value), class_="tick", x=_LEFT - 6, y=float(y) + 4, text_anchor="end"))
  middle = (_LEFT + right) / 2
  parts.append(el("text", "FLOP per byte", class_="tick", x=at(middle), y=_HIGH - 8, text_anchor="middle"))
  turned = f"translate(14 {at((_TOP + low) / 2)}) rotate(-90)"
  parts.append(el("text", "TFLOP/s", class_="tick", transform=turned, text_anchor="middle"))
  return parts


def _roofs(scale: _Scale, peak: float, memory: float) -> list[Markup]:
  left, right = scale.x
  ridge = peak / memory
  start = max(left, scale.y[0] / memory)
  points = [(start, start * memory), (ridge, peak), (right, peak)]
  path = "L".join(f"{at(scale.at_x(x))} {at(scale.at_y(y))}" for x, y in points)
  middle = 10 ** ((log10(start) + log10(ridge)) / 2)
  x, y = scale.at_x(middle), scale.at_y(middle * memory)
  slope = degrees(atan2(scale.at_y(peak) - y, scale.at_x(ridge) - x))
  turned = f"translate({at(x)} {at(y - 6)}) rotate({at(slope)})"
  top = scale.at_y(peak) - 6
  return [
    el("path", class_="roof", d=f"M{path}"),
    el("text", f"memory: {memory:g} TB/s", class_="tick", transform=turned, text_anchor="middle"),
    el(
      "text", f"tensor cores: {peak:g} TFLOP/s", class_="tick", x=WIDE - _RIGHT, y=at(top), text_anchor="end"
    ),
  ]


def _regions(scale: _Scale, ours: list[tuple[int, RegionRecord]]) -> list[Markup]:
  parts: list[Markup] = []
  taken: list[tuple[float, float, float]] = []
  for _, r in ours:
    x = scale.at_x(_intensity(r.work))
    times_us = (r.ours_us, r.work.floor_us, r.baseline_us)
    taken += [(x, scale.at_y(_tflops(r.work, t)), _MARK) for t in times_us if t]
  for i, r in ours:
    x = scale.at_x(_intensity(r.work))
    after, limit = scale.at_y(_tflops(r.work, r.ours_us)), scale.at_y(_tflops(r.work, r.work.floor_us))
    ends = [after, limit]
    marks = [el("path", class_="limit", d=f"M{at(x - 6)} {at(limit)}h12")]
    if r.baseline_us:
      before = scale.at_y(_tflops(r.work, r.baseline_us))
      ends.append(before)
      marks.append(el("circle", class_=f"was line {colour(i)}", cx=at(x), cy=at(before), r=4.5))
    marks.append(el("circle", class_=f"fill {colour(i)}", cx=at(x), cy=at(after), r=5))
    stem = el("path", class_=f"stem line {colour(i)}", d=f"M{at(x)} {at(max(ends))}V{at(min(ends))}")
    u, v = _free(x, after, taken)
    taken.append((u, v, _LABEL))
    label = el("text", r.id, class_="strong", x=at(u), y=at(v + 4), text_anchor="middle")
    says = (
      f"{r.id}: {us(r.baseline_us)} to {us(r.ours_us)} microseconds, {times(r.baseline_us, r.ours_us)}, "
      f"limit {us(r.work.floor_us)}"
    )
    parts.append(el("a", el("title", says), stem, marks, label, href=f"#region-{i}", aria_label=says))
  return parts


def _free(x: float, y: float, taken: list[tuple[float, float, float]]) -> tuple[float, float]:
  """A place for a label near a point, where nothing is yet; ``taken``: x, y and half of a width."""
  away = [(dx, dy) for reach in (18, 36) for dy in (0, 12, -12, 24, -24) for dx in (reach, -reach)]
  for dx, dy in away:
    u, v = x + dx, y + dy
    if all(abs(u - a) > _LABEL + half or abs(v - b) > _TALL for a, b, half in taken):
      return u, v
  return x + 18, y


def _key(kind: str) -> Markup:
  """A mark of the figure, within its caption."""
  marks = {
    "before": el("circle", class_="was line c0", cx=7, cy=7, r=4.5),
    "after": el("circle", class_="fill c0", cx=7, cy=7, r=5),
    "limit": el("path", class_="limit", d="M1 7h12"),
    "kept": el("path", class_="kept", d="M4 7h6M7 4v6"),
  }
  return el("svg", marks[kind], class_="mark", width=14, height=14, viewBox="0 0 14 14", aria_hidden="true")
