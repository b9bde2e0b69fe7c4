"""What ``diff`` prints."""

import io

from rich.console import Console

from mirage_onnx.report.diff_report import DiffNode, DiffReport, DiffWeight, diff_tables, is_same

NODE = DiffNode(
  node="mirage/0/mm", replaces=["mm", "act"], ops={"MatMul": 2, "Relu": 1}, inputs=["x"], outputs=["y"]
)


def report(**change):
  lists = ("nodes", "changed", "gone", "added", "weights_added", "weights_gone", "interface")
  return DiffReport(schema=1, a="a", b="b", unchanged=5, **{**{name: [] for name in lists}, **change})


def text(found):
  console = Console(file=io.StringIO(), width=80, highlight=False)
  for part in diff_tables(found):
    console.print(part)
  return console.file.getvalue()


def test_all_of_it():
  again = DiffNode(node="mirage/1/mm", replaces=["mm"], ops={"MatMul": 1}, inputs=[], outputs=[])
  weights = [DiffWeight(name=f"w{i}", bytes=500_000) for i in range(8)]
  found = text(report(nodes=[NODE, again], changed=["c"], gone=["g"], added=["n"], weights_added=weights,
                      interface=["input x is gone"]))  # fmt: skip
  assert "2 MatMul, Relu" in found
  assert "5 nodes are the same; 2 are in 2 custom nodes" in found
  assert "other nodes: c\ngone nodes: g\nnew nodes: n\n" in found
  assert "new weights: 4.0 MB, w0, w1, w2, w3, w4, w5 and 2 more" in found and "input x is gone" in found
  assert "same graph" not in found


def test_nothing():
  assert is_same(report()) and text(report()).endswith("the models have the same graph\n")
  assert not is_same(report(nodes=[NODE]))
