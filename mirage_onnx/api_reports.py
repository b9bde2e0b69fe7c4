"""What ``api`` has beside the run itself: the page of a run, and models for bug reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_onnx.argument_kinds import check_kinds
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_file
from mirage_onnx.report.text_file import check_replaceable, check_writable, write_text

if TYPE_CHECKING:
  from mirage_onnx.reduction import ReductionStep
  from mirage_onnx.report.reduce_report import ReduceReport
  from mirage_onnx.report.run_record import RunRecord

#: Of a search: four months; timers take no more.
_MOST_BUDGET_S = 1e7


def check_budget(budget_s: float | None) -> None:
  """Of a search, or of a reduction.

  Raises:
      MirageError: OPTION_INVALID.
  """
  check_kinds("a number", budget_s=budget_s)
  if budget_s is not None and not 0 <= budget_s <= _MOST_BUDGET_S:
    most = f"0 at least, {_MOST_BUDGET_S:.0f} at most"
    raise MirageError("OPTION_INVALID", f"a budget of {budget_s} seconds: {most}")


def check_pages(pages: Iterable[Path | None], *models: Path | None) -> None:
  """That each page that is asked for can be written: over no model, no other page, and nothing but a text.

  Raises:
      MirageError: OUTPUT_UNWRITABLE, OPTION_INVALID.
  """
  taken = {m.resolve() for m in models if m is not None}
  for page in pages:
    if page is None:
      continue
    path = page.resolve()
    if path in taken:
      raise MirageError("OPTION_INVALID", f"{page} is a model of this run, or asked for twice")
    check_replaceable(page)
    if path.is_file() or not path.exists():  # a device, or a pipe, takes more than one
      taken.add(path)


def write_page(path: Path, record: RunRecord, file: ModelFile) -> None:
  """Write the report of a run.

  Raises:
      MirageError: OUTPUT_UNWRITABLE.
  """
  from mirage_onnx.report.page import page

  write_text(path, page(record, _of_record(file, record)))


def reduce(
  model: str | Path,
  output: str | Path,
  command: Sequence[str],
  *,
  match: str = "",
  budget_s: float | None = None,
  stop: Callable[[], bool] | None = None,
  tell: Callable[[ReductionStep], None] | None = None,
) -> ReduceReport:
  """Write the smallest model on which ``command`` still fails as it does on ``model``, for a bug report.

  ``output``: where to write it. ``command``: words, with ``{}`` where the path of a model stands. It fails
  with the same exit code, and, with ``match``, if it prints that text. ``budget_s``: seconds for all.
  ``stop``: polled between runs; ``tell`` is told of every run.

  Raises:
      MirageError: NOT_FAILING, FILE_MISSING, NOT_ONNX, EXTERNAL_DATA_MISSING, OPTION_INVALID,
          OUTPUT_IS_INPUT, OUTPUT_UNWRITABLE.
  """
  from mirage_onnx.reduction import reduce_model
  from mirage_onnx.reduction.command import Command
  from mirage_onnx.reduction.reduce import write_model
  from mirage_onnx.report.reduce_report import reduce_report

  check_budget(budget_s)
  source, target = Path(model), Path(output)
  check_file(source)
  if target.resolve() == source.resolve():
    raise MirageError("OUTPUT_IS_INPUT", f"{target} is the input")
  check_writable(target)
  limit = float("inf") if budget_s is None else budget_s
  found = reduce_model(
    source, Command(tuple(command), match), budget_s=limit, stop=stop or (lambda: False),
    tell=tell or (lambda step: None),
  )  # fmt: skip
  write_model(found.model, target)
  return reduce_report(found, str(source), str(target))


def node_times(model: str | Path) -> dict[str, Any]:
  """What every node of an optimized ``model`` takes, as node data of Model Explorer.

  Raises:
      MirageError: REPORT_MISSING, FILE_MISSING, NOT_ONNX.
  """
  from mirage_onnx.report import run_record
  from mirage_onnx.report.node_data import node_data

  file = ModelFile.read(model)
  record = run_record.read(file.proto)
  return node_data(record, _of_record(file, record))


def report_page(model: str | Path) -> str:
  """The report of an optimized ``model`` as one HTML page, of what is in the model.

  Raises:
      MirageError: REPORT_MISSING, FILE_MISSING, NOT_ONNX.
  """
  from mirage_onnx.report import run_record
  from mirage_onnx.report.page import page as page_of

  file = ModelFile.read(model)
  record = run_record.read(file.proto)
  return page_of(record, _of_record(file, record))


def _of_record(file: ModelFile, record: RunRecord) -> ModelFile:
  """A file for several targets as the one sees it that the record is of."""
  from mirage_onnx.custom_op.target_view import only, own_suffix, suffixes_of
  from mirage_onnx.target import get_target

  try:
    target = get_target(record.target)
  except MirageError:  # of a GPU that was timed under a name of its own
    return file
  return only(file, own_suffix(target, suffixes_of(file.proto)) or target.suffix)
