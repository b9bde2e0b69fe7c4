"""Regions timed by the GPUs of a Ray cluster, where the search runs there (``search_workers.py``).

A node's GPU times what this machine's would: it is such a GPU with the same driver and ONNX Runtime, and all
that measures is the same source; those of which that is not so are not asked, nor is the one here, which
works beside them. A region has one of them for all of its looks, and what is compared is always of one look.
What a node had that is gone is asked of another one, and of the GPU here in the end. Whole models are timed
here. Every node needs the model's weights at the same path.
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from mirage_onnx import deadline
from mirage_onnx.errors import RejectionError
from mirage_onnx.search_workers import AGAIN, connected
from mirage_onnx.source_digest import PLUMBING, source_digest

if TYPE_CHECKING:  # a model with nothing to gain imports none of them
  import numpy as np

  from mirage_onnx.compiler.candidates import Compiled
  from mirage_onnx.importer import LoadedModel
  from mirage_onnx.ir import Region
  from mirage_onnx.target import Target
  from mirage_onnx.tune.measure import RegionBench

#: What has to be the same on every node, beside the machine.
SAME = ("tune", "verify", "importer", "match", "ir", "compiler", *PLUMBING)
#: Where a node takes its bench from.
MEASURE = "mirage_onnx.tune.measure"
#: Seconds for nodes to say what they are; who asks often how long it may wait waits so long at a time.
READY_S, POLL_S = 30.0, 0.25
#: The number of the GPU here.
HERE = -1


@contextmanager
def timing_on(workers: int | str | None, *, measured: bool) -> Iterator[None]:
  """Inside, the cluster that ``workers`` name times regions, too; numbers name none."""
  if not isinstance(workers, str) or not measured:
    yield
    return
  from mirage_onnx.tune.measure import timed_elsewhere

  timer = ClusterTimer(workers)
  try:
    with timed_elsewhere(timer):
      yield
  finally:
    timer.close()


class ClusterTimer:
  """Asked for the bench of a region by any thread; the cluster is joined when it is asked first."""

  def __init__(self, workers: str) -> None:
    self._workers, self._lock = workers, threading.Lock()
    self._ray: Any = None
    self._gpus: list[Any] = []
    self._busy = Counter[int]()
    self._numbers = itertools.count()
    self._models: dict[int, tuple[LoadedModel, Any]] = {}

  def __call__(
    self, loaded: LoadedModel, region: Region, target: Target, here: Callable[[], RegionBench]
  ) -> RegionBench | None:
    """The bench of a region on the GPU of a node; None: it is the turn of the one ``here``."""
    with self._lock:
      if self._ray is None:
        self._join()
      at = self._least_busy(HERE)
      if at is None or at == HERE:
        return _Counted(here(), lambda: self._left(HERE))
      model = self._models.get(id(loaded))
      if model is None:
        model = self._models[id(loaded)] = loaded, self._ray.put(_sent(loaded))
      return ClusterBench(self, at, next(self._numbers), model[1], region, target, here)

  def _join(self) -> None:
    """Actors on GPUs as ours."""
    self._ray = ray = connected(self._workers)
    count = int(ray.cluster_resources().get("GPU", 0))
    actor = ray.remote(num_gpus=1, num_cpus=0, max_restarts=0)(_Gpu)
    actors = [actor.remote(MEASURE) for _ in range(count)]
    asked = [a.facts.remote() for a in actors]
    ready = {*ray.wait(asked, num_returns=len(asked), timeout=READY_S)[0]} if asked else set()
    own, here = _facts()
    for a, one in zip(actors, asked, strict=True):
      there, at = None, ""
      if one in ready:
        with suppress(ray.exceptions.RayError):
          there, at = pickle.loads(ray.get(one))
      if there == own and at != here:
        self._gpus.append(a)
      else:
        ray.kill(a)

  def _least_busy(self, *others: int) -> int | None:
    """The number of a node's GPU, or of ``others``, with the fewest regions, which has one more now."""
    there = [n for n, gpu in enumerate(self._gpus) if gpu is not None]
    at = min([*others, *there], key=lambda n: (self._busy[n], n < 0), default=None)
    if at is not None:
      self._busy[at] += 1
    return at

  def _left(self, at: int) -> None:
    with self._lock:
      self._busy[at] -= 1

  def other(self, lost: int) -> int | None:
    """A GPU in place of one that is gone; None: there is no other one."""
    with self._lock:
      self._gpus[lost] = None
      self._busy[lost] -= 1
      return self._least_busy()

  def ask(self, at: int, method: str, *given: Any) -> Any:
    """What the actor of a GPU answers.

    Raises:
        ConnectionError: it is gone.
        OverdueError: the time is over that the caller has set.
    """
    gpu = self._gpus[at]
    if gpu is None:
      raise ConnectionError("the node is gone")
    try:
      one = getattr(gpu, method).remote(*given)
      while not self._ray.wait([one], num_returns=1, timeout=POLL_S)[0]:
        deadline.check()
      return self._ray.get(one)
    except self._ray.exceptions.RayError as error:
      raise ConnectionError(str(error)[:200]) from None

  def done(self, at: int, number: int) -> None:
    """The region of this number needs nothing any more."""
    with suppress(Exception):
      self._gpus[at].close.remote(number)
    self._left(at)

  def close(self) -> None:
    """Give the GPUs back."""
    for gpu in self._gpus:
      with suppress(Exception):
        self._ray.kill(gpu)


