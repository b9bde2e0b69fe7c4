"""onnxruntime sessions that run optimized models: one call instead of four lines, and the retry.

``InferenceSession`` takes what onnxruntime's takes and returns onnxruntime's. What it adds is the
choice between our kernels and the function bodies, which ORT cannot make by itself: registration
happens before the providers are known, and an op that is registered for a provider which then is
not there fails the whole session instead of falling back to its body.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirage_onnx.custom_op.library import Counter, OpsLibrary, get_library_path, load_library
from mirage_onnx.custom_op.runtime import (
  EXTERNAL_FOLDER_KEY,
  custom_nodes,
  import_onnxruntime,
  kernel_suffixes,
)
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort

  from mirage_onnx.custom_op.emulation import Emulation

CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
MODES = ("auto", "cuda", "none", "host")

_EP_KEY = "ai.mirage.ep"
_DRIVER_KEY = "ai.mirage.driver"
_TAG_KEY = "ai.mirage.session"
_REGISTERED_KEY, _REASON_KEY = "ai.mirage.registered", "ai.mirage.reason"  # written by the library
# How ORT says that no provider of the session has a kernel for a registered op (it has two ways).
_MISSING_KERNEL = ("Failed to find kernel for", "Could not find an implementation for")
# What the library says of a machine: its driver does not take an image, a part of a GPU holds no cluster.
_OF_MACHINE = "cuLibraryLoadData of cubin", "and the device has none", "the device holds no cluster of"
_SHARED_TAG = "*"  # where the library counts when there are too many tags


@dataclass(frozen=True, slots=True)
class _Record:
  """What ``launches`` needs to know of a session."""

  nodes: tuple[str, ...]
  library: OpsLibrary | None  # None: our ops were not registered
  tag: str
  first_id: int  # ids of its counters: first_id <= id < end_id
  end_id: int


class _Tags:
  """Session tags. One of a session that is gone is used again, which keeps the library small."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._free: list[int] = []
    self._numbers = itertools.count()

  def take(self) -> int:
    with self._lock:
      return heapq.heappop(self._free) if self._free else next(self._numbers)

  def give_back(self, number: int) -> None:
    with self._lock:
      heapq.heappush(self._free, number)


_tags = _Tags()
_tag_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_records: weakref.WeakKeyDictionary[Any, _Record] = weakref.WeakKeyDictionary()


def register(sess_options: ort.SessionOptions, *, ep: str | None = None, driver: str | None = None) -> None:
  """Adds our custom ops to session options, ``sess_options``: for code that makes its own session.

  ``ep`` and ``driver`` become config entries (``ai.mirage.ep``, ``ai.mirage.driver``); without
  them the options' own entries hold, then ``MIRAGE_ONNX_EP`` and ``MIRAGE_ONNX_DRIVER``, then
  ``auto`` and ``libcuda.so.1``.

  Raises:
      MirageError: OPTION_INVALID, OPS_LIBRARY_MISSING, or SESSION_FAILED when the library refuses
          (an explicit ``ep`` that this machine cannot serve).
  """
  if ep is not None and ep not in MODES:
    raise MirageError("OPTION_INVALID", f"ep={ep!r} is not one of {', '.join(MODES)}")
  # Entries first: registration reads them, and later ones would have no effect.
  if ep is not None:
    sess_options.add_session_config_entry(_EP_KEY, ep)
  if driver is not None:
    sess_options.add_session_config_entry(_DRIVER_KEY, os.fspath(driver))
  path = get_library_path()
  try:
    sess_options.register_custom_ops_library(path)
  except Exception as error:  # onnxruntime has a class per status code and no common base
    raise MirageError("SESSION_FAILED", f"registering {path} failed: {error}") from error


