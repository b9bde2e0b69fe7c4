"""The log file: tracebacks of internal errors, and of what failed at single regions."""

import logging
import os
import sys
import tempfile
import time
from pathlib import Path


def log_folder() -> str:
  """Where logs of internal errors go: ``$MIRAGE_LOG_DIR`` or the user's log folder."""
  import platformdirs

  chosen = os.environ.get("MIRAGE_LOG_DIR")
  return chosen or platformdirs.user_log_dir("mirage-onnx", appauthor=False)


def write_log(text: str) -> str:
  """Write a file for a bug report; return its path, or what to do where none can be written."""
  from mirage_onnx import __version__

  text = f"mirage-onnx {__version__}\n{sys.argv!r}\n{text}"
  name = f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
  for folder in (log_folder(), tempfile.gettempdir()):
    try:
      path = Path(folder, name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
      continue
    return str(path)
  return "no log: no folder can be written"


class FailureLog(logging.Handler):
  """Keeps what the logger ``mirage_onnx`` is told while it is open; ``write`` puts it into one file."""

  def __init__(self) -> None:
    super().__init__(logging.ERROR)
    self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    self._texts: list[str] = []

  def __enter__(self) -> "FailureLog":
    logging.getLogger("mirage_onnx").addHandler(self)
    return self

  def __exit__(self, *_: object) -> None:
    logging.getLogger("mirage_onnx").removeHandler(self)

  def emit(self, record: logging.LogRecord) -> None:
    self._texts.append(self.format(record))

  def write(self) -> str | None:
    """Where the failures are told, None where there were none."""
    return write_log("\n\n".join(self._texts) + "\n") if self._texts else None
