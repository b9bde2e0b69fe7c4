"""onnxruntime sessions for comparing models: made, checked against each other, and run.

What fails is one line: MirageError with SESSION_FAILED, or what fits better.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx

from mirage_onnx.custom_op.full_products import IN_FULL, in_full
from mirage_onnx.custom_op.model_nodes import Model
from mirage_onnx.custom_op.runtime import EXTERNAL_FOLDER_KEY, import_onnxruntime
from mirage_onnx.custom_op.session import CPU_PROVIDER, CUDA_PROVIDER, InferenceSession
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_file

if TYPE_CHECKING:
  import onnxruntime as ort

#: Arrays by name.
Shaped = Mapping[str, np.ndarray]
_BFLOAT16 = "tensor(bfloat16)"
_EMULATION_FAULT = "EmulationError"  # emulator.driver puts the name of the exception first


@dataclass(frozen=True, slots=True)
class How:
  """How a model is run: the arguments of ``InferenceSession``. ``provider``: cpu or cuda.

  ``basic``: without onnxruntime's extended and layout optimizations.
  """

  provider: str = "cpu"
  emulate: bool = False
  ep: str | None = None
  driver: str | None = None
  basic: bool = False


def open_session(model: Model, how: How, external_folder: str | None = None) -> ort.InferenceSession:
  """A session; ``external_folder`` is where the weights of a model given as bytes are.

  Raises:
      MirageError: FILE_MISSING, FILE_UNREADABLE, SESSION_FAILED, and those of ``InferenceSession``.
  """
  if not isinstance(model, bytes):
    check_file(Path(model))
  ort = import_onnxruntime()
  options = ort.SessionOptions()
  options.log_severity_level = 4  # what fails is raised; a line of ours is enough
  if how.basic:
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
  if how.provider == "cpu":
    model, external_folder = in_full(model, external_folder)
    for entry in IN_FULL.items():
      options.add_session_config_entry(*entry)
  if external_folder:
    options.add_session_config_entry(EXTERNAL_FOLDER_KEY, external_folder)
  wanted = CUDA_PROVIDER if how.provider == "cuda" else CPU_PROVIDER
  if wanted not in ort.get_available_providers():
    raise MirageError("SESSION_FAILED", f"this onnxruntime has no {wanted}")
  providers = list(dict.fromkeys((wanted, CPU_PROVIDER)))
  try:
    session = InferenceSession(model, options, providers, ep=how.ep, driver=how.driver, emulate=how.emulate)
  except MirageError:
    raise
  except Exception as error:  # onnxruntime has a class per status code and no common base
    raise _failure(error) from error
  if session.get_providers()[0] != wanted:
    raise MirageError("SESSION_FAILED", f"onnxruntime could not use {wanted}")
  return session


def open_plain(model: onnx.ModelProto, external_folder: str | None) -> ort.InferenceSession | None:
  """A session on the CPU without the library; None where onnxruntime does not open it."""
  try:
    return open_session(model.SerializeToString(), How("cpu", ep="none"), external_folder)
  except MirageError as error:
    if error.code != "SESSION_FAILED":
      raise
    return None


@dataclass(frozen=True, slots=True)
class Value:
  """An input or output, as a session says it."""

  name: str
  type: str
  shape: list[Any]


@dataclass(frozen=True, slots=True)
class Signature:
  """What a session takes and yields, for when it is gone."""

  inputs: tuple[Value, ...]
  outputs: tuple[Value, ...]

  @classmethod
  def of(cls, session: ort.InferenceSession) -> Signature:
    """That of a session."""
    read = lambda values: tuple(Value(v.name, v.type, list(v.shape)) for v in values)  # noqa: E731
    return cls(read(session.get_inputs()), read(session.get_outputs()))

  def get_inputs(self) -> tuple[Value, ...]:
    """As those of a session."""
    return self.inputs

  def get_outputs(self) -> tuple[Value, ...]:
    """As those of a session."""
    return self.outputs


def check_signatures(left: ort.InferenceSession | Signature, right: ort.InferenceSession) -> None:
  """Inputs and outputs have the same names and types, and no known dimensions that differ.

  Raises:
      MirageError: SHAPES_DIFFER.
  """
  for what in ("inputs", "outputs"):
    ours, theirs = (getattr(session, f"get_{what}")() for session in (left, right))
    for x, y in zip(ours, theirs, strict=False):
      if x.name != y.name or x.type != y.type or not may_be_equal(x.shape, y.shape):
        raise MirageError(
          "SHAPES_DIFFER",
          f"{what}: {x.name} {x.type}{x.shape} against {y.name} {y.type}{y.shape}",
        )
    if len(ours) != len(theirs):
      raise MirageError("SHAPES_DIFFER", f"{len(ours)} {what} against {len(theirs)}")


def check_declared(left: ort.InferenceSession, right: ort.InferenceSession, found: Shaped) -> None:
  """What ``right`` makes has the dimensions that it declares, where those of ``left`` are right.

  Raises:
      MirageError: SHAPES_DIFFER.
  """
  for x, y in zip(left.get_outputs(), right.get_outputs(), strict=True):
    made: list[int | str | None] = list(found[y.name].shape)
    if may_be_equal(x.shape, made) and not may_be_equal(y.shape, made):
      raise MirageError("SHAPES_DIFFER", f"output {y.name} is declared as {y.shape}, and is {made}")


def may_be_equal(a: list[int | str | None], b: list[int | str | None]) -> bool:
  """Whether no pair of known dimensions differs. An unknown rank reads as ``[]``."""
  known = [(x, y) for x, y in zip(a, b, strict=False) if isinstance(x, int) & isinstance(y, int)]
  return (len(a) == len(b) or not a or not b) and all(x == y for x, y in known)


def run_session(session: ort.InferenceSession, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """All outputs by name.

  Raises:
      MirageError: EMULATION_FAILED where the emulator stopped a kernel, else SESSION_FAILED.
  """
  outputs = session.get_outputs()
  try:
    if not any(value.type == _BFLOAT16 for value in (*session.get_inputs(), *outputs)):
      results = session.run(None, dict(feeds))
    else:
      results = _run_bfloat16(session, feeds)
  except MirageError:
    raise
  except Exception as error:  # as in open_session
    raise _failure(error) from error
  return {o.name: np.asarray(r) for o, r in zip(outputs, results, strict=True)}


def ort_value(x: np.ndarray, device: str = "cpu") -> Any:
  """The array as onnxruntime's value: on the ``device``, but of bfloat16 on the host."""
  value = import_onnxruntime().OrtValue
  if x.dtype == ml_dtypes.bfloat16:
    return value.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), onnx.TensorProto.BFLOAT16)
  return value.ortvalue_from_numpy(x, device, 0)


def _run_bfloat16(session: ort.InferenceSession, feeds: Mapping[str, np.ndarray]) -> list[Any]:
  """onnxruntime's numpy interface has no bfloat16; its OrtValue has, as raw memory."""
  given = {name: ort_value(x) for name, x in feeds.items()}
  results = []
  for value in session.run_with_ort_values(None, given):
    if value.data_type() != _BFLOAT16:
      results.append(value.numpy())
    elif value.device_name() != "cpu":
      raise MirageError("SESSION_FAILED", "a bfloat16 output is not in host memory")
    else:
      shape = value.shape()
      count = int(np.prod(shape, dtype=np.int64))
      memory = (ctypes.c_uint16 * count).from_address(value.data_ptr())
      copy = np.array(memory, np.uint16)
      results.append(copy.view(ml_dtypes.bfloat16).reshape(shape))
  return results


def _failure(error: Exception) -> MirageError:
  line = next(iter(str(error).splitlines()), type(error).__name__)
  if _EMULATION_FAULT in line:
    return MirageError("EMULATION_FAILED", line.partition("mirage-onnx: ")[2] or line)
  return MirageError("SESSION_FAILED", line)
