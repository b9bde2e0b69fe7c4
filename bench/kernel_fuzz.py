"""Random block graphs through the code generator and the emulator, against float64.

    python bench/kernel_fuzz.py --seeds 0:20000 --out build/random_kernels.jsonl --workers 2
    python bench/kernel_fuzz.py --seeds 0:20000 --total 480 --record random_kernels.txt
    python bench/kernel_fuzz.py --seeds 148:149 --show

Seeds whose outcome is in the file are not run again (delete it after a change of the code), so a
run that was stopped, or that --total seconds ended, goes on where it was. Prints
what became of them, what they consist of, and how often every operation x type x layout was run and
right; ``--record`` writes that to a file, too. Exit 1 where a kernel was wrong.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a worker is one core's work
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from facts import facts
from random_kernel_run import TOGETHER, emitted, run_seeds
from random_kernel_tables import cell_table, share_table
from random_kernel_wishes import missing
from random_kernels import random_kernel

#: Seconds for a batch; then its seeds are run one by one, and one that takes so long is a hang.
LIMIT_S = 900.0


@dataclass
class Worker:
    """A process that runs a batch of seeds in a folder of its own."""

    seeds: list[int]
    folder: Path
    process: BaseProcess
    answers: Connection


def _work(seeds: Sequence[int], folder: Path, answers: Connection) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder)
    for outcome in run_seeds(seeds):
        answers.send(asdict(outcome))
    for library in folder.rglob("*.so"):
        library.unlink()


def run(
    seeds: Sequence[int], out: Path, workers: int, deadline: float = inf
) -> list[dict[str, Any]]:
    """The outcomes of seeds in order; new ones are appended to ``out`` as they come.

    What is not begun at the ``deadline`` (of time.monotonic) is left out.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    if out.exists():
        known = {r["seed"]: r for r in map(json.loads, out.read_text().splitlines())}
    todo = [s for s in seeds if s not in known]
    batches = [todo[i : i + TOGETHER] for i in range(0, len(todo), TOGETHER)][::-1]
    base = Path(tempfile.mkdtemp(prefix="random_kernels"))
    try:
        with out.open("a") as file:
            folders = [base / str(i) for i in range(workers)]
            _run_batches(batches, known, file, folders, deadline)
    finally:
        shutil.rmtree(base)
    return [known[s] for s in seeds if s in known]


def _run_batches(
    batches: list[list[int]],
    known: dict[int, dict[str, Any]],
    file: TextIO,
    folders: list[Path],
    deadline: float,
) -> None:
    context = get_context("fork")
    active = {}
    while batches or active:
        if time.monotonic() > deadline:
            batches.clear()
        while batches and folders:
            ours, theirs = context.Pipe(duplex=False)
            batch, folder = batches.pop(), folders.pop()
            process = context.Process(target=_work, args=(batch, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            active[ours] = Worker(batch, folder, process, ours)
        ready = connection.wait(list(active), LIMIT_S)
        for answers in ready or list(active):
            worker = active[answers]
            try:
                row = answers.recv() if ready else None
            except EOFError:
                row = None
            if row is not None:
                known[row["seed"]] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
                if len(known) % 500 == 0:
                    print(f"{len(known)} seeds", file=sys.stderr)
                continue
            if not ready:
                worker.process.kill()
            worker.process.join()
            folders.append(worker.folder)
            del active[answers]
            missing = [s for s in worker.seeds if s not in known]
            if len(worker.seeds) > 1:
                batches += [[s] for s in missing]
            for seed in missing if len(worker.seeds) == 1 else ():
                detail = f"exit {worker.process.exitcode}" if ready else f"{LIMIT_S:.0f} s"
                known[seed] = _lost(seed, detail)
                file.write(json.dumps(known[seed]) + "\n")


def _lost(seed: int, detail: str) -> dict[str, Any]:
    return {"seed": seed, "form": "", "kind": "crash", "code": "process", "detail": detail,
            "cells": [], "features": []}  # fmt: skip


def report(found: Sequence[dict[str, Any]]) -> str:
    """The tables, and the first line of every failure."""
    total = len(found)
    kinds = Counter(r["kind"] for r in found)
    codes = Counter(f"refused {r['code']}" for r in found if r["kind"] == "refused")
    run_and_right = Counter(c for r in found if r["kind"] == "ok" for c in r["cells"])
    bad = [r for r in found if r["kind"] not in ("ok", "refused")]
    parts = [
        f"{total} seeds, {found[0]['seed']} to {found[-1]['seed']}",
        share_table({**kinds, **codes}, total),
        share_table(Counter(f for r in found for f in r["features"]), total),
        share_table(Counter(r["form"] for r in found), total),
        "\n".join([cell_table(run_and_right), *missing(run_and_right)]),
    ]
    parts += [
        "\n".join(
            f"seed {r['seed']} ({r['form']}) {r['kind']} {r['code']} {r['detail']}\n"
            f"    again: python bench/kernel_fuzz.py --seeds {r['seed']}:{r['seed'] + 1} --show"
            for r in bad
        )
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def show(seeds: Sequence[int]) -> int:
    """A program, its text, and what becomes of it."""
    failed = 0
    for seed in seeds:
        case = random_kernel(seed)
        print(case.text)
        for source in emitted(case).sources:
            print(source.text)
        for outcome in run_seeds([seed]):
            print(outcome)
            failed |= outcome.is_bad
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="0:500", metavar="FIRST:END")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "random_kernels.jsonl")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--total", type=float, default=inf, help="seconds, then no more are begun")
    parser.add_argument("--record", type=Path, help="a file for the printed tables")
    parser.add_argument("--show", action="store_true", help="print programs and CUDA, keep nothing")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end))
    if arguments.show:
        return show(seeds)
    found = run(seeds, arguments.out, arguments.workers, time.monotonic() + arguments.total)
    if not found:
        sys.exit("no seed was run")
    text = report(found)
    if len(found) < len(seeds):
        text = f"{len(seeds) - len(found)} of {len(seeds)} seeds are left for another run\n\n{text}"
    if arguments.record:
        known = facts(("numpy", "scipy"))
        head = "\n".join(f"{k}: {v}" for k, v in known.items())
        arguments.record.write_text(f"{head}\n\n{text}")
    print(text, end="")
    return int(any(r["kind"] not in ("ok", "refused") for r in found))


if __name__ == "__main__":
    sys.exit(main())
