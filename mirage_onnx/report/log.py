"""Events -> log lines on stderr, with a spinner for the running stage on a terminal."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from mirage_onnx.events import Event, RegionDone, RegionTuned, StageEnded, StageStarted, Warned

QUIET, NORMAL, VERBOSE = 0, 1, 2


def stderr_console() -> Console:
  """A console on stderr that never wraps a line where stderr is a file."""
  return _console(stderr=True)


def stdout_console() -> Console:
  """The same on stdout."""
  return _console(stderr=False)


def _console(*, stderr: bool) -> Console:
  """What it prints is text, no markup: names of a model may be ``[/a]``."""
  console = Console(stderr=stderr, highlight=False, markup=False)
  if not console.is_terminal:
    width = max(console.width, 160)
    console = Console(stderr=stderr, highlight=False, markup=False, width=width)
  return console


class EventLog:
  """An ``Emit`` that prints: warnings always, stages from NORMAL, every region from VERBOSE."""

  def __init__(self, console: Console, verbosity: int = NORMAL) -> None:
    self._console = console
    self._verbosity = verbosity
    self._status: Status | None = None
    if console.is_terminal and verbosity > QUIET:
      self._status = Status("starting", console=console)

  def __enter__(self) -> Self:
    if self._status:
      self._status.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    if self._status:
      self._status.stop()

  def __call__(self, event: Event) -> None:
    match event:
      case Warned(text):
        self._print(f"[yellow]warning:[/] {escape(text)}", at=QUIET)
      case StageStarted(stage):
        if self._status:
          self._status.update(escape(stage))
        self._print(f"[dim]{escape(stage)} ...[/]", at=VERBOSE)
      case StageEnded(stage, seconds, detail):
        self._print(f"{escape(stage):<10} {seconds:6.1f} s  {escape(detail)}", at=NORMAL)
      case RegionDone():
        self._print(f"  {escape(_region(event))}", at=VERBOSE)
      case RegionTuned(key, ops, us, reason):
        outcome = "no kernel" if us is None else f"{us:.1f} µs"
        outcome += f" ({reason})" if reason else ""
        self._print(f"  {escape(f'{key}: {len(ops)} nodes, {outcome}')}", at=VERBOSE)

  def _print(self, line: str, at: int) -> None:
    if self._verbosity >= at:
      self._console.print(Text.from_markup(line), soft_wrap=True)


def _region(event: RegionDone) -> str:
  outcome = f"{event.best_us:.1f} µs" if event.best_us is not None else "no candidate"
  if event.reason:
    outcome += f" ({event.reason})"
  return (
    f"{event.region}: {len(event.ops)} nodes, {event.states} states, {event.verified} verified, {outcome}"
  )