class _Counted:
  """A bench here, which is one region for its GPU."""

  def __init__(self, bench: RegionBench, left: Callable[[], None]) -> None:
    self._bench, self._left = bench, left
    self.ready, self.alone = bench.ready, bench.alone
    self.complaints, self.times_us = bench.complaints, bench.times_us

  def __enter__(self) -> Self:
    self._bench.__enter__()
    return self

  def __exit__(self, *error: Any) -> None:
    try:
      self._bench.__exit__(*error)
    finally:
      self._left()


class ClusterBench:
  """The ``Bench`` of a region on a node; what that had when it went away is asked elsewhere, at last here."""

  def __init__(
    self, timer: ClusterTimer, at: int, number: int, model: Any, region: Region, target: Target,
    here: Callable[[], RegionBench],
  ) -> None:  # fmt: skip
    self._timer, self._number, self._model = timer, number, model
    self._region, self._target, self._here = region, target, here
    self._at: int | None = at
    self._sent = set[str]()
    self._open = ExitStack()
    self._own: RegionBench | None = None

  def __enter__(self) -> Self:
    return self

  def __exit__(self, *error: Any) -> None:
    if self._at is not None:
      self._timer.done(self._at, self._number)
    self._open.close()

  def ready(self) -> None:
    """A node makes what it needs itself."""

  def alone(self) -> AbstractContextManager[None]:
    """The GPU here is not used."""
    return nullcontext()

  def complaints(self, some: Sequence[Compiled]) -> list[str | None]:
    """As of ``Bench``."""
    found: list[str | None] = self._asked("complaints", some)
    return found

  def times_us(self, some: Sequence[Compiled], samples: int, *, beside_ort: bool) -> np.ndarray:
    """As of ``Bench``."""
    found: np.ndarray = self._asked("times_us", some, samples, beside_ort=beside_ort)
    return found

  def _asked(self, what: str, some: Sequence[Compiled], *given: Any, **how: Any) -> Any:
    from mirage_onnx.tune.kept_bench import kernel_text

    keys = [kernel_text(c) for c in some]
    for _ in range(AGAIN + 1):
      if self._at is None:
        break
      new = {k: c for k, c in zip(keys, some, strict=True) if k not in self._sent}
      job = pickle.dumps((self._number, self._region, self._target, new, keys, what, given, how))
      try:
        kind, value = pickle.loads(self._timer.ask(self._at, "ask", self._model, job))
      except ConnectionError:
        self._at, self._sent = self._timer.other(self._at), set()
        continue
      self._sent.update(new)
      if kind == "refused":
        raise RejectionError(value.code, value.reason, value.nodes)
      if kind == "failed":
        raise RuntimeError(value)
      return value
    if self._own is None:
      self._own = self._open.enter_context(self._here())
    return getattr(self._own, what)(some, *given, **how)


def _sent(loaded: LoadedModel) -> bytes:
  """A model for nodes: its weights stay in its files."""
  from mirage_onnx.importer.inline import sent

  return pickle.dumps((sent(loaded).SerializeToString(), loaded.known))


def _facts() -> tuple[tuple[str, Any], str]:
  """What has to be the same, our source and the machine; and which of such GPUs it is."""
  from mirage_onnx.tune import device, machine

  found = machine.present_machine()
  return (source_digest(*SAME), None if found is None else found.text), device.gpu_id()


class _Gpu:
  """On a node: its GPU, and the benches of the regions that are timed there."""

  def __init__(self, module: str) -> None:
    self._module = import_module(module)
    self._model: tuple[bytes, Any] | None = None
    self._open: dict[int, _OnThread] = {}
    self._free: list[ThreadPoolExecutor] = []

  def facts(self) -> bytes:
    """What it is, and which."""
    return pickle.dumps(_facts())

  def ask(self, model: bytes, data: bytes) -> bytes:
    """One question about a region: ("value", x), ("refused", what is said), ("failed", why)."""
    number, region, target, new, keys, what, given, how = pickle.loads(data)
    try:
      if number not in self._open:
        thread = self._free.pop() if self._free else ThreadPoolExecutor(1)
        self._open[number] = _OnThread(thread, self._module.GpuBench(self._loaded(model), region, target))
      at = self._open[number]
      at.known |= new
      return pickle.dumps(("value", at.asked(what, keys, given, how)))
    except RejectionError as error:
      return pickle.dumps(("refused", error.rejection))
    except Exception as error:
      return pickle.dumps(("failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))

  def _loaded(self, model: bytes) -> Any:
    if self._model is None or self._model[0] != model:
      import onnx

      proto, known = pickle.loads(model)
      self._model = model, known.loaded(onnx.ModelProto.FromString(proto))
    return self._model[1]

  def close(self, number: int) -> None:
    """What the region had on the GPU goes."""
    if number in self._open:
      at = self._open.pop(number)
      at.thread.submit(at.bench.__exit__, None, None, None).result()
      self._free.append(at.thread)


@dataclass
class _OnThread:
  """A bench with a thread for itself, whose is what it has of the GPU. ``known``: kernels by their texts."""

  thread: ThreadPoolExecutor
  bench: Any
  known: dict[str, Any] = field(default_factory=dict)

  def asked(self, what: str, keys: Sequence[str], given: Sequence[Any], how: Mapping[str, Any]) -> Any:
    """What the bench says."""
    some = [self.known[k] for k in keys]
    return self.thread.submit(getattr(self.bench, what), some, *given, **how).result()
