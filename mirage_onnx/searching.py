"""Searching the regions of a model: the search with the verifier inside, on all cores.

Workers are programs of their own (``python -m mirage_onnx.searching``) that take pickled regions on
stdin and answer on stdout. They are not forked: a process that has run onnxruntime has threads, and
a fork of it can wait for ever on a lock that one of them held. Nor are they started through
``multiprocessing``, which would run the caller's script again. The order of results is the order of
the regions, whatever the number of workers.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import onnx

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel, load_model
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import KernelParams, UGraph
from mirage_onnx.superopt.result import Bound, SearchResult
from mirage_onnx.superopt.search import search
from mirage_onnx.target import Target
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.safety import SafetyCheck
from mirage_onnx.verify.weights import sample_weights

#: Fewer regions than this are searched here: starting a worker takes longer.
MIN_REGIONS = 8
#: Models beyond this size are not sent to workers.
MAX_MODEL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Setting:
    """What all searches of a run share."""

    target: Target
    bound: Bound
    deadline: float  # of time.monotonic

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


def search_region(
    loaded: LoadedModel, region: Region, target: Target, bound: Bound, seconds: float
) -> SearchResult:
    """Search one region; a candidate counts if it is proven equal and safe in floating point."""
    safety = SafetyCheck(region, sample_weights(loaded, region))

    def prove(r: Region, g: UGraph, p: tuple[KernelParams, ...]) -> Proof | Rejection:
        proof = verify(r, g)
        if isinstance(proof, Rejection):
            return proof
        record = safety.check(g, p)
        return record if isinstance(record, Rejection) else proof

    return search(region, target, prove, bound=bound, budget_s=seconds)


def search_all(
    loaded: LoadedModel,
    regions: Sequence[Region],
    setting: Setting,
    *,
    workers: int | None = None,
    done: Callable[[int, SearchResult], None],
) -> None:
    """Search every region; ``done`` is told each result, in order."""
    count = min(workers or os.cpu_count() or 1, len(regions))
    if count <= 1 or len(regions) < MIN_REGIONS or loaded.proto.ByteSize() > MAX_MODEL_BYTES:
        for i, region in enumerate(regions):
            done(
                i,
                search_region(loaded, region, setting.target, setting.bound, setting.seconds_left),
            )
        return
    header = (loaded.proto.SerializeToString(), loaded.base_dir, setting.target, setting.bound)
    started: list[_Worker] = []
    local = threading.local()

    def start() -> None:
        local.worker = _Worker(header)
        started.append(local.worker)

    def ask(region: Region) -> SearchResult:
        worker: _Worker = local.worker
        return worker.ask(region, setting.seconds_left)

    with ThreadPoolExecutor(count, initializer=start) as pool:
        try:
            for i, result in enumerate(pool.map(ask, regions)):
                done(i, result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            for worker in started:
                worker.stop()


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, header: tuple[object, ...]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mirage_onnx.searching"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        self._send(header)

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        pickle.dump(value, self._process.stdin)
        self._process.stdin.flush()

    def ask(self, region: Region, seconds: float) -> SearchResult:
        self._send((region, seconds))
        assert self._process.stdout is not None
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, SearchResult):
            return answer
        raise RuntimeError(f"a search worker failed: {answer}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _serve() -> None:
    """The worker: header, then (region, seconds) -> result, until stdin ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not reach the pipe
    data, base_dir, target, bound = pickle.load(requests)
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    loaded = load_model(proto, base_dir)
    while True:
        try:
            region, seconds = pickle.load(requests)
        except EOFError:
            return
        answer: object
        try:
            answer = search_region(loaded, region, target, bound, seconds)
        except Exception as error:  # told to the parent, which raises it
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    try:
        _serve()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
