"""What ``bench`` prints."""

import io

import pytest
from rich.console import Console

from mirage_onnx.report.bench_report import BenchNode, BenchReport, BenchRow, bench_tables, verdict


def row(low, high, sizes=""):
  return BenchRow(
    sizes=sizes, how="run", a_us=20.0, b_us=10.0, speedup=(low + (high or 1)) / 2, low=low, high=high,
    openings=4,
  )  # fmt: skip


def report(*rows, nodes=(), note=""):
  return BenchReport(
    schema=1, a="a.onnx", b="b.onnx", provider="cpu", rows=list(rows), nodes=list(nodes), note=note
  )


def text(found):
  console = Console(file=io.StringIO(), width=80, highlight=False)
  for part in bench_tables(found):
    console.print(part)
  return console.file.getvalue()


@pytest.mark.parametrize(
  ("rows", "said"),
  [
    ([row(1.9, 2.1)], "faster"),
    ([row(0.7, 0.9)], "slower"),
    ([row(0.7, 0.9), row(1.1, 1.2)], "slower at some sizes"),
    ([row(0.98, 0.99)], "slower"),
    ([row(1.01, 1.2)], "faster"),
    ([row(0.9, 1.1)], "not slower; no difference is sure at every size"),
    ([row(0.0, None)], "not slower; no difference is sure at every size"),  # one opening says nothing
    ([row(0.9, 1.1), row(1.1, 1.2)], "not slower; no difference is sure at every size"),
  ],
)
def test_verdict(rows, said):
  assert verdict(report(*rows)) == said
  assert text(report(*rows)).endswith(f"B is {said}\n")


def test_text():
  nodes = [BenchNode(name="n0", launches=7), BenchNode(name="n1", launches=0)]
  found = text(report(row(1.9, 2.1, "rows=1"), row(1.0, 1.2, "rows=8"), nodes=nodes, note="one body ran"))
  assert "rows=8" in found and "2.000x" in found and "1.900 .. 2.100" in found
  assert "kernels ran in 1 of 2 custom nodes of B" in found and "note: one body ran" in found
  assert "sizes" not in text(report(row(1.9, 2.1)))
