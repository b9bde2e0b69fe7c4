"""Who searches: processes of this machine, or of the machines of a Ray cluster.

    workers=8                      so many processes here (default: one a core)
    workers="auto"                 the Ray cluster that is running here, all its cores
    workers="ray://HOST:10001"     the same, as a client of it

A worker of the cluster is an actor that holds a process as those here are, so both do the same: what a
search finds depends on the region alone. A node that goes away loses what its workers were at; that is
searched again by another one. Every node needs this package in the same version, and the model's weights at
the same path. Its cores compile kernels, too (``cluster_compiler.py``), and GPUs as the one here time them
(``cluster_timer.py``).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from mirage_onnx.cores import available_cores
from mirage_onnx.errors import MirageError
from mirage_onnx.source_digest import PROOF_SOURCES, SEARCH_SOURCES, source_digest
from mirage_onnx.worker_process import WorkerProcess

MODULE = "mirage_onnx.searching"
#: What has to be the same on every node: all that a search and its proof depend on.
SAME = (*SEARCH_SOURCES, *PROOF_SOURCES)
#: How often a search is given to another worker of a cluster after a node has gone away.
AGAIN = 3
#: How a cluster is called.
AUTO, CLIENT = "auto", "ray://"


class SearchWorker(Protocol):
  """One that takes messages and answers; as ``WorkerProcess``."""

  def yields(self) -> None: ...
  def send(self, value: object) -> None: ...
  def receive(self) -> tuple[str, tuple[Any, ...]]: ...
  def kill(self) -> None: ...
  def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Crew:
  """``count`` workers at most, each by ``make``; a lost one's work is done ``again`` so many times."""

  count: int
  make: Callable[[], SearchWorker]
  again: int = 0

  @classmethod
  def of(cls, workers: int | str | None) -> Crew:
    """What ``optimize`` was told.

    Raises:
        MirageError: OPTION_INVALID, no such cluster.
    """
    if not isinstance(workers, str):
      return cls(workers or available_cores(), lambda: WorkerProcess(MODULE))
    ray = connected(workers)
    # No core is asked for: after a node has gone, others take its workers beside their own.
    actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy="SPREAD")(_Actor)
    count = max(1, int(ray.cluster_resources().get("CPU", 1)))
    return cls(count, lambda: ClusterWorker(ray, actor.remote()), AGAIN)


def check_workers(workers: int | str | None) -> None:
  """Raises MirageError (OPTION_INVALID) for what names no workers."""
  if isinstance(workers, str):
    if workers != AUTO and not workers.startswith(CLIENT):
      raise MirageError("OPTION_INVALID", f"workers={workers!r}: a number, auto or ray://HOST:PORT")
    if find_spec("ray") is None:
      raise MirageError("OPTION_INVALID", f"workers={workers!r} needs Ray: pip install 'mirage-onnx[ray]'")
  elif workers is not None and workers < 1:
    raise MirageError("OPTION_INVALID", f"workers={workers}: must be at least 1")


def connected(address: str) -> Any:
  """The module ``ray``, of which the cluster is the one at ``address``."""
  check_workers(address)
  import ray

  try:
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level="error")
  except Exception as error:
    raise MirageError(
      "OPTION_INVALID", f"workers={address!r}: {' '.join(str(error).split())[:200]}"
    ) from None
  return ray


class _Actor:
  """On a node: the process, and what goes to and fro."""

  def __init__(self) -> None:
    self._worker = WorkerProcess(MODULE)

  def digest(self) -> str:
    """The source that searches there."""
    return source_digest(*SAME)

  def send(self, data: bytes) -> None:
    self._worker.send(pickle.loads(data))

  def receive(self) -> bytes:
    return pickle.dumps(self._worker.receive())


class ClusterWorker:
  """The end here of a worker on a node, as a ``SearchWorker``."""

  def __init__(self, ray: Any, actor: Any) -> None:
    self._ray, self._actor, self._known = ray, actor, False

  def yields(self) -> None:
    """What else runs on a node is not ours to say."""

  def send(self, value: object) -> None:
    """Raises BrokenPipeError: the node is gone."""
    try:
      if not self._known:
        if self._ray.get(self._actor.digest.remote()) != source_digest(*SAME):
          raise RuntimeError("a node of the cluster has another version of mirage-onnx")
        self._known = True
      self._ray.get(self._actor.send.remote(pickle.dumps(value)))
    except self._ray.exceptions.RayError as error:
      raise BrokenPipeError(str(error)[:200]) from None

  def receive(self) -> tuple[str, tuple[Any, ...]]:
    """Raises EOFError: the node is gone, or the process there has ended."""
    try:
      found: tuple[str, tuple[Any, ...]] = pickle.loads(self._ray.get(self._actor.receive.remote()))
    except self._ray.exceptions.RayError as error:
      raise EOFError(str(error)[:200]) from None
    return found

  def kill(self) -> None:
    """End it, whatever it is doing."""
    with suppress(Exception):
      self._ray.kill(self._actor)

  def close(self) -> None:
    """Nothing is held here."""
