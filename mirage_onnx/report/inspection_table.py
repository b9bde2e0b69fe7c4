"""What ``inspect`` and ``explain`` found, as tables and sentences."""

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.box import HEAVY_HEAD
from rich.table import Table

from mirage_onnx.report.dimensions import dimension_lines
from mirage_onnx.report.inspection import (
  AskedReport,
  ChosenReport,
  ExplainReport,
  InspectReport,
  OfferReport,
  SearchedReport,
  TensorReport,
  TotalsReport,
)
from mirage_onnx.report.table import WIDE, WIDE_ENOUGH

#: What the columns of ``inspect`` mean.
COLUMNS = (
  "floor: no kernel is faster; in all: what its × places can save at most, together (a node that several "
  "regions hold counts once); explain REGION searches one"
)
#: Candidates of a search, and reasons why it dropped states, that are shown.
SHOWN_CANDIDATES, SHOWN_PRUNED = 6, 4
#: Refusals of a search that are shown, most frequent first; the JSON has all.
SHOWN_REFUSALS = 8


def inspect_tables(report: InspectReport, width: int = WIDE) -> Iterator[Table | str]:
  """Regions, then the reasons of all other nodes, then the sums.

  ``width``: of what they are printed on; with little of it there are fewer columns, and keys are whole.
  """
  source = report.input or "the model"
  if not report.regions:
    yield f"no region of {source} can be faster on {report.target} than in ONNX Runtime"
  else:
    yield _offers(report, f"what could be fused in {source} for {report.target}", width)
    yield COLUMNS
  if report.barriers:
    table = _table("nodes that no region can hold")
    _columns(table, "reason")
    _columns(table, "nodes", right=True)
    _columns(table, "ops", "for example")
    for b in report.barriers:
      ops = sorted(b.ops.items(), key=lambda kv: (-kv[1], kv[0]))
      table.add_row(
        b.code, str(b.count), ", ".join(_times(op, n) for op, n in ops),
        f"{b.nodes[0]}: {b.reason_text}",
      )  # fmt: skip
    yield table
  yield _totals(report.totals)
  yield from dimension_lines(report.dimensions)
  yield f"{report.seconds:.1f} s; no kernel was searched, so no gain is promised"


