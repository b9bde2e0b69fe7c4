"""``save_model``: write a model so that a reader sees the old file or the whole new one.

Everything goes to temporary files in the output folder first; the data file gets a name that no
model but the new one mentions (``data_file.py``), and the model's rename comes last. What a process
that is killed leaves, the next one that writes the same output removes.

External data of untouched weights (``External``): a model saved beside its source keeps its
references; elsewhere the data is copied into the output's data file. Weights that rewriting has made
of external ones go to that file, and all weights do where they would bring the model near protobuf's
limit of 2 GB.
"""

import contextlib
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import EncodeError
from onnx.external_data_helper import uses_external_data

from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.importer.external import is_text
from mirage_onnx.rewrite.data_file import NamedBeside, data_path, remove_leftovers, temporary
from mirage_onnx.rewrite.data_parts import DataParts
from mirage_onnx.rewrite.external import all_tensors, append_range, data_files, inline_bytes, load_external
from mirage_onnx.rewrite.kept_data import KeptData
from mirage_onnx.rewrite.replacement import BUNDLE_NAME
from mirage_onnx.rewrite.stream import write_model
from mirage_onnx.rewrite.turned import held, is_turned
from mirage_onnx.superopt.atomic import LONGEST_NAME

#: Weights inside the model file up to this size together; more of them go to the data file.
INLINE_LIMIT_BYTES = 1 << 30
#: Tensors below this size stay in the model file.
EXTERNAL_MIN_BYTES = 1024
#: Why a new model file must not replace anything; None: it may.
Check = Callable[[Path], Rejection | None]


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
  in_place: bool = False,
  given: Path | None = None,
) -> Rejection | None:
  """Write ``model`` to ``path``; external data is read relative to ``source_path``.

  ``external`` left out: ``KEEP`` beside the source, ``COPY`` elsewhere. The same model gives the
  same bytes. ``model`` is not modified. ``check`` is given the new file, with its weights beside it,
  before it replaces anything; what it refuses is not written, and is returned. ``in_place``: ``path`` may be
  the source. ``given``: a file that is ``model``, which is copied where nothing is to be changed.

  Raises:
      MirageError: OUTPUT_IS_INPUT, OUTPUT_UNWRITABLE, EXTERNAL_DATA_MISSING, MODEL_INVALID;
          OPTION_INVALID for ``KEEP`` in another folder.
  """
  check_output(path, None if in_place else source_path, model, external=external)
  target = Path(os.path.realpath(path))
  folder = Path(os.path.realpath(source_path)).parent if source_path is not None else None
  how = _placement(model, folder, target.parent, external)
  moved = set() if how is External.INLINE else _moved(model, source_path, inline_limit_bytes)
  model_file, data = temporary(target), temporary(target.with_name(target.name + ".data"))
  try:
    remove_leftovers(target, source_path)
    copies = any(is_turned(t) for t in model.graph.initializer)
    if how in (External.COPY, External.INLINE) or moved or copies:
      model = _copy(model)
    if how is External.INLINE and folder is not None:
      load_external(held(model, folder), folder)
      copies, given = False, None
    with _create(model_file) as stream:  # from now on others see that this process writes
      if how is External.COPY or moved or copies:
        parts = _parts(model, moved, folder, copy=how is External.COPY)
        parts.refer(_data_file(parts, target, data))
        given = None
      if given is None:
        _write_model(model, stream)
      else:
        append_range(given, 0, given.stat().st_size, stream)
      _flush(stream)
    if check is not None and (refused := check(model_file)) is not None:
      return refused
    _flush_names(target.parent)  # after a loss of power, too, who finds the model finds its data
    os.replace(model_file, target)
    return None
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error
  finally:
    for file in (model_file, data):
      with contextlib.suppress(OSError):
        file.unlink()
    remove_leftovers(target, source_path)


def _parts(model: onnx.ModelProto, moved: set[str], folder: Path | None, *, copy: bool) -> DataParts:
  """What the data file has to hold."""
  parts = DataParts(folder)
  if copy:
    parts.add_external(model)
  parts.add_inline(t for t in model.graph.initializer if t.name in moved)
  parts.add_turned(model.graph.initializer)
  return parts


def _data_file(parts: DataParts, target: Path, data: Path) -> str:
  """The name of a file with these parts beside ``target``: there already, or written as ``data``."""
  kept = KeptData.of_user(target)
  facts = kept.facts(parts)
  digits = kept.digits(facts)
  if kept.is_there(facts, digits):
    return data_path(target, digits).name
  with _create(data) as stream:
    if digits:
      parts.write(stream)
      _flush(stream)
    else:
      with NamedBeside(data, parts.size_bytes) as named:
        parts.write(stream, named.told)
        _flush(stream)
      digits = named.digits
  os.rename(data, data_path(target, digits))
  if facts == kept.facts(parts):  # no file has changed meanwhile
    kept.keep(facts, digits)
  return data_path(target, digits).name


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
  if len(os.fsencode(target.name)) > LONGEST_NAME:
    raise MirageError("OUTPUT_UNWRITABLE", f"the name {target.name[:40]!r}... is too long")
  if not is_text(target):
    raise MirageError("OUTPUT_UNWRITABLE", f"{str(target)!r} is not UTF-8, which onnx wants")
  if os.path.isdir(target):
    raise MirageError("OUTPUT_UNWRITABLE", f"{path} is a folder")
  if not os.path.isdir(target.parent):  # of a path of any length
    raise MirageError("OUTPUT_UNWRITABLE", f"there is no folder {target.parent}")
  if target.exists() and not target.is_file():
    raise MirageError("OUTPUT_UNWRITABLE", f"{path} is not a regular file")
  if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
    raise MirageError("OUTPUT_UNWRITABLE", f"no permission to write {path}")


def _write_model(model: onnx.ModelProto, stream: BinaryIO) -> None:
  try:
    write_model(model, stream)
  except (EncodeError, ValueError) as error:
    raise MirageError("OUTPUT_UNWRITABLE", "what goes into the model file is > 2 GB") from error


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
  result = onnx.ModelProto()
  result.CopyFrom(model)
  return result


def _same(a: Path, b: Path) -> bool:
  return a == b or (os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b))


def _create(path: Path) -> BinaryIO:
  """A new file with the permissions that the user's umask gives."""
  path.unlink(missing_ok=True)
  return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def _flush(stream: BinaryIO) -> None:
  stream.flush()
  os.fsync(stream.fileno())


def _flush_names(folder: Path) -> None:
  """Let renames in a folder reach the disk, where the file system has a way to say so."""
  with contextlib.suppress(OSError):
    opened = os.open(folder, os.O_RDONLY)
    try:
      os.fsync(opened)
    finally:
      os.close(opened)
