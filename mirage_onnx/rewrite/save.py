"""``save_model``: write a model so that a reader sees the old file or the whole new one.

Everything goes to temporary files in the output folder first; renames come last, the data file
before the model that refers to it. A process that is killed leaves temporary files; the next one
that writes the same output removes them.

External data of untouched weights (``External``): a model saved beside its source keeps its
references; elsewhere the data is copied into ``OUT.onnx.data``. Weights that rewriting has made of
external ones go to that file, and all weights do where they would bring the model near protobuf's
limit of 2 GB.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import EncodeError
from onnx.external_data_helper import uses_external_data

from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.rewrite.as_written import as_written, remove_leftover_folders
from mirage_onnx.rewrite.external import (
  all_tensors,
  copy_external,
  data_files,
  inline_bytes,
  load_external,
  move_inline,
  write_turned,
)
from mirage_onnx.rewrite.model import BUNDLE_NAME
from mirage_onnx.rewrite.turned import held, is_turned

#: Weights inside the model file up to this size together; more of them go to the data file.
INLINE_LIMIT_BYTES = 1 << 30
#: Tensors below this size stay in the model file.
EXTERNAL_MIN_BYTES = 1024
#: Why a new model file must not replace anything; None: it may.
Check = Callable[[Path | None], Rejection | None]


class External(StrEnum):
  """What becomes of untouched weights outside the model file."""

  KEEP = "keep"
  COPY = "copy"
  INLINE = "inline"


def save_model(
  model: onnx.ModelProto,
  path: Path,
  source_path: Path | None = None,
  *,
  external: External | None = None,
  inline_limit_bytes: int = INLINE_LIMIT_BYTES,
  check: Check | None = None,
) -> Rejection | None:
  """Write ``model`` to ``path``; external data is read relative to ``source_path``.

  ``external`` left out: ``KEEP`` beside the source, ``COPY`` elsewhere. The same model gives the
  same bytes. ``model`` is not modified. ``check`` is given the new file in a folder of its own,
  with its weights beside it, before it replaces anything; what it refuses is not written, and
  is returned.

  Raises:
      MirageError: OUTPUT_IS_INPUT, OUTPUT_UNWRITABLE, EXTERNAL_DATA_MISSING, MODEL_INVALID;
          OPTION_INVALID for ``KEEP`` in another folder.
  """
  check_output(path, source_path, model, external=external)
  target = Path(os.path.realpath(path))
  folder = Path(os.path.realpath(source_path)).parent if source_path is not None else None
  how = _placement(model, folder, target.parent, external)
  moved = set() if how is External.INLINE else _moved(model, source_path, inline_limit_bytes)
  data = target.with_name(target.name + ".data")
  temporary, temporary_data = _sibling(target), _sibling(data)
  try:
    _remove_leftovers(target, data)
    copies = any(is_turned(t) for t in model.graph.initializer)
    if how in (External.COPY, External.INLINE) or moved or copies:
      model = _copy(model)
    if how is External.INLINE and folder is not None:
      load_external(held(model, folder), folder)
      copies = False
    writes_data = how is External.COPY or bool(moved) or copies
    if writes_data:
      _refuse_clash(data, model, folder)
      with _create(temporary_data) as stream:
        if how is External.COPY and folder is not None:
          copy_external(model, data.name, stream, folder)
        inside = [t for t in model.graph.initializer if t.name in moved]
        move_inline(inside, data.name, stream)
        if folder is not None:
          write_turned(model.graph.initializer, data.name, stream, folder)
        _flush(stream)
    with _create(temporary) as stream:
      stream.write(_serialized(model))
      _flush(stream)
    if check is not None:
      written = {target.name: temporary, **({data.name: temporary_data} if writes_data else {})}
      with as_written(target, written, model, folder) as new:
        if (refused := check(new)) is not None:
          return refused
    if writes_data:
      os.replace(temporary_data, data)
    os.replace(temporary, target)
    return None
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error
  finally:
    for file in (temporary, temporary_data):
      with contextlib.suppress(OSError):
        file.unlink()


def _placement(
  model: onnx.ModelProto, folder: Path | None, target: Path, external: External | None
) -> External | None:
  """What to do with external data; None where there is none."""
  if not any(uses_external_data(t) for t in all_tensors(model)):
    return None
  if folder is None:
    raise MirageError("INTERNAL", "save_model needs source_path where there is external data")
  return external or (External.KEEP if folder == target else External.COPY)


def _moved(model: onnx.ModelProto, source_path: Path | None, limit_bytes: int) -> set[str]:
  """The initializers in the model that go to the data file; the kernels never do."""
  inside = [t for t in model.graph.initializer if not uses_external_data(t)]
  names = {t.name for t in inside if inline_bytes(t) >= EXTERNAL_MIN_BYTES} - {BUNDLE_NAME}
  if sum(map(inline_bytes, inside)) > limit_bytes:
    return names
  outside = any(uses_external_data(t) for t in model.graph.initializer)
  if not names or not outside or source_path is None:
    return set()
  # Only what rewriting made: a model with external data is itself small to read.
  source = onnx.load(source_path, load_external_data=False)
  return names - {t.name for t in source.graph.initializer}


def check_output(
  path: Path,
  source_path: Path | None = None,
  model: onnx.ModelProto | None = None,
  *,
  external: External | None = None,
) -> None:
  """Refuse an output path early: nothing is written.

  Raises:
      MirageError: OUTPUT_IS_INPUT, also where ``path`` is a data file of ``model``;
          OUTPUT_UNWRITABLE; OPTION_INVALID for ``KEEP`` in another folder.
  """
  target = Path(os.path.realpath(path))
  if source_path is not None:
    source = Path(os.path.realpath(source_path))
    outside = data_files(model, source.parent) if model else set()
    if outside and external is External.KEEP and source.parent != target.parent:
      raise MirageError(
        "OPTION_INVALID",
        "external data can only be kept where the output is beside the input: use copy",
      )
    if any(_same(target, file) for file in (source, *outside)):
      raise MirageError("OUTPUT_IS_INPUT", f"{path} is the input, or holds its weights")
  if target.is_dir():
    raise MirageError("OUTPUT_UNWRITABLE", f"{path} is a folder")
  if not target.parent.is_dir():
    raise MirageError("OUTPUT_UNWRITABLE", f"there is no folder {target.parent}")
  if target.exists() and not target.is_file():
    raise MirageError("OUTPUT_UNWRITABLE", f"{path} is not a regular file")
  if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
    raise MirageError("OUTPUT_UNWRITABLE", f"no permission to write {path}")


def _serialized(model: onnx.ModelProto) -> bytes:
  try:
    return bytes(model.SerializeToString(deterministic=True))
  except (EncodeError, ValueError) as error:
    raise MirageError("OUTPUT_UNWRITABLE", "what goes into the model file is > 2 GB") from error


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
  result = onnx.ModelProto()
  result.CopyFrom(model)
  return result


def _refuse_clash(data: Path, model: onnx.ModelProto, folder: Path | None) -> None:
  """Our data file must not replace one that the input uses."""
  if folder is not None and any(_same(data, file) for file in data_files(model, folder)):
    raise MirageError("OUTPUT_IS_INPUT", f"the output's data file {data} holds input weights")


def _same(a: Path, b: Path) -> bool:
  return a == b or (a.exists() and b.exists() and os.path.samefile(a, b))


def _sibling(path: Path) -> Path:
  return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _leftovers(path: Path) -> Iterator[Path]:
  """Temporary files for ``path`` whose process is gone."""
  pattern = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.tmp")
  files: list[Path] = []
  with contextlib.suppress(OSError):  # a folder that may be written, but not be read
    files = list(path.parent.iterdir())
  for file in files:
    found = pattern.fullmatch(file.name)
    if found and not _runs(int(found[1])):
      yield file


def _remove_leftovers(*paths: Path) -> None:
  for file in [f for path in paths for f in _leftovers(path)]:
    with contextlib.suppress(OSError):
      file.unlink()
  remove_leftover_folders(paths[0], _runs)


def _runs(pid: int) -> bool:
  try:
    os.kill(pid, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except OSError:  # it is somebody else's
    return True
  return True


def _create(path: Path) -> BinaryIO:
  """A new file with the permissions that the user's umask gives."""
  path.unlink(missing_ok=True)
  return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def _flush(stream: BinaryIO) -> None:
  stream.flush()
  os.fsync(stream.fileno())
