"""The JSON report of ``diff``, as a type, and its text."""

from collections.abc import Iterator
from typing import Literal

from rich.table import Table

from mirage_onnx.report.struct import Struct

#: Names of a list that a line shows.
_SHOWN = 6


class DiffNode(Struct, frozen=True):
  """A custom node of B and the nodes of A that it stands for; ``ops``: how many of each type."""

  node: str
  replaces: list[str]
  ops: dict[str, int]
  inputs: list[str]
  outputs: list[str]


class DiffWeight(Struct, frozen=True):
  """An initializer that one of the models has alone."""

  name: str
  bytes: int


class DiffReport(Struct, frozen=True):
  """What B has in place of A.

  ``changed``: nodes of both with other inputs or attributes. ``gone``: nodes of A that no custom node
  stands for; ``added``: nodes of B that are no custom nodes. ``interface``: inputs, outputs and operator
  sets that differ, a sentence each.
  """

  schema: Literal[1]
  a: str
  b: str
  nodes: list[DiffNode]
  unchanged: int
  changed: list[str]
  gone: list[str]
  added: list[str]
  weights_added: list[DiffWeight]
  weights_gone: list[DiffWeight]
  interface: list[str]


def diff_tables(report: DiffReport) -> Iterator[Table | str]:
  """Custom nodes, then a line for each other kind of difference."""
  if report.nodes:
    table = Table(title="nodes of A → custom nodes of B")
    table.add_column("custom node", overflow="fold")
    table.add_column("×", justify="right", no_wrap=True)
    table.add_column("in place of", overflow="fold")
    table.add_column("nodes", justify="right", no_wrap=True)
    alike: dict[str, list[DiffNode]] = {}
    for n in report.nodes:
      ops = ", ".join(f"{count} {op}" if count > 1 else op for op, count in n.ops.items())
      alike.setdefault(ops, []).append(n)
    for ops, same in alike.items():
      name = same[0].node if len(same) == 1 else f"{same[0].node} ... {same[-1].node}"
      table.add_row(name, str(len(same)), ops, str(sum(len(n.replaces) for n in same)))
    yield table
  inside = len({name for n in report.nodes for name in n.replaces})
  inside_of = f"{len(report.nodes)} custom node" + ("" if len(report.nodes) == 1 else "s")
  yield f"{report.unchanged} nodes are the same; {inside} are in {inside_of}"
  for what, names in (("other", report.changed), ("gone", report.gone), ("new", report.added)):
    if names:
      yield f"{what} nodes: {_some(names)}"
  for what, weights in (("new", report.weights_added), ("gone", report.weights_gone)):
    if weights:
      total = sum(w.bytes for w in weights)
      size = f"{total / 1e6:.1f} MB" if total >= 1e5 else f"{total / 1e3:.1f} kB"
      yield f"{what} weights: {size}, {_some([w.name for w in weights])}"
  yield from report.interface
  if is_same(report):
    yield "the models have the same graph"


def is_same(report: DiffReport) -> bool:
  """Whether nothing differs."""
  lists = (report.nodes, report.changed, report.gone, report.added, report.weights_added,
           report.weights_gone, report.interface)  # fmt: skip
  return not any(lists)


def _some(names: list[str]) -> str:
  more = len(names) - _SHOWN
  return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
