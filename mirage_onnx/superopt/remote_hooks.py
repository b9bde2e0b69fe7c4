"""The ends of a search that runs in a worker process: each of its calls is a message to the parent.

A message is a pickled tuple (name, arguments); for the names in ``ANSWERED`` the worker waits.
``measure`` is no question of a search, but of its verifier (``verify/weights.py``).
"""

import json
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from mirage_onnx.events import Event
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.result import Stop
from mirage_onnx.worker_process import send

ANSWERED = ("get", "stop", "measure")
#: Shortest time between two questions whether to stop.
ASK_EVERY_S = 0.05


def answer(hooks: Hooks, name: str, arguments: Sequence[Any]) -> object:
  """What the parent does with a message."""
  store = hooks.store
  calls: dict[str, Callable[..., object]] = {
    "get": lambda text, unit: store.get(store.key(text, unit)),
    "put": lambda text, unit, value: store.put(store.key(text, unit), value),
    "stop": hooks.stop,
    "emit": hooks.emit,
  }
  return calls[name](*arguments)


class Parent:
  """The worker's side: a store, a poll and an emitter that ask the parent."""

  def __init__(self, answers: IO[bytes], messages: IO[bytes]) -> None:
    self._answers, self._messages = answers, messages
    self._asked = -ASK_EVERY_S
    self._stop: Stop | None = None

  def tell(self, name: str, *arguments: object) -> Any:
    """Send a message; return the answer where there is one."""
    send(self._messages, (name, *arguments))
    return pickle.load(self._answers) if name in ANSWERED else None

  def key(self, region_text: str, unit: str) -> str:
    """What the parent makes the key of."""
    return json.dumps((region_text, unit))

  def get(self, key: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = self.tell("get", *json.loads(key))
    return found

  def put(self, key: str, value: Mapping[str, Any]) -> None:
    self.tell("put", *json.loads(key), value)

  def stop(self) -> Stop | None:
    now = time.monotonic()
    if self._stop is None and now - self._asked >= ASK_EVERY_S:
      self._stop, self._asked = self.tell("stop"), now
    return self._stop

  def emit(self, event: Event) -> None:
    self.tell("emit", event)
