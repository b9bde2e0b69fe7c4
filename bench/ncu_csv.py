"""What Nsight Compute says of kernels: the command, its CSV, the figures that are kept."""

import csv

SECTIONS = (
  "SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats",
)  # fmt: skip
METRICS = (
  "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
  "dram__throughput.avg.pct_of_peak_sustained_elapsed", "lts__t_sector_hit_rate.pct",
)  # fmt: skip
#: Figure -> the metrics that tell it, the first that is there.
FIGURES = {
  "us": METRICS[:1],
  "read_mb": METRICS[1:2],
  "write_mb": METRICS[2:3],
  "dram_pct": (METRICS[3], "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
  "l2_hit_pct": (METRICS[4], "lts__average_t_sector_hit_rate_realtime.pct"),
  "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
  "registers": ("launch__registers_per_thread",),
  "waves": ("launch__waves_per_multiprocessor",),
}
STALL, PER_ISSUE = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
#: Unit -> what makes it microseconds or megabytes; anything else stays as it is.
SCALES = {
  "ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6,
  "second": 1e6, "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3,
}  # fmt: skip


def command(log, kernels, program, *, metrics=True):
  """``ncu`` with ``program``; ``kernels``: a pattern of names. Clocks are left as they are.

  Caches are emptied before every pass, so what is counted is a cold run, as the table times it.
  """
  sections = [x for s in SECTIONS for x in ("--section", s)]
  return [
    "ncu", "--clock-control", "none", "--cache-control", "all", "--target-processes", "all",
    "-k", f"regex:{kernels}", *sections, *(["--metrics", ",".join(METRICS)] if metrics else []),
    "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log), *program,
  ]  # fmt: skip


def kernels(lines):
  """The kernels of a raw page in the order of their launches.

  ``name``, ``block``, ``grid``, the figures that the page has, and ``stalls``: (reason, percent
  of what a warp waits between two instructions), the longest first.

  Raises:
      ValueError: the lines hold no such page.
  """
  rows = list(csv.reader(x for x in lines if x.startswith('"')))
  if len(rows) < 2 or "Kernel Name" not in rows[0]:
    raise ValueError("no raw page of ncu")
  head, units = rows[0], dict(zip(rows[0], rows[1], strict=False))
  return [_kernel(dict(zip(head, r, strict=False)), units) for r in rows[2:]]


def _kernel(row, units):
  found = {
    "name": row["Kernel Name"].partition("(")[0],
    "block": row.get("Block Size", ""),
    "grid": row.get("Grid Size", ""),
  }
  for figure, metrics in FIGURES.items():
    name = next((m for m in metrics if row.get(m)), None)
    if name is not None:
      value = _number(row[name]) * SCALES.get(units.get(name, ""), 1.0)
      found[figure] = float(f"{value:.5g}")
  stalls = {
    name.removeprefix(STALL).removesuffix(PER_ISSUE): _number(text)
    for name, text in row.items()
    if name.startswith(STALL) and name.endswith(PER_ISSUE) and "_not_issued" not in name
    and text
  }  # fmt: skip
  whole = sum(stalls.values()) or 1.0
  longest = sorted(stalls.items(), key=lambda s: (-s[1], s[0]))
  found["stalls"] = [[name, round(100 * x / whole, 1)] for name, x in longest[:5]]
  return found


def _number(text):
  return float(text.replace(",", ""))
