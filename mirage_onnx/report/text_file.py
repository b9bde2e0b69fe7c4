"""Text files that a command writes beside its result: pages, drawings, traces."""

import contextlib
import os
from pathlib import Path

from mirage_onnx.errors import MirageError
from mirage_onnx.superopt.atomic import LONGEST_NAME

#: Of a file, so much tells whether it is a text.
_HEAD = 1 << 12


def write_text(path: Path, text: str) -> None:
  """Write ``text`` so that a reader sees the old file or the whole new one.

  A pipe is written to as it is; a link stays one.

  Raises:
      MirageError: OUTPUT_UNWRITABLE.
  """
  target = Path(os.path.realpath(path))
  part = target.with_name(f"{target.name}.{os.getpid()}.part")
  try:
    if path.exists() and not path.is_file():
      path.write_text(text, encoding="utf-8")
      return
    part.write_text(text, encoding="utf-8")
    os.replace(part, target)
  except OSError as error:
    with contextlib.suppress(OSError):
      part.unlink()
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error


def check_replaceable(path: Path) -> None:
  """As ``check_writable``, of a text, in whose place is nothing but a text.

  Of a model, or of a file with its weights, a slip of the hand would leave nothing.

  Raises:
      MirageError: OUTPUT_UNWRITABLE.
  """
  check_writable(path)
  if not os.path.isfile(path):
    return
  try:
    with path.open("rb") as stream:
      head = stream.read(_HEAD)
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error
  if any(byte < ord(" ") and byte not in b"\t\n\r" for byte in head):
    raise MirageError("OUTPUT_UNWRITABLE", f"{path} is there and no text, so it is not replaced by one")


def check_writable(path: Path) -> None:
  """That a file can be written at ``path``, without writing it: before a search of minutes.

  Raises:
      MirageError: OUTPUT_UNWRITABLE; OPTION_INVALID for ``-``.
  """
  if str(path) == "-":
    raise MirageError("OPTION_INVALID", "-: no file of that name is meant; give a path, /dev/stdout is one")
  folder = path.parent
  if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
    return
  if len(os.fsencode(path.name)) > LONGEST_NAME:
    raise MirageError("OUTPUT_UNWRITABLE", f"{str(path)[:40]}...: its name is too long")
  if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
    why = "it is a folder" if os.path.isdir(path) else f"{folder} is no folder that can be written to"
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {why}")
