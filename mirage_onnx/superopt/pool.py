"""Searching many regions: one task per distinct region, on all cores.

Workers are forked, so they inherit the imported model; what they send back is plain data. The order
of results is the order of the regions, whatever the number of workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from mirage_onnx.ir.region import Region
from mirage_onnx.superopt.search import SearchResult

_task: Callable[[Region], SearchResult] | None = None
_regions: Sequence[Region] = ()


def _run(index: int) -> SearchResult:
    assert _task is not None
    return _task(_regions[index])


def search_all(
    regions: Sequence[Region],
    task: Callable[[Region], SearchResult],
    *,
    workers: int | None = None,
    done: Callable[[int, SearchResult], None] | None = None,
) -> tuple[SearchResult, ...]:
    """``task`` of every region; ``done`` is told each result, in order."""
    global _task, _regions
    count = min(workers or os.cpu_count() or 1, len(regions))
    _task, _regions = task, regions
    found: list[SearchResult] = []
    try:
        if count <= 1:
            results = map(task, regions)
            for i, r in enumerate(results):
                found.append(r)
                if done:
                    done(i, r)
            return tuple(found)
        with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
            try:
                for i, r in enumerate(pool.map(_run, range(len(regions)))):
                    found.append(r)
                    if done:
                        done(i, r)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return tuple(found)
    finally:
        _task, _regions = None, ()
