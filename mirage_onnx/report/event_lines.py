"""Events as lines of JSON, for programs that watch a run: ``--events FILE``."""

import json
import time
from dataclasses import asdict
from typing import TextIO

from mirage_onnx.events import Event


class EventLines:
  """An ``Emit`` that writes an object a line: the event's name, ``at_s`` since the start, its fields.

  A reader that goes away ends nothing: the rest is not written, and ``lost`` says why.
  """

  def __init__(self, stream: TextIO) -> None:
    self._stream: TextIO | None = stream
    self.lost: OSError | None = None
    self._start = time.monotonic()

  def __call__(self, event: Event) -> None:
    if self._stream is None:
      return
    at_s = round(time.monotonic() - self._start, 3)
    line = json.dumps({"event": type(event).__name__, "at_s": at_s, **asdict(event)}, ensure_ascii=False)
    try:
      self._stream.write(line + "\n")
      self._stream.flush()
    except OSError as error:
      self._stream, self.lost = None, error
