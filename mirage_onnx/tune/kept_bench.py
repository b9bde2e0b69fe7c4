"""What was measured, from run to run: a ``Bench`` that asks the GPU only what it does not know.

A *look* is what is kept: kernels that were timed together, interleaved, with all samples. So two
times that are compared are always of one look; times of different days never meet. A race asks for the
same looks when it is run again, as it depends on their results alone, and ends without the GPU. A
verdict on a kernel's results (also that it is wrong) is kept by its text, its image, and all that
the check is made of: the region with its steps, its weights, and the source of the check.

Keys hold no names of the model, so equal regions of other models find the same entries.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

import numpy as np

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Region, print_ugraph
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.superopt.reach import places_of
from mirage_onnx.tune.baseline_nodes import canonical_nodes
from mirage_onnx.tune.machine import gpu_alone, present_machine
from mirage_onnx.tune.ort_run import region_model
from mirage_onnx.tune.race import Bench
from mirage_onnx.verify.weights import ModelWeights


def kept_bench(
  bench: Bench,
  loaded: LoadedModel,
  region: Region,
  ready: Callable[[], object] = lambda: None,
  weights: ModelWeights | None = None,
  alone: Callable[[], AbstractContextManager[None]] = gpu_alone,
) -> Bench:
  """``bench`` with the user's measurements in front of it, if any are kept.

  ``ready``, ``weights``, ``alone``: of ``KeptBench``.
  """
  folder = cache_folder("measurements")
  machine = present_machine() if folder is not None else None
  if machine is None:
    return bench
  return KeptBench(bench, KeptFolder(folder, machine.text), loaded, region, ready, weights, alone)


class KeptBench:
  """A ``Bench`` with ``store`` in front of it.

  ``ready``: waits for what the bench needs of other threads; they may want the GPU too, so it is asked
  before this one has it to itself. ``weights``: of the model, with what is known of them. ``alone``: inside
  of what nobody else uses the bench's GPU.
  """

  def __init__(
    self,
    bench: Bench,
    store: KeptFolder,
    loaded: LoadedModel,
    region: Region,
    ready: Callable[[], object] = lambda: None,
    weights: ModelWeights | None = None,
    alone: Callable[[], AbstractContextManager[None]] = gpu_alone,
  ) -> None:
    self._bench, self._store, self._nodes, self._ready = bench, store, region.nodes, ready
    self._alone = alone
    self._place = region_place(loaded, region)
    self._checked = (
      self._place,
      (weights or ModelWeights(loaded)).digest(region),
      source_digest("tune", "verify", "importer", "match", "ir"),
    )

  def complaints(self, some: Sequence[Compiled]) -> list[str | None]:
    """As of ``Bench``."""
    keys = [self._store.key("verdict", *self._checked, kernel_text(c)) for c in some]
    known = self._verdicts(keys)
    if len(known) < len(set(keys)):
      self._made_ready()
      left = {k: c for k, c in zip(keys, some, strict=True) if k not in known}
      known |= self._asked(list(left), list(left.values()))
    if refused := next((known[k][1] for k in keys if known[k][1]), None):
      raise RejectionError(refused[0], refused[1], self._nodes)
    return [known[k][0] for k in keys]

  def _verdicts(self, keys: Sequence[str]) -> dict[str, tuple[str | None, tuple[str, str] | None]]:
    found: dict[str, tuple[str | None, tuple[str, str] | None]] = {}
    for key in keys:
      value = self._store.get(key)
      try:
        if value is not None:
          found[key] = _verdict(value)
      except UNREADABLE:
        continue
    return found

  def _asked(
    self, keys: Sequence[str], some: Sequence[Compiled]
  ) -> dict[str, tuple[str | None, tuple[str, str] | None]]:
    refused: Rejection | None = None
    found: Sequence[str | None] = [None] * len(keys)
    try:
      found = self._bench.complaints(some)
    except RejectionError as error:
      refused = error.rejection
    told = None if refused is None else (refused.code, refused.reason)
    for key, wrong in zip(keys, found, strict=True):
      self._store.put(key, {"wrong": wrong, "refused": told})
    return {key: (wrong, told) for key, wrong in zip(keys, found, strict=True)}

  def times_us(self, some: Sequence[Compiled], samples: int, *, beside_ort: bool) -> np.ndarray:
    """As of ``Bench``."""
    arms = [*(["onnxruntime"] if beside_ort else ()), *map(kernel_text, some)]
    return kept_times(
      self._store,
      ("look", self._place, *arms),
      (len(arms), samples),
      lambda: self._bench.times_us(some, samples, beside_ort=beside_ort),
      self._made_ready,
      self._alone,
    )

  def _made_ready(self) -> None:
    with suppress(RejectionError):  # the bench says it
      self._ready()


def kept_times(
  store: KeptFolder,
  what: Sequence[str],
  shape: tuple[int, int],
  measure: Callable[[], np.ndarray],
  ready: Callable[[], object] = lambda: None,
  alone: Callable[[], AbstractContextManager[None]] = gpu_alone,
) -> np.ndarray:
  """Times in microseconds, (arms, samples), of what the texts ``what`` say; measured where not known.

  One process measures at a time. ``ready``: called before the GPU is this process's alone.
  """
  key = store.key(what[0], str(shape), *what[1:])
  if (known := _look(store, key, shape)) is not None:
    return known
  ready()
  with alone():
    if (known := _look(store, key, shape)) is not None:
      return known
    found = np.round(measure(), 4)
  if np.isfinite(found).all():
    store.put(key, {"us": found.tolist()})
  return found


def _look(store: KeptFolder, key: str, shape: tuple[int, int]) -> np.ndarray | None:
  value = store.get(key)
  try:
    found = None if value is None else np.array(value["us"], np.float64)
  except UNREADABLE:
    return None
  return found if found is not None and found.shape == shape and np.isfinite(found).all() else None


def _verdict(value: dict[str, object]) -> tuple[str | None, tuple[str, str] | None]:
  wrong, refused = value["wrong"], value["refused"]
  if wrong is not None and not isinstance(wrong, str):
    raise ValueError("no verdict")
  if not isinstance(refused, list):
    return wrong, None
  code, reason = refused
  return wrong, (str(code), str(reason))


def region_place(loaded: LoadedModel, region: Region) -> str:
  """What is asked of the GPU beside the kernels: the region, and ONNX Runtime's nodes of it."""
  how = ["half full, beside a part's share"] if places_of(region) else []  # once: full, beside the whole
  return json.dumps([region.text, canonical_nodes(region_model(loaded, region, hollow=True)), *how])


def kernel_text(c: Compiled) -> str:
  """All of a program that runs: its µGraph and numbers, its kernels' texts, launches and images."""
  sources = [
    [s.name, s.text, s.grid, s.block, s.cluster, s.smem_bytes, s.args, s.pdl, s.sizes, s.tiles]
    + [[m.tensor, *m.words] for m in s.maps]
    for s in c.sources
  ]
  images = [hashlib.sha256(cubin.image).hexdigest() for cubin in c.cubins]
  numbers = [p.to_text() for p in c.candidate.params]
  parts = [print_ugraph(c.candidate.ugraph), numbers, sources, images]
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
