"""The tables of bench/results/notes.md about the kernels themselves, from the recorded runs.

    python bench/kernel_records.py [counters.json] [ablation.json] [--check]

Takes the given files (of ``counters.py`` and ``ablation.py``) into bench/results/h200, packed, and
writes what they say between the markers of the page. --check: writes nothing, exit 1 if the page is
not what the records give.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_table import packed, read

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "bench" / "results" / "h200"
PAGE = ROOT / "bench" / "results" / "notes.md"
Record = Mapping[str, Any]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(r)} |" for r in (head, ["---"] * len(head), *rows)]


def _about(record: Record) -> list[str]:
    versions = ", ".join(f"{n} {v}" for n, v in record["versions"].items())
    gpu = record.get("gpu") or "no GPU"
    more = "".join(f", {x}" for x in record.get("ncu", ()))
    commit = record["commit"].split(" ")[0][:12]
    return [
        "", f"Run of {record['date']}: `{record['command']}`, commit {commit}, "
        f"{gpu}; {versions}{more}",
    ]  # fmt: skip


def _shown(row: Record, name: str, form: str = ".1f") -> str:
    return format(row[name], form) if name in row else "-"


def counters_table(record: Record) -> list[str]:
    """A line per kernel; a plain read of the bytes of a case stands before its kernels."""
    head = ["case, kernel", "us by ncu", "us cold, whole node", "MB read", "MB of the case",
            "DRAM %", "L2 hit %", "registers", "smem KiB", "occupancy %", "stalls"]  # fmt: skip
    rows = []
    for r in record["rows"]:
        ours = "params" in r
        title = f"`{r['params']}`" if ours else "a plain read"
        title += "" if r.get("replaced", True) else " (onnxruntime's kept)"
        smem = f"{r['smem_bytes'] / 1024:.1f}" if ours else "-"
        cold = f"{r['cold']['us']:.1f}" if r.get("cold") else "-"
        stalls = ", ".join(f"{n} {x:.0f} %" for n, x in r["stalls"][:3])
        rows.append([
            f"{r['case']} {title}", _shown(r, "us"), cold, _shown(r, "read_mb"),
            f"{r['case_mb']:.1f}", _shown(r, "dram_pct", ".0f"), _shown(r, "l2_hit_pct", ".0f"),
            _shown(r, "registers", ".0f"), smem, _shown(r, "occupancy_pct", ".0f"), stalls,
        ])  # fmt: skip
    return [*_table(head, rows), *_about(record)]


def ablation_table(record: Record) -> list[str]:
    """A line per program: as it is, and what differs with one choice switched off."""
    names = [v["variant"] for p in record["programs"][:1] for v in p["variants"]]
    rows = []
    for p in record["programs"]:
        if not p["variants"]:
            continue
        plain = p["variants"][0]
        cells = [
            f"{_shown(plain, 'us')} us, {plain['barriers']} bar, "
            f"{plain['smem_bytes'] / 1024:.0f} K, {plain['registers']} reg"
        ]
        rows.append([p["program"], *cells, *(_change(v, plain) for v in p["variants"][1:])])
    return [*_table(["program", *names], rows), *_about(record)]


def _change(row: Record, plain: Record) -> str:
    """What differs from the kernels as they are; ``=``: the same text."""
    if row["same"]:
        return "="
    if "refused" in row:
        return f"refused {row['refused'].partition(':')[0]}"
    found = [f"{100 * (row['us'] / plain['us'] - 1):+.0f} %"] if "us" in row else []
    for name, unit, scale in (
        ("barriers", "bar", 1), ("moves", "moves", 1), ("smem_bytes", "K", 1024),
        ("registers", "reg", 1), ("spilled", "B spilled", 1),
    ):  # fmt: skip
        if row[name] != plain[name]:
            found.append(f"{row[name] / scale:.0f} {unit}")
    return ", ".join(found) or "same figures"


TABLES: dict[str, Callable[[Record], list[str]]] = {
    "counters": counters_table, "ablation": ablation_table,
}  # fmt: skip


def page(text: str, kind: str, lines: Sequence[str]) -> str:
    """``text`` with ``lines`` between the markers of this kind.

    Raises:
        ValueError: the page has not one place for it.
    """
    begin, end = f"<!-- {kind}: python bench/kernel_records.py -->", f"<!-- end of {kind} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    new = "\n".join([begin, "", *lines, "", end])
    found, count = pattern.subn(lambda _: new, text)
    if count != 1:
        raise ValueError(f"{count} places for {kind}, one is needed")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="counters.json, ablation.json")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    given = {}
    for file in options.files:
        record = read(file)
        given["counters" if "rows" in record else "ablation"] = record
    old = new = PAGE.read_text(encoding="utf-8")
    for kind, table in TABLES.items():
        at = RECORDS / f"{kind}.json.xz"
        if kind in given and not options.check:
            at.write_bytes(packed(given[kind]))
        record = given.get(kind) or (read(at) if at.exists() else None)
        if record is not None:
            new = page(new, kind, table(record))
    if new != old and not options.check:
        PAGE.write_text(new, encoding="utf-8")
    return 1 if new != old and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
