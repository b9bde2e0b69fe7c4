"""What stayed as it was: regions that were refused or not chosen, and nodes that no region can hold."""

from __future__ import annotations

from collections.abc import Sequence

from mirage_onnx.errors import REJECTIONS
from mirage_onnx.remedies import link, remedy
from mirage_onnx.report.page.html import Markup, el, short, table, us
from mirage_onnx.report.record_run import op_counts
from mirage_onnx.report.run_record import BarrierRecord, KeptRecord, RunRecord

#: Regions of one reason that are listed, and nodes of one.
_REGIONS, _NODES = 12, 40


def kept(record: RunRecord) -> Markup:
  """The section: by reason, what can be done, and which."""
  groups: dict[str, list[KeptRecord]] = {}
  for k in record.kept:
    groups.setdefault(k.code, []).append(k)
  counts = record.found.by_result
  order = sorted(groups, key=lambda code: (-counts[code].regions if code in counts else 0, code))
  total = sum(c.regions for code, c in counts.items() if code != "REPLACED")
  listed = f" The {len(record.kept)} that could save most are below." if len(record.kept) < total else ""
  intro = (
    f"{total} regions stayed as they were. They overlap each other and those that were replaced.{listed}"
  )
  return el(
    "section",
    el("h2", "Kept", id="kept"),
    el("p", intro, class_="note"),
    [_group(record, code, groups[code]) for code in order],
    el("h3", "Nodes that no region can hold") if record.barriers else None,
    [_barrier(record, b) for b in record.barriers],
    aria_labelledby="kept",
  )


def _reason(code: str) -> Markup:
  """What a code means, what can be done, and where it is explained."""
  meaning = REJECTIONS.get(code, "a kernel would win, other regions win more")
  return el(
    "p", f"{meaning}. ", el("b", "What you can do: "), f"{remedy(code)}. See ", el("code", link(code)), ".",
  )  # fmt: skip


def _group(record: RunRecord, code: str, found: Sequence[KeptRecord]) -> Markup:
  counts = record.found.by_result.get(code)
  count = counts.regions if counts else len(found)
  rows = []
  for k in found[:_REGIONS]:
    nodes = [record.nodes[n] for n in k.nodes]
    ends = dict.fromkeys((nodes[0].name, nodes[-1].name))
    names = [(" … " if i else None, short(name, 32)) for i, name in enumerate(ends)]
    rows.append((
      names, op_counts(n.op for n in nodes), str(k.count), us(k.baseline_us),
      us(k.predicted_us) if k.predicted_us else "–", us(k.work.floor_us), k.text,
    ))  # fmt: skip
  head = ("nodes", "operators", "places", "ORT µs", "ours µs", "limit µs", "why")
  more = el("p", f"and {count - len(rows)} more", class_="note") if count > len(rows) else None
  return el(
    "details",
    el("summary", el("code", code), f" – {count} region{'s' * (count != 1)}"),
    _reason(code),
    table(head, rows, f"Regions kept for {code}; times are of one place", (2, 3, 4, 5)),
    more,
  )


def _barrier(record: RunRecord, b: BarrierRecord) -> Markup:
  nodes = [record.nodes[n] for n in b.nodes]
  named = [(" " if i else None, short(n.name)) for i, n in enumerate(nodes[:_NODES])]
  more = f" and {len(nodes) - _NODES} more" if len(nodes) > _NODES else ""
  says = f" – {len(nodes)} node{'s' * (len(nodes) != 1)}: {op_counts(n.op for n in nodes)}"
  return el(
    "details",
    el("summary", el("code", b.code), says),
    _reason(b.code),
    el("p", f"The first: {b.text}.", class_="note"),
    el("p", named, more),
  )  # fmt: skip
