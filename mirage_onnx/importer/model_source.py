"""The models that ``optimize``, ``inspect``, ``verify`` ... take: a file, or one that is in memory.

    path, onnx.ModelProto                        as they are
    bytes                                        of a serialized onnx.ModelProto
    onnx_ir.Model, torch.onnx.ONNXProgram        serialized; above 1 GiB into a temporary folder

A model of onnx_ir may have its weights in files, on a device or lazily; its own writer reads them.
Neither library is imported here: who has such a model has imported it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import onnx
from google.protobuf.message import DecodeError, EncodeError

from mirage_onnx.errors import MirageError

#: Weights up to this size together are held in memory: protobuf serializes 2 GiB at most.
IN_MEMORY_BYTES = 1 << 30


class IrModel(Protocol):
  """An ``onnx_ir.Model``."""

  @property
  def graph(self) -> Any: ...
  @property
  def opset_imports(self) -> Any: ...


class ExportedProgram(Protocol):
  """What ``torch.onnx.export(..., dynamo=True)`` returns: its ``model`` is an ``onnx_ir.Model``."""

  @property
  def model(self) -> Any: ...


ModelSource: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | IrModel | ExportedProgram


@contextmanager
def readable(model: ModelSource) -> Iterator[Path | onnx.ModelProto]:
  """What ``load_model`` takes; a path that is not the caller's own is gone afterwards.

  ``model`` is not modified.

  Raises:
      MirageError: OPTION_INVALID for anything that is none of these.
  """
  if isinstance(model, (str, os.PathLike)):
    yield Path(model)
  elif isinstance(model, bytes):
    yield _parsed(model)
  elif isinstance(model, onnx.ModelProto):
    yield model
  elif (found := _ir_model(model)) is not None:
    with tempfile.TemporaryDirectory(prefix="mirage-onnx-") as folder:
      yield _written(found, Path(folder))
  else:
    kinds = "a path, bytes, onnx.ModelProto, onnx_ir.Model or torch.onnx.ONNXProgram"
    raise MirageError("OPTION_INVALID", f"the model is of type {type(model).__name__}, not {kinds}")


def _parsed(data: bytes) -> onnx.ModelProto:
  try:
    return onnx.load_from_string(data)
  except DecodeError as error:
    raise MirageError("MODEL_INVALID", "the bytes are no serialized onnx.ModelProto") from error


@contextmanager
def stored(model: ModelSource) -> Iterator[Path]:
  """``model`` as a file, for what runs it in another process; one of its own is gone afterwards.

  Raises:
      MirageError: as ``readable``; OPTION_INVALID for more than protobuf can serialize.
  """
  with readable(model) as given, tempfile.TemporaryDirectory(prefix="mirage-onnx-") as folder:
    if isinstance(given, Path):
      yield given
      return
    path = Path(folder) / "model.onnx"
    try:
      path.write_bytes(given.SerializeToString())
    except (ValueError, EncodeError) as error:
      raise MirageError("OPTION_INVALID", f"the model in memory cannot be serialized: {error}") from error
    yield path


def said(model: ModelSource) -> str:
  """What reports call ``model``."""
  return str(model) if isinstance(model, (str, os.PathLike)) else "the model in memory"


def _ir_model(model: object) -> Any:
  """The onnx_ir.Model that ``model`` is or holds; None where there is none."""
  library = sys.modules.get("onnx_ir")
  if library is None:
    return None
  held = (model, getattr(model, "model", None))
  return next((m for m in held if isinstance(m, library.Model)), None)


def _written(model: Any, folder: Path) -> Path | onnx.ModelProto:
  ir = sys.modules["onnx_ir"]
  graphs = (model.graph, *model.graph.subgraphs())
  weights = [
    v.const_value for graph in graphs for v in graph.initializers.values() if v.const_value is not None
  ]
  size = sum(w.nbytes for w in weights)
  if size <= IN_MEMORY_BYTES and not any(isinstance(w, ir.ExternalTensor) for w in weights):
    proto: onnx.ModelProto = ir.to_proto(model)
    return proto
  path = folder / "model.onnx"
  ir.save(model, path, external_data="model.onnx.data")
  return onnx.load(path) if size <= IN_MEMORY_BYTES else path
