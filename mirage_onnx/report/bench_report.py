"""The JSON report of ``bench``, as a type, and its text."""

from collections.abc import Iterator
from typing import Literal

from rich.table import Table

from mirage_onnx.report.struct import Struct


class BenchRow(Struct, frozen=True):
  """One size of the dynamic dimensions (``sizes``, empty where there are none).

  ``how``: ``run``, a session's run with its end waited for, or ``graph``, a replay of its CUDA graph. Times
  are medians in microseconds. ``speedup``: the mean over ``openings`` of both sessions, with the ends of its
  95 % interval (``high`` is null after one opening).
  """

  sizes: str
  how: Literal["run", "graph"]
  a_us: float
  b_us: float
  speedup: float
  low: float
  high: float | None
  openings: int


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
  table.add_column("how", no_wrap=True)
  for name in ("A", "B", "speedup", "95 % interval", "openings"):
    table.add_column(name, justify="right", no_wrap=True)
  for r in report.rows:
    sizes = [r.sizes] if len(table.columns) > 6 else []
    interval = "unknown" if r.high is None else f"{r.low:.3f} .. {r.high:.3f}"
    numbers = (f"{r.a_us:.1f}", f"{r.b_us:.1f}", f"{r.speedup:.3f}x", interval)
    table.add_row(*sizes, r.how, *numbers, str(r.openings))
  yield table
  ran = sum(n.launches > 0 for n in report.nodes)
  if report.nodes:
    yield f"kernels ran in {ran} of {len(report.nodes)} custom nodes of B"
  if report.note:
    yield f"note: {report.note}"
  yield f"B is {verdict(report)}"


def verdict(report: BenchReport) -> str:
  """Of the worst size: only an interval that does not hold 1 says anything."""
  if any(r.high is not None and r.high < 1 for r in report.rows):
    return "slower" + (" at some sizes" if any(r.low >= 1 for r in report.rows) else "")
  if all(r.low > 1 for r in report.rows):
    return "faster"
  return "not slower; no difference is sure at every size"
