"""From a model to an emulated session: what onnxruntime is given, and whose launch a launch is.

Every fp16 output of a custom node gets one more reader, a Flatten whose result nobody wants, or
onnxruntime's CPU provider would feed the node fp32 tensors (``IsIsolatedFp16NodeOnCpu`` in its
insert_cast_transformer.cc): docs/decisions.md, "Emulated sessions".
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from onnx import helper

from mirage_onnx.custom_op.emulated import EmulatedModel
from mirage_onnx.custom_op.library import OpsLibrary
from mirage_onnx.custom_op.model_nodes import CustomNode, Model, ModelFile
from mirage_onnx.custom_op.target_view import seen_by, suffixes_of
from mirage_onnx.emulator import EmulationError
from mirage_onnx.emulator.driver import DriverLaunch
from mirage_onnx.errors import MirageError


@dataclass(frozen=True, slots=True)
class Emulation:
  """What an emulated session is made of; ``model`` is the bytes for onnxruntime."""

  model: bytes
  external_folder: str | None
  kernels: EmulatedModel
  nodes: tuple[str, ...]

  @property
  def driver(self) -> str:
    """Path of the driver library."""
    return str(self.kernels.driver.path)

  @contextmanager
  def creating(self, library: OpsLibrary) -> Iterator[int]:
    """Around the making of a session: its launches come to these kernels from then on.

    Yields what ``forget`` has to be told when the session is gone.

    Raises:
        MirageError: NOT_EMULATED when the session left a custom node to its function body.
    """
    self.kernels.driver.set_runner(_sessions.run)
    with _sessions.creation:
      first = library.mark()
      _sessions.open(first, self.kernels)
      try:
        yield first
        made = {c.node or c.op for c in library.counters() if c.id >= first}
        if missing := sorted(set(self.nodes) - made):
          what = "would run their function bodies"
          raise MirageError("NOT_EMULATED", f"{', '.join(missing)} {what}")
      except BaseException:
        _sessions.forget(first)
        raise
      _sessions.close(first, library.mark())

  @staticmethod
  def forget(first: int) -> None:
    """The session of this id is gone."""
    _sessions.forget(first)


def prepare(model: Model, external_folder: str | None = None) -> Emulation | None:
  """None for a model without custom nodes; of one for several targets, the first one's kernels.

  ``external_folder``: where the external data of a model given as bytes is.

  Raises:
      MirageError: those of ``ModelFile`` and ``EmulatedModel``.
  """
  file = ModelFile.read(model, external_folder)
  nodes = file.custom_nodes()
  if not nodes:
    return None
  if len({n.domain for n in nodes}) > 1:
    file = replace(file, proto=seen_by(file.proto, suffixes_of(file.proto)[0]))
    nodes = file.custom_nodes()
  kernels = EmulatedModel(nodes, file.bundle())
  folder = file.external_folder
  _anchor(nodes, kernels)
  return Emulation(file.proto.SerializeToString(), folder, kernels, tuple(n.name for n in nodes))


def _anchor(nodes: tuple[CustomNode, ...], kernels: EmulatedModel) -> None:
  for i, node in enumerate(nodes):
    outputs = zip(node.outputs, kernels.plans[node.plan].plan.outputs, strict=False)
    for k, (name, spec) in enumerate(outputs):
      if name and spec.dtype == "f16":
        unread = f"mirage.fp16.{i}.{k}"
        node.graph.node.append(helper.make_node("Flatten", [name], [unread], name=unread, axis=0))


class _Sessions:
  """Live emulated sessions, by the ids of their kernel objects.

  The library counts kernel objects up in the process. Sessions are made one after the other, so a
  session's ids are a range of their own.
  """

  def __init__(self) -> None:
    self.creation = threading.Lock()
    self._lock = threading.Lock()
    self._ranges: dict[int, tuple[int | None, EmulatedModel]] = {}  # first -> end, kernels

  def open(self, first: int, kernels: EmulatedModel) -> None:
    with self._lock:
      self._ranges[first] = (None, kernels)

  def close(self, first: int, end: int) -> None:
    with self._lock:
      self._ranges[first] = (end, self._ranges[first][1])

  def forget(self, first: int) -> None:
    with self._lock:
      self._ranges.pop(first, None)

  def run(self, launch: DriverLaunch) -> None:
    self._of(launch).run(launch)

  def _of(self, launch: DriverLaunch) -> EmulatedModel:
    with self._lock:
      for first, (end, kernels) in self._ranges.items():
        if first <= launch.counter and (end is None or launch.counter < end):
          return kernels
    raise EmulationError(f"kernel {launch.kernel}: no emulated session launched it")


_sessions = _Sessions()
