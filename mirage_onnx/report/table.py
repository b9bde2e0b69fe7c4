"""Reports as rich tables and sentences."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from mirage_onnx.report.schema import OutputReport, RegionReport, Report, VerifyReport

UNKNOWN = "-"


def region_table(report: Report) -> Table:
  """One row a region: what it was, what it became, times, proof, and why it was kept."""
  table = Table(title=f"regions of {report.input or 'the model'} for {report.target or UNKNOWN}")
  table.add_column("region", no_wrap=True)
  table.add_column("nodes", overflow="fold")
  table.add_column("×", justify="right")
  table.add_column("ops → kernels", justify="right", no_wrap=True)
  table.add_column("ORT µs", justify="right")
  table.add_column("ours µs", justify="right")
  table.add_column("speedup", justify="right")
  table.add_column("verified", no_wrap=True)
  table.add_column("result", overflow="fold")
  for region in report.regions:
    table.add_row(
      region.id,
      _ends(region.ops),
      str(region.count),
      f"{len(region.ops)} → {_kernels(region)}",
      _us(region.baseline_us),
      _us(our_us(region)),
      _speedup(region.baseline_us, our_us(region)),
      _proof(region),
      _result(region),
      style="" if region.status == "replaced" else "dim",
    )
  return table


def our_us(region: RegionReport) -> float | None:
  """The measured time, else the predicted one."""
  return region.predicted_us if region.measured_us is None else region.measured_us


def total_us(report: Report) -> tuple[float, float] | None:
  """(ORT's, ours) summed over all replaced instances; None where a time is unknown."""
  before = after = 0.0
  for region in report.regions:
    if region.status == "replaced":
      ours = our_us(region)
      if region.baseline_us is None or ours is None:
        return None
      before += region.count * region.baseline_us
      after += region.count * ours
  return before, after


def summary(report: Report) -> str:
  """The run in one or two sentences."""
  replaced = [r for r in report.regions if r.status == "replaced"]
  instances = sum(r.count for r in replaced)
  nodes = sum(r.count * len(r.ops) for r in replaced)
  text = f"replaced {len(replaced)} of {len(report.regions)} regions"
  if replaced:
    text += f": {instances} instances, {nodes} nodes"
    if (totals := total_us(report)) and totals[1] > 0:
      kinds = "/".join(sorted({r.choice for r in replaced if r.choice})) or "unknown"
      text += f", {totals[0]:.1f} → {totals[1]:.1f} µs ({_speedup(*totals)}, {kinds})"
  if report.barriers:
    counts = ", ".join(f"{n} {code}" for code, n in sorted(report.barriers.items()))
    text += f"; nodes outside any region: {counts}"
  if report.seconds is not None:
    text += f"; {report.seconds:.1f} s"
  if report.output:
    text += f"; wrote {report.output}"
  return text


def verify_tables(report: VerifyReport) -> Iterator[Table | str]:
  """Outputs, custom nodes with what ran of them, each region by itself; then the verdict."""
  if report.outputs:
    yield _difference_table("outputs", "", [("", o) for o in report.outputs])
  if report.nodes:
    table = Table(title="custom nodes")
    table.add_column("node", overflow="fold")
    table.add_column("ran", no_wrap=True)
    table.add_column("launches", justify="right")
    for node in report.nodes:
      table.add_row(node.name, node.path, str(node.launches))
    yield table
  if report.regions:
    title = "each custom node by itself, against the region it replaced"
    yield _difference_table(title, "node", [(r.node, r) for r in report.regions])
  yield f"inputs: {', '.join(report.inputs)}"
  if report.source:
    yield f"source: {report.source}"
  if report.note:
    yield f"note: {report.note}"
  yield from report.failures
  if report.first_divergence is not None:
    yield f"first region that diverges: {report.first_divergence}"
  yield "passed" if report.passed else "FAILED"


def _difference_table(title: str, of: str, rows: Sequence[tuple[str, OutputReport]]) -> Table:
  table = Table(title=title)
  if of:
    table.add_column(of, overflow="fold")
  for name in ("output", "worst input"):
    table.add_column(name, overflow="fold")
  for name in ("rel. L2", "limit", "least atol", "least rtol"):
    table.add_column(name, justify="right", no_wrap=True)
  table.add_column("result", overflow="fold")
  for owner, o in rows:
    result = "identical" if o.identical else "passed" if o.passed else "FAILED"
    table.add_row(
      *([owner] if of else []),
      o.name,
      o.worst,
      *(_number(x) for x in (o.needed_rtol, o.rtol, o.least_atol, o.least_rtol)),
      f"{result}: {o.reason}" if o.reason else result,
    )
  return table


def _ends(names: list[str]) -> str:
  return " … ".join(dict.fromkeys((names[0], names[-1]))) if names else UNKNOWN


def _kernels(region: RegionReport) -> str:
  if region.status != "replaced" or region.ugraph is None:
    return UNKNOWN
  return str(sum(line.startswith("kernel ") for line in region.ugraph.splitlines()))


def _us(value: float | None) -> str:
  return UNKNOWN if value is None else f"{value:.1f}"


def _speedup(before: float | None, after: float | None) -> str:
  return f"{before / after:.2f}x" if before is not None and after else UNKNOWN


def _proof(region: RegionReport) -> str:
  if region.proof is None or region.proof.draws is None:
    return UNKNOWN
  bound = "" if region.proof.bound is None else f", ≤ {region.proof.bound:.0e}"
  return f"{region.proof.draws} draws{bound}"


def _result(region: RegionReport) -> str:
  if region.status == "replaced":
    return f"replaced ({region.choice})" if region.choice else "replaced"
  why = ": ".join(part for part in (region.reason, region.reason_text) if part)
  return f"kept: {why}" if why else "kept"


def _number(value: float | None) -> str:
  return UNKNOWN if value is None else f"{value:.3g}"
