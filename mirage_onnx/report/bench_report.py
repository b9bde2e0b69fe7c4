"""The JSON report of ``bench``, as a type, and its text."""

from collections.abc import Iterator
from typing import Literal

from rich.table import Table

from mirage_onnx.report.struct import Struct

#: Two sessions of one model differ by as much, each steady (MiniLM on an H100, eight sessions): the
#: interval is that of one pair of sessions, so what lies within is luck.
LUCK = 0.05


class BenchRow(Struct, frozen=True):
  """One size of the dynamic dimensions (``sizes``, empty where there are none).

  Times are medians of whole runs in microseconds. ``speedup``: median over ``pairs`` of alternating
  samples, with the ends of its 95 % interval.
  """

  sizes: str
  a_us: float
  b_us: float
  speedup: float
  low: float
  high: float
  pairs: int


class BenchNode(Struct, frozen=True):
  """A custom node and how many kernels of it were launched; 0 where its body ran."""

  name: str
  launches: int


class BenchReport(Struct, frozen=True):
  """One run of ``bench``: whole onnxruntime sessions of two models, side by side."""

  schema: Literal[1]
  a: str
  b: str
  provider: Literal["cpu", "cuda"]
  rows: list[BenchRow]
  nodes: list[BenchNode]
  note: str


def bench_tables(report: BenchReport) -> Iterator[Table | str]:
  """A row a size, what ran, and the verdict."""
  table = Table(title=f"whole runs on {report.provider}, µs")
  if any(r.sizes for r in report.rows):
    table.add_column("sizes", overflow="fold")
  for name in ("A", "B", "speedup", "95 % interval", "pairs"):
    table.add_column(name, justify="right", no_wrap=True)
  for r in report.rows:
    sizes = [r.sizes] if len(table.columns) > 5 else []
    numbers = (f"{r.a_us:.1f}", f"{r.b_us:.1f}", f"{r.speedup:.3f}x", f"{r.low:.3f} .. {r.high:.3f}")
    table.add_row(*sizes, *numbers, str(r.pairs))
  yield table
  ran = sum(n.launches > 0 for n in report.nodes)
  if report.nodes:
    yield f"kernels ran in {ran} of {len(report.nodes)} custom nodes of B"
  if report.note:
    yield f"note: {report.note}"
  yield f"B is {verdict(report)}"


def verdict(report: BenchReport) -> str:
  """Of the worst size: only an interval beyond what two sessions of one model differ by says anything."""
  if any(r.high < 1 - LUCK for r in report.rows):
    return "slower" + (" at some sizes" if any(r.low >= 1 for r in report.rows) else "")
  if all(r.low > 1 + LUCK for r in report.rows):
    return "faster"
  if all(r.low > 1 for r in report.rows):
    return f"faster, by less than two sessions of one model may differ ({LUCK:.0%})"
  return "not slower; no difference is sure at every size"
