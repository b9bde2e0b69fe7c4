"""``save_model``: write a model so that a reader sees the old file or the whole new one.

Everything goes to temporary files in the output folder first; renames come last, the data file
before the model that refers to it. External data of untouched weights: a model saved beside its
source keeps its references; elsewhere the data is streamed into ``OUT.onnx.data``. Weights in the
model move to that file as well where they would bring the model near protobuf's limit of 2 GB.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import EncodeError
from onnx.external_data_helper import uses_external_data

from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite.external import (
    all_tensors,
    copy_external,
    data_files,
    inline_bytes,
    move_inline,
)

#: Weights inside the model file up to this size together; more of them go to the data file.
INLINE_LIMIT_BYTES = 1 << 30
#: Tensors below this size stay in the model file.
EXTERNAL_MIN_BYTES = 1024


def save_model(
    model: onnx.ModelProto,
    path: Path,
    source_path: Path | None = None,
    *,
    inline_limit_bytes: int = INLINE_LIMIT_BYTES,
) -> None:
    """Write ``model`` to ``path``; external data is read relative to ``source_path``.

    The same model gives the same bytes. ``model`` is not modified.

    Raises:
        MirageError: OUTPUT_IS_INPUT, OUTPUT_UNWRITABLE, EXTERNAL_DATA_MISSING, MODEL_INVALID.
    """
    check_output(path, source_path, model)
    target = Path(os.path.realpath(path))
    folder = Path(os.path.realpath(source_path)).parent if source_path is not None else None
    copies = folder != target.parent and any(uses_external_data(t) for t in all_tensors(model))
    if copies and folder is None:
        raise MirageError("INTERNAL", "save_model needs source_path to copy external data")
    inline = [inline_bytes(t) for t in model.graph.initializer if not uses_external_data(t)]
    moves = sum(inline) > inline_limit_bytes

    data = target.with_name(target.name + ".data")
    temporary, temporary_data = _sibling(target), _sibling(data)
    try:
        if copies or moves:
            _refuse_clash(data, model, folder)
            model = _copy(model)
            with _create(temporary_data) as stream:
                if copies and folder is not None:
                    copy_external(model, data.name, stream, folder)
                if moves:
                    move_inline(model.graph.initializer, data.name, stream, EXTERNAL_MIN_BYTES)
                _flush(stream)
        with _create(temporary) as stream:
            stream.write(_serialized(model))
            _flush(stream)
        if copies or moves:
            os.replace(temporary_data, data)
        os.replace(temporary, target)
    except OSError as error:
        raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error
    finally:
        for file in (temporary, temporary_data):
            with contextlib.suppress(OSError):
                file.unlink()


def check_output(
    path: Path, source_path: Path | None = None, model: onnx.ModelProto | None = None
) -> None:
    """Refuse an output path early: nothing is written.

    Raises:
        MirageError: OUTPUT_IS_INPUT, also where ``path`` is a data file of ``model``;
            OUTPUT_UNWRITABLE.
    """
    target = Path(os.path.realpath(path))
    if source_path is not None:
        source = Path(os.path.realpath(source_path))
        files = [source, *(data_files(model, source.parent) if model else ())]
        if any(_same(target, file) for file in files):
            raise MirageError("OUTPUT_IS_INPUT", f"{path} is the input, or holds its weights")
    if target.is_dir():
        raise MirageError("OUTPUT_UNWRITABLE", f"{path} is a folder")
    if not target.parent.is_dir():
        raise MirageError("OUTPUT_UNWRITABLE", f"there is no folder {target.parent}")
    if target.exists() and not target.is_file():
        raise MirageError("OUTPUT_UNWRITABLE", f"{path} is not a regular file")
    if not os.access(target.parent, os.W_OK) or (
        target.exists() and not os.access(target, os.W_OK)
    ):
        raise MirageError("OUTPUT_UNWRITABLE", f"no permission to write {path}")


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except (EncodeError, ValueError) as error:
        raise MirageError("OUTPUT_UNWRITABLE", "the model without its weights is > 2 GB") from error


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


def _create(path: Path) -> BinaryIO:
    """A new file with the permissions that the user's umask gives."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def _flush(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())
