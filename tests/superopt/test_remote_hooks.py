"""The hooks of a search in a worker: what it asks, the parent answers from its own."""

import os
import pickle
import threading
from contextlib import contextmanager

from mirage_onnx.events import Event, Warned
from mirage_onnx.superopt import remote_hooks
from mirage_onnx.superopt.hooks import Hooks, NoStore
from mirage_onnx.superopt.journal import Journal
from mirage_onnx.superopt.remote_hooks import ANSWERED, Parent, answer
from mirage_onnx.superopt.result import Stop
from mirage_onnx.worker_process import send


@contextmanager
def parent_of(hooks):
  (to_worker, answers), (to_parent, messages) = os.pipe(), os.pipe()
  with (
    os.fdopen(to_worker, "rb") as reads, os.fdopen(answers, "wb") as replies,
    os.fdopen(to_parent, "rb") as asked, os.fdopen(messages, "wb") as writes,
  ):  # fmt: skip

    def serve():
      while True:
        name, *arguments = pickle.load(asked)
        if name == "end":
          return
        found = answer(hooks, name, arguments)
        if name in ANSWERED:
          send(replies, found)

    thread = threading.Thread(target=serve)
    thread.start()
    parent = Parent(reads, writes)
    yield parent
    parent.tell("end")
    thread.join()


def test_a_store_in_another_process():
  journal = Journal(None, {"target": "h200"})
  with parent_of(Hooks(journal)) as parent:
    key = parent.key("region\ntext", "1,2")
    assert parent.get(key) is None
    parent.put(key, {"x": [1, "µ"]})
    assert parent.get(key) == {"x": [1, "µ"]}
    assert parent.get(parent.key("region\ntext", "1")) is None
  assert journal.get(journal.key("region\ntext", "1,2")) == {"x": [1, "µ"]}


def test_events_and_the_question_whether_to_stop(monkeypatch):
  monkeypatch.setattr(remote_hooks, "ASK_EVERY_S", 0.0)
  found, reasons = list[Event](), [None, None, Stop.INTERRUPTED]
  with parent_of(Hooks(stop=lambda: reasons.pop(0), emit=found.append)) as parent:
    parent.emit(Warned("odd"))
    # Once there is a reason it stays, and nobody is asked again.
    assert [parent.stop() for _ in range(5)] == [None, None, *[Stop.INTERRUPTED] * 3]
  assert found == [Warned("odd")] and reasons == []


def test_it_does_not_ask_all_the_time(monkeypatch):
  monkeypatch.setattr(remote_hooks, "ASK_EVERY_S", 3600.0)
  calls = []
  with parent_of(Hooks(stop=lambda: calls.append(1))) as parent:
    assert [parent.stop() for _ in range(100)] == [None] * 100
  assert len(calls) == 1


def test_no_store_keeps_nothing():
  store = NoStore()
  store.put(store.key("r", "u"), {"x": 1})
  assert store.get(store.key("r", "u")) is None
