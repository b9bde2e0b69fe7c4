"""The command that fails, run on a candidate: the same exit code, and the same text where one is given."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.errors import MirageError

#: Where the path of the model stands in a command.
PLACE = "{}"
#: A candidate that takes so many times as long as the model did, and so much longer, does not fail in time.
SLOWER, LATER_S = 4.0, 10.0


@dataclass(frozen=True, slots=True)
class CommandOutcome:
  """How a run ended; ``code`` is None where it was ended for its time."""

  code: int | None
  text: str
  seconds: float


@dataclass(frozen=True, slots=True)
class Command:
  """``words`` with ``PLACE`` in at least one; ``match``: a text that a failure prints, or ""."""

  words: tuple[str, ...]
  match: str = ""

  def __post_init__(self) -> None:
    if not any(PLACE in w for w in self.words):
      raise MirageError(
        "OPTION_INVALID", f"the command has no {PLACE} where the path of the model is to stand"
      )

  def run(self, model: str, timeout_s: float | None = None) -> CommandOutcome:
    """Run it, with no input and no terminal.

    Raises:
        MirageError: OPTION_INVALID where it cannot be started.
    """
    words = [w.replace(PLACE, model) for w in self.words]
    start = time.monotonic()
    try:
      # A group of its own, so that what it has started ends with it.
      child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
    except (OSError, ValueError) as error:
      why = error.strerror if isinstance(error, OSError) else str(error)
      raise MirageError("OPTION_INVALID", f"the command {words[0]!r} cannot be run: {why}") from None
    try:
      said, _ = child.communicate(timeout=timeout_s)
      code: int | None = child.returncode
    except subprocess.TimeoutExpired:
      said, code = b"", None
    finally:
      if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    return CommandOutcome(code, said.decode("utf-8", "replace"), time.monotonic() - start)

  def first(self, model: str) -> CommandOutcome:
    """Run it on the whole model, on which it must fail.

    Raises:
        MirageError: NOT_FAILING; OPTION_INVALID.
    """
    found = self.run(model)
    if self.match and self.match not in found.text:
      raise MirageError(
        "NOT_FAILING", f"the command does not print {self.match!r} for the whole model: {_end(found)}"
      )
    if found.code == 0 and not self.match:
      raise MirageError("NOT_FAILING", "the command ends with exit code 0 for the whole model")
    return found

  def fails_as(self, first: CommandOutcome, model: str) -> bool:
    """Whether it fails on ``model`` as it did at first."""
    found = self.run(model, SLOWER * first.seconds + LATER_S)
    return found.code == first.code and self.match in found.text


def _end(found: CommandOutcome) -> str:
  last = next((line for line in reversed(found.text.splitlines()) if line.strip()), "nothing")
  return f"it ended with exit code {found.code} and {last.strip()[:120]!r}"


def command(words: Sequence[str], match: str = "") -> Command:
  """A command of these words.

  Raises:
      MirageError: OPTION_INVALID.
  """
  return Command(tuple(words), match)
