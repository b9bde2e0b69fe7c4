"""Writing what a run made of a model: checked first, and without the regions that fail the check.

    rewritten model -> temporary files -> onnx's checker, onnxruntime on the CPU -> its name

Nothing of an older output is touched before. Where the check fails, regions are dropped until it
passes; with none left, the model is written as it was given.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from onnx import helper

from mirage_onnx.errors import Rejection
from mirage_onnx.failures import largest_valid
from mirage_onnx.importer import LoadedModel
from mirage_onnx.pipeline import Options, Run, refused, with_these
from mirage_onnx.rewrite.save import External, save_model
from mirage_onnx.rewrite.stock_check import check_written

#: One check may take so long at most, and so long whatever the budget has left.
MOST_S, LEAST_S = 60.0, 5.0
#: Regions that fail the check are looked for so long after the end at most.
LATE_S = 30.0


@dataclass(frozen=True, slots=True)
class Place:
  """Where a model is written, and where its external data is now and then.

  ``end``: of ``time.monotonic``, when no check is begun any more.
  """

  output: Path
  source: Path | None
  external: External | None
  end: float


def write(
  run: Run,
  loaded: LoadedModel,
  options: Options,
  place: Place,
  *,
  check: bool,
  noted: Callable[[Run], Run] = lambda run: run,
) -> tuple[Run, str]:
  """Write the model of a run; returns what is left of the run, and what was checked.

  ``noted``: adds to the model what is to be kept in it about the run.

  Raises:
      MirageError: as ``save_model``.
  """
  if not check or not run.chosen:
    run = noted(run)
    save_model(run.model, place.output, place.source, external=place.external)
    return run, "nothing was replaced" if not run.chosen else "not checked"
  original = loaded.path or loaded.given.SerializeToString()
  weights = sum(
    prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
    for t in loaded.given.graph.initializer
  )
  left, said, last = run, "", ""

  def checked(new: Path) -> Rejection | None:
    nonlocal last
    now = time.monotonic()
    found = check_written(original, new, weights, max(LEAST_S, min(MOST_S, place.end - now)))
    last = found.said
    return Rejection("CHECK_FAILED", found.problem) if found.problem else None

  def attempt(some: Sequence[int]) -> Rejection | None:
    nonlocal left, said
    if len(some) < len(run.chosen) and time.monotonic() > place.end + LATE_S:
      return Rejection("CHECK_FAILED", "the model failed its check, and there was no time to find the region")
    made = run if len(some) == len(run.chosen) else with_these(run, loaded, options, some)
    if not made.chosen:
      return Rejection("CHECK_FAILED", "it could not be rewritten without the others")
    made = noted(made)
    why = save_model(made.model, place.output, place.source, external=place.external, check=checked)
    if why is None:
      left, said = made, last
    return why

  good, failed = largest_valid(len(run.chosen), attempt)
  if not good:
    left = with_these(run, loaded, options, ())
    save_model(left.model, place.output, place.source, external=place.external)
    said = "every region was dropped"
  return refused(left, run, failed), said
