"""How much of each architecture ``optimize`` replaces, why not the rest, and whether it is right.

    python bench/coverage.py [NAME ...] [--emulate] [--update] [--out bench/results]

Optimizes the models of ``models/architectures`` for an H200, runs every result in onnxruntime
without the library against its original (``--emulate``: its kernels in the emulator as well), and
writes OUT/coverage.txt and OUT/coverage.json.xz after each model. With ``--update`` the lines of
other models stay as OUT/coverage.json.xz has them. Exit 1 if a model was refused or its result is
wrong.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "models" / "architectures")]

import weights  # noqa: E402
from coverage_table import text  # noqa: E402
from coverage_table.checks import check_emulated, check_stock  # noqa: E402
from coverage_table.kinds import DECODE, ENCODER, kind_of  # noqa: E402
from coverage_table.record import Record, all_reasons, codes, spreads  # noqa: E402
from coverage_table.row import coverage  # noqa: E402
from facts import facts  # noqa: E402

from mirage_onnx import pipeline  # noqa: E402
from mirage_onnx.errors import MirageError  # noqa: E402
from mirage_onnx.importer import load_model  # noqa: E402
from mirage_onnx.target import get_target  # noqa: E402
from mirage_onnx.tune.baseline import load_table, node_times_us  # noqa: E402

TARGET = "h200"
#: The table with every region and reason: packed, for it repeats itself (``xzcat`` shows it).
RECORD = "coverage.json.xz"
_PACKAGES = ("onnx", "onnxruntime", "numpy", "scipy")


def record(name: str, options: pipeline.Options, *, emulate: bool) -> Record:
    """Optimize and check one model; what goes wrong becomes part of the record."""
    model = weights.load(name)
    kind, dtype = kind_of(name), _float_type(model)
    start = time.monotonic()
    try:
        run = pipeline.run(load_model(model), options)
    except Exception as error:  # a refusal, or a bug: told, and the other models go on
        seconds = round(time.monotonic() - start, 1)
        return Record(name, kind, dtype, seconds, error=_line(error))
    seconds = round(time.monotonic() - start, 1)
    table = load_table(options.target)
    node_us = node_times_us(run.program, table) if table else {}
    return Record(
        name, kind, dtype, seconds, coverage(run, node_us),
        stock=check_stock(model, run.model),
        emulated=check_emulated(model, run.model) if emulate else None,
    )  # fmt: skip


def _line(error: Exception) -> str:
    if isinstance(error, MirageError):
        return error.line()
    traceback.print_exception(error)
    return next(iter(f"{type(error).__name__}: {error}".splitlines()))


def _float_type(model: onnx.ModelProto) -> str:
    """The element type of most weights."""
    names = {onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.BFLOAT16: "bf16"}
    largest = max(model.graph.initializer, key=lambda t: len(t.raw_data))
    return names.get(largest.data_type, "fp32")


def write(folder: Path, about: dict[str, Any], records: Sequence[Record]) -> None:
    """Both files, of the models so far."""
    folder.mkdir(parents=True, exist_ok=True)
    found = all_reasons(records)
    data = {
        **about,
        "bytes_share": [asdict(s) for s in spreads(records, lambda c: c.share.bytes)],
        "codes": [dict(zip(("code", "nodes", "bytes"), row, strict=True)) for row in codes(found)],
        "reasons": [asdict(r) for r in found],
        "models": [asdict(r) for r in records],
    }
    (folder / RECORD).write_bytes(lzma.compress((json.dumps(data, indent=1) + "\n").encode()))
    (folder / "coverage.txt").write_text(text.table(about, records), encoding="utf-8")


def earlier(folder: Path) -> tuple[str, list[Record]]:
    """The date of the recorded run, and its lines."""
    data = json.loads(lzma.decompress((folder / RECORD).read_bytes()))
    return data["date"], msgspec.convert(data["models"], list[Record])


def in_order(names: Sequence[str]) -> list[str]:
    """Decode steps and encoders first, the largest of them first: a run may be stopped."""
    sizes = {n: len(weights.load(n).graph.node) for n in names}
    return sorted(names, key=lambda n: (kind_of(n) not in (DECODE, ENCODER), -sizes[n], n))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--emulate", action="store_true", help="run the kernels in the emulator")
    parser.add_argument("--budget-s", type=float, default=300.0, help="search time per model")
    parser.add_argument("--update", action="store_true", help="keep the lines of other models")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(weights.names()):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    options = pipeline.Options(get_target(TARGET), budget_s=arguments.budget_s)
    about: dict[str, Any] = {**facts(_PACKAGES), "target": TARGET}
    names = in_order(arguments.names or weights.names())
    date, known = earlier(arguments.out) if arguments.update else ("", [])
    old, new = {r.name: r for r in known}, dict[str, Record]()
    for i, name in enumerate(names, 1):
        new[name] = done = record(name, options, emulate=arguments.emulate)
        old.pop(name, None)
        about["models of this run"] = f"{i} of {len(names)}"
        if arguments.update:
            about["models of an earlier run"] = f"{len(old)}, {date}"
        rows = [r for _, r in sorted((old | new).items())]
        write(arguments.out, about, rows)
        share = done.coverage.share.bytes if done.coverage else 0.0
        stock = done.stock.result if done.stock else done.error
        print(f"{i:3} {name:28} {done.seconds:6.1f} s  {share:6.1%} of bytes  {stock}", flush=True)
    print("\n".join(text.summary(rows)))
    print(f"\nwrote {arguments.out / 'coverage.txt'} and {RECORD}")
    return int(any(r.is_wrong for r in new.values()))


if __name__ == "__main__":
    sys.exit(main())
