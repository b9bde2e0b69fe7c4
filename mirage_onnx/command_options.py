"""What the verbs of the command line share: the application, its options, how results are shown."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import typer

from mirage_onnx.errors import MirageError
from mirage_onnx.events import Emit, silent
from mirage_onnx.target import TARGETS

if TYPE_CHECKING:
  from rich.table import Table

app = typer.Typer(
  name="mirage-onnx",
  help="Superoptimize regions of ONNX models into verified CUDA kernels.",
  add_completion=True,
  rich_markup_mode=None,
  pretty_exceptions_enable=False,
  no_args_is_help=False,
  context_settings={"help_option_names": ["-h", "--help"]},
)


class Provider(StrEnum):
  """Where ``verify`` runs the models."""

  CPU = "cpu"
  CUDA = "cuda"


class ExternalOption(StrEnum):
  """What becomes of untouched weights outside the model file."""

  KEEP = "keep"
  COPY = "copy"
  INLINE = "inline"


class Reporting(StrEnum):
  """Commands with ``--json``, as ``schema`` takes them."""

  OPTIMIZE = "optimize"
  VERIFY = "verify"
  INSPECT = "inspect"
  EXPLAIN = "explain"
  BENCH = "bench"
  DIFF = "diff"
  REDUCE = "reduce"
  TUNE = "tune"


Profile = Annotated[
  str | None,
  typer.Option(
    "--target",
    metavar="NAME",
    help=f"A GPU: h200, h100-pcie, a100-80gb, l4, rtx4090 (all {len(TARGETS)}: docs/compatibility.md); "
    "an architecture (sm_86), one of its GPUs by size (sm_86x46), or local (the present one); for optimize "
    "also several in one file (h200,a100). Default: local where there is a GPU, else h200.",
  ),
]
#: The verbs, in the order of ``--help``, and what ``VERB --help`` ends with.
EXAMPLES = {
  "demo": "mirage-onnx demo",
  "inspect": "mirage-onnx inspect model.onnx --shapes 'batch=8 seq=128'",
  "optimize": "mirage-onnx optimize model.onnx -o fast.onnx --shapes 'batch=1,8 seq=128' --budget 10m",
  "verify": "mirage-onnx verify model.onnx fast.onnx --shapes 'batch=1,3 seq=7,128'",
  "bench": "mirage-onnx bench model.onnx fast.onnx --shapes 'batch=8 seq=128'",
  "report": "mirage-onnx report fast.onnx -o fast.html",
  "explain": "mirage-onnx explain model.onnx node_softmax --svg softmax.svg",
  "diff": "mirage-onnx diff model.onnx fast.onnx",
  "tune": "mirage-onnx tune fast.onnx",
  "reduce": "mirage-onnx reduce model.onnx --match NaN -- python check.py {}",
  "calibrate": "mirage-onnx calibrate --profile my-gpu.json",
  "cache": "mirage-onnx cache --clear",
  "env": "mirage-onnx env --json",
  "schema": "mirage-onnx schema optimize",
  "version": "mirage-onnx version",
}
#: What a unit of a duration counts, in seconds.
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(value: object) -> float:
  """``90``, ``90s``, ``1.5h`` or ``1h30m`` in seconds.

  Raises:
      typer.BadParameter: it is none of these.
  """
  text = str(value).strip().lower()
  parts = re.findall(r"([0-9.]+)([smh])", text)
  try:
    if not text or "".join(n + unit for n, unit in parts) != text:
      return float(text)
    return sum(float(n) * _UNITS[unit] for n, unit in parts)
  except ValueError:
    raise typer.BadParameter(f"{value!r} is no time; 90, 90s, 10m and 1h30m are") from None


def budget_option(text: str) -> Any:
  """The option ``--budget``; ``text``: its help."""
  return typer.Option("--budget", metavar="TIME", parser=seconds_of, help=text)


Shapes = Annotated[
  list[str] | None,
  typer.Option(metavar="NAME=SIZES", help="Sizes of a dynamic dimension, as of optimize."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every region.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")]


def require(holds: bool, text: str) -> None:
  if not holds:
    raise MirageError("OPTION_INVALID", text)


@contextlib.contextmanager
def to_stdout() -> Iterator[None]:
  """What is inside of it writes to stdout, all of it.

  Raises:
      MirageError: OUTPUT_UNWRITABLE, as where a disk is full; what is left of the text goes nowhere.
  """
  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:
    raise
  except OSError as error:
    with contextlib.suppress(OSError, ValueError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise MirageError("OUTPUT_UNWRITABLE", f"stdout: {error.strerror}") from error


def print_json(value: dict[str, Any]) -> None:
  with to_stdout():
    print(json.dumps(value, ensure_ascii=False, allow_nan=False))


def show(report: msgspec.Struct, parts: Iterable[Table | str], as_json: bool) -> None:
  """The whole result on stdout: one JSON object, or tables."""
  from mirage_onnx.report.log import stdout_console

  if as_json:
    print_json(msgspec.to_builtins(report))
    return
  console = stdout_console()
  with to_stdout():
    for part in parts:
      console.print(part)


def write(path: Path, text: str) -> None:
  from mirage_onnx.report.text_file import write_text

  write_text(path, text)


@contextlib.contextmanager
def stdout_kept(for_json: bool) -> Iterator[None]:
  """Send what a library prints to stderr, so that stdout holds one JSON object only."""
  with contextlib.redirect_stdout(sys.stderr) if for_json else contextlib.nullcontext():
    yield


@contextlib.contextmanager
def event_lines(path: Path | None) -> Iterator[Emit]:
  """What writes events to a file; nothing where there is none.

  Raises:
      MirageError: OUTPUT_UNWRITABLE; at the end, if a disk was full.
  """
  from mirage_onnx.report.event_lines import EventLines

  with _opened(path) as stream:
    if stream is None:
      yield silent
      return
    lines = EventLines(stream)
    yield lines
    _check_whole(path, lines.lost)


@contextlib.contextmanager
def trace_file(path: Path | None) -> Iterator[Emit]:
  """What writes events to a file as a trace; nothing where there is none.

  Raises:
      MirageError: OUTPUT_UNWRITABLE; at the end, if a disk was full.
  """
  from mirage_onnx.report.trace import Trace

  with _opened(path) as stream:
    if stream is None:
      yield silent
      return
    trace = Trace(stream)
    try:
      yield trace
    finally:
      trace.close()
    _check_whole(path, trace.lost)


def _check_whole(path: Path | None, lost: OSError | None) -> None:
  """A reader of a pipe may go; a file is whole."""
  if lost is not None and not isinstance(lost, BrokenPipeError):
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {lost.strerror or lost}: it ends early") from lost


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[TextIO | None]:
  if path is None:
    yield None
    return
  try:
    stream = path.open("w", encoding="utf-8", errors="backslashreplace")
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error
  try:
    yield stream
  finally:
    with contextlib.suppress(OSError):  # of what was not written, say: nobody reads it any more
      stream.close()