def _offers(report: InspectReport, title: str, width: int) -> Table:
  wide = width >= WIDE_ENOUGH
  table = Table(title=title, title_justify="left", box=HEAVY_HEAD if wide else None)
  table.add_column("region", no_wrap=True, min_width=max(len(r.key) for r in report.regions))
  table.add_column("ops", overflow="fold", min_width=min(20, width // 4))
  _columns(table, "×", right=True)
  if wide:
    _columns(table, "MFLOP", "weights", "activations", right=True)
  _columns(table, "ORT µs", "floor µs", *(("gain µs",) if wide else ()), "in all µs", right=True)
  for r in report.regions:
    work = (f"{r.flops / 1e6:.2f}", _bytes(r.weight_bytes), _bytes(r.activation_bytes)) if wide else ()
    times = (r.ort_us, r.floor_us, *((r.gain_us,) if wide else ()), r.total_gain_us)
    table.add_row(r.key, _ops(r.ops), str(r.chosen or f"({r.offered})"), *work, *map(_time, times))
  return table


def _time(us: float | None) -> str:
  return "unknown" if us is None else f"{us:.2f}"


def _totals(t: TotalsReport) -> str:
  left_out = ", ".join(_times(op, n) for op, n in t.flops_unknown.items())
  flops = f" (unknown and left out: those of {left_out})" if left_out else ""
  text = (
    f"in regions: {t.nodes_in_regions} of {t.nodes} nodes ({t.nodes_offered} could be in one), "
    f"{_share(t.flops_in_regions, t.flops)} of the FLOPs of all nodes that are understood{flops}, "
    f"{_share(t.weight_bytes_in_regions, t.weight_bytes)} of {_bytes(t.weight_bytes)} of weights\n"
  )
  if t.ort_us is None:
    return f"{text}ORT: no time of any node is known"
  text += f"ORT: {t.ort_us:.1f} µs predicted for the whole model"
  if t.nodes_in_regions:
    text += f", {t.ort_us_in_regions:.1f} µs of it in regions; their floor is {t.floor_us:.1f} µs"
  if t.nodes_in_regions and not t.nodes_untimed and not t.nodes_bounded:
    return f"{text}, so at most {t.gain_us:.1f} µs can go"
  if t.nodes_untimed:
    text += f"; left out: {_nodes(t.nodes_untimed)} of unknown time"
  return text + (f"; {_nodes(t.nodes_bounded)} counted by bytes alone" if t.nodes_bounded else "")


def _nodes(n: int) -> str:
  return f"{n} node" if n == 1 else f"{n} nodes"


def explain_tables(report: ExplainReport) -> Iterator[Table | str]:
  """The node that was asked about, its region, borders and search, and the µGraph that came out."""
  if report.node is not None:
    yield from _node(report.node)
  if report.region is not None and report.search is not None:
    yield from _searched(report, report.region, report.search)
  yield from dimension_lines(report.dimensions)
  yield from _verdict(report)


def _node(n: AskedReport) -> Iterator[str]:
  us = "" if n.ort_us is None else " µs"
  yield f"node {n.name}: {n.op}; in ONNX Runtime: {_time(n.ort_us)}{us}"
  if n.inputs or n.outputs:
    yield f"reads {_tensors(n.inputs) or 'nothing'}; yields {_tensors(n.outputs)}"


def _searched(report: ExplainReport, region: OfferReport, s: SearchedReport) -> Iterator[Table | str]:
  yield from _region(region)
  table = _table("where it stops")
  _columns(table, "side", "tensor", "node", "reason", "why")
  for b in report.borders:
    node = f"{b.node} ({b.op})" if b.node else "-"
    table.add_row(b.side, b.tensor, node, b.reason, b.reason_text)
  yield table
  ranked = sorted(s.pruned.items(), key=lambda kv: (-kv[1], kv[0]))
  pruned = ", ".join(f"{n:,} {rule}" for rule, n in ranked[:SHOWN_PRUNED])
  if (more := len(ranked) - SHOWN_PRUNED) > 0:
    pruned += f" and {more} more reasons (--json has all)"
  yield (
    f"search: {s.states} states, {s.built} kernel graphs, {s.verified} µGraphs verified, "
    f"{s.stop} after {s.seconds:.1f} s" + (f"; dropped: {pruned}" if pruned else "")
  )
  if report.candidates:
    table = _table("candidates")
    _columns(table, "predicted µs", "kernels", right=True)
    _columns(table, "numbers", "result")
    for c in report.candidates[:SHOWN_CANDIDATES]:
      why = f": {c.reason}, {c.reason_text}" if c.reason else ""
      table.add_row(f"{c.predicted_us:.2f}", str(c.kernels), "; ".join(c.params), c.status + why)
    if (more := len(report.candidates) - SHOWN_CANDIDATES) > 0:
      table.caption, table.caption_justify = f"and {more} more (--json has all)", "left"
    yield table
  if report.refused:
    table = _table("refused by the search")
    _columns(table, "×", right=True)
    _columns(table, "reason", "why")
    refusals = sorted(report.refused, key=lambda r: (-r.count, r.reason, r.reason_text))
    for r in refusals[:SHOWN_REFUSALS]:
      table.add_row(str(r.count), r.reason, r.reason_text)
    yield table
  if report.chosen is not None:
    yield from _chosen(report.chosen)


def _region(r: OfferReport) -> Iterator[str]:
  yield f"region {r.key}: in {r.offered} places of the model, {r.chosen} of them in inspect's choice"
  yield f"nodes: {', '.join(f'{n} ({op})' for n, op in zip(r.nodes, r.ops, strict=True))}"
  yield f"reads {_tensors(r.inputs)}"
  yield f"yields {_tensors(r.outputs)}"
  yield (
    f"{r.flops / 1e6:.2f} MFLOP ({r.mma_flops / 1e6:.2f} in contractions), "
    f"{_bytes(r.weight_bytes)} of weights, {_bytes(r.activation_bytes)} of activations; "
    f"ORT {_time(r.ort_us)} µs, floor {r.floor_us:.2f} µs, gain at most {_time(r.gain_us)} µs"
    + (f" ({r.unknown_nodes} of {len(r.nodes)} nodes have no known time)" if r.unknown_nodes else "")
  )


def _chosen(chosen: ChosenReport) -> Iterator[Table | str]:
  yield chosen.ugraph
  table = _table("kernels")
  _columns(table, "kernel", "grid")
  _columns(table, "threads", "cluster", "registers", "shared bytes", right=True)
  for k in chosen.kernels:
    sizes = (k.threads, k.cluster, k.registers, k.smem_bytes)
    table.add_row(k.name, "×".join(map(str, k.grid)), *map(str, sizes))
  yield table
  proof = chosen.proof
  yield f"proof: {proof.tier}, {proof.draws} draws, false accept ≤ {proof.bound:.0e}, at"
  yield from (f"  {line}" for line in proof.instantiation)
  if (n := chosen.numeric) is not None:
    yield (
      f"rounding: relative L2 error {n.candidate:.2e} at worst, of the original "
      f"{n.original:.2e}, of {n.rows} rows on {n.case} inputs"
    )


def _verdict(report: ExplainReport) -> Iterator[str]:
  if report.region is None:
    why = f"{report.reason}: " if report.reason else ""
    yield f"in no region: {why}{report.reason_text}"
  elif report.reason is not None:
    yield f"kept: {report.reason}: {report.reason_text}"
  if report.remedy is not None:
    yield f"what you can do: {report.remedy} ({report.link})"
  if report.region is None or report.reason is not None:
    return
  assert report.chosen is not None
  yield (
    f"a kernel wins: {report.chosen.predicted_us:.2f} µs predicted against "
    f"{_time(report.region.ort_us)} µs in ONNX Runtime"
  )


def _table(title: str) -> Table:
  return Table(title=title, title_justify="left")


def _columns(table: Table, *names: str, right: bool = False) -> None:
  for name in names:
    table.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")


def _tensors(tensors: Iterable[TensorReport]) -> str:
  return ", ".join(
    f"{t.name} {t.dtype}[{','.join(map(str, t.shape))}]{' (weight)' if t.weight else ''}" for t in tensors
  )


def _ops(ops: Iterable[str]) -> str:
  return ", ".join(_times(op, n) for op, n in Counter(ops).items())


def _times(op: str, count: int) -> str:
  return op if count == 1 else f"{op}×{count}"


def _bytes(count: int) -> str:
  for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
    if count >= size:
      return f"{count / size:.1f} {unit}"
  return f"{count} B"


def _share(part: int, whole: int) -> str:
  return f"{part / whole:.0%}" if whole else "none"