def InferenceSession(  # noqa: N802 (the name users know)
  path_or_bytes: str | bytes | os.PathLike[str],
  sess_options: ort.SessionOptions | None = None,
  providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
  provider_options: Sequence[dict[str, Any]] | None = None,
  *,
  ep: str | None = None,
  driver: str | None = None,
  emulate: bool = False,
  **kwargs: Any,
) -> ort.InferenceSession:
  """Makes an ``onnxruntime.InferenceSession`` that runs our kernels where it can.

  Args:
      path_or_bytes: the model, as for onnxruntime; a path when it has external data.
      sess_options: the caller's options; config entries and the library are added to them.
      providers: as for onnxruntime.
      provider_options: as for onnxruntime.
      ep: ``auto``, ``cuda``, ``none`` (function bodies) or ``host`` (CPU tensors, needs
          ``driver``). Default: the options' entry, ``MIRAGE_ONNX_EP``, else ``auto`` when
          CUDAExecutionProvider is requested and available, else ``none``.
      driver: path of a CUDA driver library other than ``libcuda.so.1``.
      emulate: run every custom node's generated kernels in the CPU emulator, in the CPU provider:
          slow, checked, and without a GPU. Excludes ``ep``, ``driver`` and other providers; needs
          g++.
      kwargs: passed on to onnxruntime.

  Raises:
      MirageError: ORT_MISSING, ORT_CONFLICT, and those of ``register``; with ``emulate`` also
          those of ``emulation.prepare`` and NOT_EMULATED. Errors of onnxruntime itself pass
          through unchanged.
  """
  runtime = import_onnxruntime()
  nodes = custom_nodes(path_or_bytes)
  options = runtime.SessionOptions() if sess_options is None else sess_options
  emulation: Emulation | None = None
  if emulate:
    _refuse_mixture(options, providers, ep, driver)
    from mirage_onnx.custom_op.emulation import prepare  # here: it needs onnx and codegen

    ep, providers, provider_options = "none", [CPU_PROVIDER], None
    told = _entry(options, EXTERNAL_FOLDER_KEY)
    if emulation := prepare(path_or_bytes, told):
      path_or_bytes, ep, driver = emulation.model, "host", emulation.driver
      if emulation.external_folder not in (None, told):  # onnxruntime warns of an entry that is there
        options.add_session_config_entry(EXTERNAL_FOLDER_KEY, emulation.external_folder)

  def make() -> ort.InferenceSession:
    return runtime.InferenceSession(path_or_bytes, options, providers, provider_options, **kwargs)

  mode = _choose_mode(runtime, options, providers, ep)
  registered = _entry(options, _REGISTERED_KEY) is not None
  if not registered and (mode == "none" or nodes == ()):
    session = make()
    _records[session] = _Record(nodes or (), None, "", 0, 0)
    return session

  library = load_library(get_library_path())
  number: int | None = None
  if not registered:
    number = _tags.take()
    options.add_session_config_entry(_TAG_KEY, f"py{number}")
  try:
    if not registered:
      register(options, ep=mode, driver=driver)
    tag = _entry(options, _TAG_KEY) or ""
    # Sessions made from the same options share a tag; the lock gives each its own range of ids.
    watched = emulation.creating(library) if emulation else contextlib.nullcontext()
    fell_back = mode == "none"
    with watched as emulated_id, _tag_locks[tag]:
      first = library.mark()
      library.hide(tag, mode == "none")
      try:
        session = make()
      except Exception as error:  # as in register()
        if emulation or not _is_missing_kernel(error):
          raise
        warnings.warn(_fallback_message(error), RuntimeWarning, stacklevel=2)
        fell_back = True
        library.hide(tag, True)
        session = make()
      finally:
        library.hide(tag, False)
      record = _records[session] = _Record(nodes or (), library, tag, first, library.mark())
  except BaseException:
    if number is not None:
      _tags.give_back(number)
    raise
  if number is not None:
    weakref.finalize(session, _tags.give_back, number)
  if emulation and emulated_id is not None:
    weakref.finalize(session, emulation.forget, emulated_id)
  if nodes and not fell_back and not _counters(record) and _is_meant(session, mode):
    reason = _entry(options, _REASON_KEY) or "unknown"
    warnings.warn(_no_kernel_message(path_or_bytes, reason), RuntimeWarning, stacklevel=2)
  return session


