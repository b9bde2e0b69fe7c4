"""Where the custom-op library is, and the C functions it exports beside ORT's entry point."""

import ctypes
import json
import os
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mirage_onnx.errors import MirageError

LIBRARY_NAME = "libmirage_onnx_ops.so"
PATH_VARIABLE = "MIRAGE_ONNX_OPS_LIBRARY"
BUILD_COMMAND = "cmake -S cpp/ort_custom_ops -B build/ops && cmake --build build/ops"


def get_library_path() -> str:
  """The library to give to ``SessionOptions.register_custom_ops_library`` (any language).

  Looked for in ``MIRAGE_ONNX_OPS_LIBRARY``, then the installed package, then ``build/ops`` of a
  source checkout.

  Raises:
      MirageError: OPS_LIBRARY_MISSING with the command that builds it.
  """
  override = os.environ.get(PATH_VARIABLE)
  if override:
    if Path(override).is_file():
      return str(Path(override).resolve())
    raise MirageError("OPS_LIBRARY_MISSING", f"{PATH_VARIABLE} names {override}: no such file")
  package = Path(__file__).resolve().parent
  installed = Path(sysconfig.get_paths()["platlib"], "mirage_onnx", "custom_op")
  candidates = (
    package / "lib" / LIBRARY_NAME,
    installed / "lib" / LIBRARY_NAME,  # an editable install puts only the binary there
    package.parents[1] / "build" / "ops" / LIBRARY_NAME,
  )
  for candidate in candidates:
    if candidate.is_file():
      return str(candidate)
  raise MirageError(
    "OPS_LIBRARY_MISSING",
    f"{LIBRARY_NAME} is not at {candidates[0]}; in a source checkout run: {BUILD_COMMAND}",
  )


@dataclass(frozen=True, slots=True)
class Counter:
  """What one kernel object of a session has run; ``copies``: of tensors that were not aligned."""

  id: int
  session: str
  node: str
  op: str
  runs: int
  launches: int
  copies: int


@dataclass(frozen=True, slots=True)
class OpsLibrary:
  """The loaded library; ORT and this object share one copy of it in the process."""

  path: str
  handle: ctypes.CDLL

  def mark(self) -> int:
    """The id that the next counter will get."""
    return int(self.handle.mirage_counters_mark())

  def counters(self, session: str | None = None) -> tuple[Counter, ...]:
    """The counters of one session tag (None: all of the process)."""
    tag = None if session is None else session.encode()
    capacity = 1 << 14
    while True:
      buffer = ctypes.create_string_buffer(capacity)
      needed = self.handle.mirage_counters_json(tag, buffer, capacity)
      if needed <= capacity:
        break
      capacity = needed + 1024  # a kernel may be created between the two calls
    records: list[dict[str, Any]] = json.loads(buffer.value.decode(errors="replace") or "[]")
    return tuple(Counter(**record) for record in records)

  def hide(self, session: str, hidden: bool) -> None:
    """Hides or shows the ops of a session tag from sessions created from now on."""
    self.handle.mirage_hide_ops(session.encode(), int(hidden))


@cache
def load_library(path: str) -> OpsLibrary:
  """Loads the library (it stays loaded until the process ends).

  Raises:
      MirageError: OPS_LIBRARY_MISSING when the file is not this library.
  """
  try:
    handle = ctypes.CDLL(path)
    handle.mirage_counters_json.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    handle.mirage_counters_json.restype = ctypes.c_size_t
    handle.mirage_counters_mark.argtypes = []
    handle.mirage_counters_mark.restype = ctypes.c_uint64
    handle.mirage_hide_ops.argtypes = [ctypes.c_char_p, ctypes.c_int]
    handle.mirage_hide_ops.restype = None
  except (OSError, AttributeError) as error:
    raise MirageError("OPS_LIBRARY_MISSING", f"{path} cannot be used: {error}") from error
  return OpsLibrary(path, handle)
