"""Kernels compiled by the cores of a Ray cluster, where the search runs there (``search_workers.py``).

What NVRTC makes of a text depends on the text, the target, its version and our headers. A node says with what
it compiles, and what it was asked with another compiler is compiled here. So is what a node had that is gone,
after Ray has tried others. Nodes have the text of a kernel only: neither the model nor a GPU.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mirage_onnx import deadline
from mirage_onnx.errors import Rejection
from mirage_onnx.search_workers import AGAIN, connected
from mirage_onnx.target import Target

if TYPE_CHECKING:  # a model with nothing to gain imports no code generator
  from mirage_onnx.compiler.cubin import Cubin

#: So many kernels are compiled here at once: who sends them elsewhere waits for the network as well.
FEW = 2


@contextmanager
def compiling_on(workers: int | str | None) -> Iterator[None]:
  """Inside, the cluster that ``workers`` name compiles; numbers name none."""
  if not isinstance(workers, str):
    yield
    return
  from mirage_onnx.compiler.compile import compiled_elsewhere

  with compiled_elsewhere(ClusterCompiler(workers)):
    yield


class ClusterCompiler:
  """Asked for kernels by any thread; the cluster is joined when it is asked first."""

  def __init__(self, workers: str) -> None:
    self._workers, self._joining = workers, threading.Lock()
    self._ray: Any = None
    self._task: Any = None

  def __call__(self, jobs: Sequence[tuple[str, str]], target: Target) -> list[Cubin | Rejection | None]:
    """Of (text, name) what the compiler makes; None: to be compiled here."""
    if len(jobs) <= FEW:
      return [None] * len(jobs)
    from mirage_onnx.compiler.compile import compiler_text

    with self._joining:
      if self._ray is None:
        self._ray = connected(self._workers)
        self._task = self._ray.remote(num_cpus=1, max_retries=AGAIN)(_there)
    asked = [self._task.remote(pickle.dumps((*job, target, compiler_text()))) for job in jobs]
    seconds = min(max(0.0, deadline.end() - time.monotonic()), threading.TIMEOUT_MAX)
    ready, late = self._ray.wait(asked, num_returns=len(asked), timeout=seconds)
    for one in late:
      with suppress(Exception):
        self._ray.cancel(one)
    done = {*ready}
    return [self._result(one) if one in done else None for one in asked]

  def _result(self, one: Any) -> Cubin | Rejection | None:
    try:
      found: Cubin | Rejection | None = pickle.loads(self._ray.get(one))
    except self._ray.exceptions.RayError:  # its node is gone, and the others have had it
      return None
    return found


def _there(data: bytes) -> bytes:
  """On a node: the result, or None with another compiler than was asked."""
  from mirage_onnx.compiler.compile import compiler_text, of_one

  text, name, target, compiler = pickle.loads(data)
  return pickle.dumps(of_one(text, name, target) if compiler_text() == compiler else None)
