"""Reports as rich tables and sentences."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.box import HEAVY_HEAD, Box
from rich.table import Table

from mirage_onnx.report.schema import CUT_OFF, OutputReport, RegionReport, Report, VerifyReport

UNKNOWN = "-"
#: What is no news of a kernel that a prediction chose.
NEVER_RAN = "never ran"
#: Columns of a file, and of a terminal that all columns of a table fit into.
WIDE, WIDE_ENOUGH = 160, 120
#: Regions that the time cut off which are shown.
SHOWN_LATE = 4
#: Custom nodes of which ``verify`` shows every one.
MANY = 10


def region_table(report: Report, width: int = WIDE) -> Table:
  """One row a region: what it was, what it became, times, proof, and why it was kept.

  ``width``: of what it is printed on; with little of it there are fewer columns, none of them cut.
  """
  wide = width >= WIDE_ENOUGH
  table = Table(
    title=f"regions of {report.input or 'the model'} for {report.target or UNKNOWN}",
    box=_box(width), padding=(0, 1),
  )  # fmt: skip
  table.add_column("region", no_wrap=True)
  table.add_column("nodes", overflow="fold", min_width=12)
  table.add_column("×", justify="right", no_wrap=True)
  if wide:
    table.add_column("ops → kernels", justify="right", no_wrap=True)
  table.add_column("ORT µs", justify="right", no_wrap=True)
  table.add_column("ours µs", justify="right", no_wrap=True)
  if wide:
    table.add_column("speedup", justify="right")
    table.add_column("verified", no_wrap=True)
  table.add_column("result", overflow="fold", min_width=20)
  late = [r for r in report.regions if r.reason in CUT_OFF]
  said: set[str] = set()
  for region in report.regions:
    if region in late[SHOWN_LATE:]:
      continue
    middle = (f"{len(region.ops)} → {_kernels(region)}",) if wide else ()
    end = (_speedup(region.baseline_us, our_us(region)), _proof(region)) if wide else ()
    table.add_row(
      region.id, _ends(region.ops), str(region.count), *middle,
      _baseline(region), _us(our_us(region)), *end, _result(region, said),
      style="" if region.status == "replaced" else "dim",
    )  # fmt: skip
  if (more := len(late) - SHOWN_LATE) > 0:
    table.caption, table.caption_justify = f"and {more} more that the time cut off (--json lists all)", "left"
  return table


def our_us(region: RegionReport) -> float | None:
  """The measured time, else the predicted one."""
  return region.predicted_us if region.measured_us is None else region.measured_us


def verify_tables(report: VerifyReport, width: int = WIDE) -> Iterator[Table | str]:
  """Outputs, custom nodes with what ran of them, each region by itself; then the verdict."""
  if report.outputs:
    yield _difference_table("outputs", "", [("", o) for o in report.outputs], width)
  if len(report.nodes) > MANY:
    paths = Counter(n.path for n in report.nodes)
    launches = sum(n.launches for n in report.nodes)
    said = ", ".join(f"{count} {path}" for path, count in paths.most_common())
    yield f"custom nodes: {said}; {launches:,} launches (--json lists them)"
  elif report.nodes:
    table = Table(title="custom nodes", box=_box(width))
    table.add_column("node", overflow="fold")
    table.add_column("ran", no_wrap=True)
    table.add_column("launches", justify="right")
    for node in report.nodes:
      table.add_row(node.name, node.path, str(node.launches))
    yield table
  if report.regions:
    title = "each custom node by itself, against the region it replaced"
    yield _difference_table(title, "node", [(r.node, r) for r in report.regions], width)
  yield f"inputs: {', '.join(report.inputs)}"
  if report.source:
    yield f"source: {report.source}"
  if report.note:
    yield f"note: {report.note}"
  yield from report.failures
  if report.first_divergence is not None:
    yield f"first region that diverges: {report.first_divergence}"
  if report.unverified:
    yield f"not verified: images that did not run on a GPU were not compared: {report.unverified}"
  yield "passed" if report.passed else "FAILED"


def _difference_table(title: str, of: str, rows: Sequence[tuple[str, OutputReport]], width: int) -> Table:
  """With little width a node stands above its output, and there are no least tolerances (--json has them).

  Of many rows those are shown that failed, and those nearest to their limit.
  """
  wide = width >= WIDE_ENOUGH
  if (more := len(rows) - MANY) > 0:
    rows = sorted(rows, key=lambda r: (r[1].passed, -(r[1].needed_rtol or 0.0) / (r[1].rtol or 1.0)))
    failed = sum(not o.passed for _, o in rows)
    rows = rows[: max(MANY, failed)]
    more = max(0, more - max(0, failed - MANY))
  table = Table(title=title, box=_box(width))
  if of and wide:
    table.add_column(of, overflow="fold")
  table.add_column("output" if wide or not of else f"{of}, output", overflow="fold")
  table.add_column("worst input", overflow="fold")
  for name in ("rel. L2", "limit", "least atol", "least rtol")[: 4 if wide else 2]:
    table.add_column(name, justify="right", no_wrap=True)
  table.add_column("result", overflow="fold", min_width=9)
  for owner, o in rows:
    result = "identical" if o.identical else "passed" if o.passed else "FAILED"
    table.add_row(
      *([owner] if of and wide else []),
      o.name if wide or not of else f"{owner}\n  {o.name}",
      o.worst,
      *(_number(x) for x in (o.needed_rtol, o.rtol, o.least_atol, o.least_rtol)[: 4 if wide else 2]),
      f"{result}: {o.reason}" if o.reason else result,
    )
  if more > 0:
    table.caption, table.caption_justify = f"and {more} more, which passed by more (--json has all)", "left"
  return table


def _box(width: int) -> Box | None:
  """Lines where there is room for them."""
  return HEAVY_HEAD if width >= WIDE_ENOUGH else None


def _ends(names: list[str]) -> str:
  return " … ".join(dict.fromkeys((names[0], names[-1]))) if names else UNKNOWN


def _kernels(region: RegionReport) -> str:
  if region.status != "replaced" or region.ugraph is None:
    return UNKNOWN
  return str(sum(line.startswith("kernel ") for line in region.ugraph.splitlines()))


def _us(value: float | None) -> str:
  return UNKNOWN if value is None else f"{value:.1f}"


def _baseline(region: RegionReport) -> str:
  """With the nodes of unknown time left out it takes more."""
  if region.baseline_us is None:
    return "unknown" if region.unknown_nodes else UNKNOWN
  known = region.measured_us is not None or not region.unknown_nodes
  return _us(region.baseline_us) if known else f"≥ {region.baseline_us:.1f}"


def _speedup(before: float | None, after: float | None) -> str:
  return f"{before / after:.2f}x" if before is not None and after else UNKNOWN


def _proof(region: RegionReport) -> str:
  if region.proof is None or region.proof.draws is None:
    return UNKNOWN
  bound = "" if region.proof.bound is None else f", ≤ {region.proof.bound:.0e}"
  return f"{region.proof.draws} draws{bound}"


def _result(region: RegionReport, said: set[str]) -> str:
  """``said``: reasons whose text stands in a row above."""
  if region.status == "replaced":
    no_news = region.ran in (None, region.choice, NEVER_RAN)
    how = region.choice if no_news else f"{region.choice}, {region.ran}"
    return f"replaced ({how})" if how else "replaced"
  parts = [part for part in (region.reason, region.reason_text) if part]
  why = ": ".join(parts)
  if why in said:
    why = parts[0]
  said.add(why)
  return f"kept: {why}" if why else "kept"


def _number(value: float | None) -> str:
  return UNKNOWN if value is None else f"{value:.3g}"
