"""What every stage of a run has around it: events of its start and end, and what a search is connected to."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mirage_onnx import events
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.result import SearchBound, Stop
from mirage_onnx.target import Target


@contextmanager
def stage(emit: events.Emit, name: str, detail: Sequence[str] = ()) -> Iterator[None]:
  """A stage with what it has to say in the end."""
  start = time.monotonic()
  emit(events.StageStarted(name))
  yield
  emit(events.StageEnded(name, time.monotonic() - start, "; ".join(detail)))


@contextmanager
def search_hooks(
  file: Path | None,
  target: Target,
  bound: SearchBound,
  stop: Callable[[], Stop | None],
  emit: events.Emit,
  detail: list[str],
) -> Iterator[Hooks]:
  """What the search is connected to; a journal that cannot be used, or written, is a warning."""
  with ExitStack() as stack:
    if file is None:
      yield Hooks(stop=stop, emit=emit)
      return
    from mirage_onnx.searching import open_journal

    journal = open_journal(file, target, bound)
    stack.enter_context(journal)
    if journal.notice is not None:
      emit(events.Warned(journal.notice))
    if journal.known:
      detail.append(f"goes on from {journal.known} finished steps in {file}")
    yield Hooks(journal, stop, emit)
    if journal.failure is not None:
      emit(events.Warned(journal.failure))