def launches(session: ort.InferenceSession) -> dict[str, int]:
  """Kernel launches per MuGraph node since ``session`` was made; 0 where the body ran.

  Raises:
      MirageError: LAUNCHES_UNKNOWN when the session did not come from ``InferenceSession``.
  """
  record = _records.get(session)
  if record is None:
    raise MirageError("LAUNCHES_UNKNOWN", "this session was not made by mirage_onnx")
  counts = dict.fromkeys(record.nodes, 0)
  for counter in _counters(record):
    node = counter.node or counter.op
    counts[node] = counts.get(node, 0) + counter.launches
  return counts


def _counters(record: _Record) -> list[Counter]:
  """Of the nodes for which the session has kernels."""
  if record.library is None:
    return []
  own = (c for c in record.library.counters() if c.session in (record.tag, _SHARED_TAG))
  return [c for c in own if record.first_id <= c.id < record.end_id]


def _entry(options: ort.SessionOptions, key: str) -> str | None:
  try:
    return str(options.get_session_config_entry(key))
  except Exception:  # onnxruntime's way to say that there is no such entry
    return None


def _choose_mode(
  runtime: Any,
  options: ort.SessionOptions,
  providers: Sequence[str | tuple[str, dict[str, Any]]] | None,
  ep: str | None,
) -> str:
  mode = ep or _entry(options, _EP_KEY) or os.environ.get("MIRAGE_ONNX_EP")
  if mode:
    if mode not in MODES:
      raise MirageError("OPTION_INVALID", f"ep={mode!r} is not one of {', '.join(MODES)}")
    return mode
  available = runtime.get_available_providers()
  requested = available if providers is None else providers
  names = {item if isinstance(item, str) else item[0] for item in requested}
  return "auto" if CUDA_PROVIDER in names and CUDA_PROVIDER in available else "none"


def _refuse_mixture(
  options: ort.SessionOptions,
  providers: Sequence[str | tuple[str, dict[str, Any]]] | None,
  ep: str | None,
  driver: str | None,
) -> None:
  """What cannot be said together with ``emulate=True``."""
  names = [p if isinstance(p, str) else p[0] for p in providers or ()]
  for what, given in (
    ("ep", ep is not None),
    ("driver", driver is not None),
    (f"providers={names}", names not in ([], [CPU_PROVIDER])),
    ("options that have the custom ops already", _entry(options, _REGISTERED_KEY) is not None),
  ):
    if given:
      raise MirageError("OPTION_INVALID", f"emulate=True does not go with {what}")


def _is_missing_kernel(error: Exception) -> bool:
  """Whether our ops are there but the session cannot run them: no CUDA provider, other device or driver."""
  text = str(error)
  missing = any(phrase in text for phrase in _MISSING_KERNEL) and "MuGraph_" in text
  refused = "mirage-onnx: node" in text and any(part in text for part in _OF_MACHINE)
  return missing or "MIRAGE_DEVICE_MISMATCH" in text or refused


def _is_meant(session: ort.InferenceSession, mode: str) -> bool:
  """Whether the session has the provider that kernels are for: who has another one expects none."""
  return mode == "host" or CUDA_PROVIDER in session.get_providers()


def _no_kernel_message(model: str | bytes | os.PathLike[str], reason: str) -> str:
  """A model for other GPUs, or a driver that the library cannot use."""
  return (
    f"none of this model's mirage-onnx kernels is for this machine ({reason}; the model has kernels for "
    f"{', '.join(kernel_suffixes(model))}): the original operators run, at their original speed"
  )


def _fallback_message(error: Exception) -> str:
  return (
    "onnxruntime cannot run the mirage-onnx kernels in this session; the original operators "
    f"run instead, at their original speed. Its message: {error}"
  )
