"""What figures share: coordinates, colours of regions, and the bars that stand in tables."""

from __future__ import annotations

from math import ceil, floor, log10

from mirage_onnx.report.page.html import Children, Markup, el

#: Pixels of a figure from left to right, where nothing stretches it.
WIDE = 760.0
#: Colours that regions take in turn; a page's style has a class for each.
COLOURS = 8


def colour(region: int) -> str:
  """The class of a region's colour; the same region has the same in every figure."""
  return f"c{region % COLOURS}"


def at(value: float) -> str:
  """A coordinate, without digits that nobody sees."""
  return f"{value:.2f}".rstrip("0").rstrip(".")


def ticks(most: float, count: int = 6) -> list[float]:
  """Round numbers from 0 to ``most``, about ``count`` of them."""
  if most <= 0:
    return [0.0]
  rough = most / count
  unit = 10.0 ** floor(log10(rough))
  step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= rough * 0.999)
  return [step * i for i in range(floor(most / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
  """The powers of ten between two numbers."""
  return [10.0**k for k in range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)]


def number(value: float) -> str:
  """A number beside an axis."""
  return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def figure(parts: Children, high: float, says: str, caption: Children, *, role: str = "img") -> Markup:
  """A figure with its caption; on a narrow screen it scrolls by itself and stays legible."""
  drawn = el(
    "svg", parts, viewBox=f"0 0 {WIDE:.0f} {at(high)}", class_="chart", role=role, aria_label=says
  )  # fmt: skip
  scrolling = el("div", drawn, class_="scroll", tabindex=0, role="region", aria_label=says.partition(":")[0])
  return el("figure", scrolling, el("figcaption", caption))


def bar(region: int, before: float | None, after: float, limit: float, most: float, label: str) -> Markup:
  """Before, after and limit, one over the other, on a scale that ends at ``most``."""
  scale = 198 / most if most > 0 else 0.0
  parts = [
    el("rect", class_="was", x=0, y=1, width=at((before or 0.0) * scale), height=6),
    el("rect", class_=f"fill {colour(region)}", x=0, y=8, width=at(after * scale), height=6),
    el("path", class_="limit", d=f"M{at(max(1, limit * scale))} 0v15"),
  ]
  return el(
    "svg", parts, class_="bar", viewBox="0 0 200 15", width=200, height=15, role="img", aria_label=label
  )
