"""The Python interface to one model that is only looked at: ``inspect`` and ``explain``.

What only one of them needs is imported there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mirage_onnx.api_reports import check_budget
from mirage_onnx.argument_kinds import check_kinds
from mirage_onnx.asked_targets import asked_target
from mirage_onnx.importer import load_model
from mirage_onnx.importer.model_source import ModelSource, readable
from mirage_onnx.pipeline import Options
from mirage_onnx.tune.declared_sizes import checked_sizes
from mirage_onnx.tune.other_gpu import least_margin

if TYPE_CHECKING:
  from mirage_onnx.report.inspection import ExplainReport, InspectReport


def inspect(
  model: ModelSource,
  *,
  target: str | None = None,
  every: bool = False,
  shapes: Mapping[str, int | Sequence[int]] | None = None,
) -> InspectReport:
  """What could be fused in ``model``, and what that would bring at most: no search, no GPU.

  Args:
      model: as in ``optimize``.
      target: as in ``optimize``.
      every: all regions that the model offers, not only those of the partition with the most possible
          gain.
      shapes: sizes of dynamic dimensions by name.

  Raises:
      MirageError: with one of the codes of ``docs/errors.md``.
  """
  from mirage_onnx.inspection import survey_model
  from mirage_onnx.report.inspection_report import inspect_report

  start = time.monotonic()
  profile, measure = asked_target(target)
  sizes, margin = checked_sizes(shapes), 0.2
  with readable(model) as given:
    least = margin if measure else least_margin(profile, margin)
    survey = survey_model(load_model(given), profile, least, sizes)
  seconds = time.monotonic() - start
  source = _source(model)
  return inspect_report(survey, source=source, target=profile.name, seconds=seconds, every=every)


def explain(
  model: ModelSource,
  region: str,
  *,
  target: str | None = None,
  budget_s: float | None = None,
  margin: float = 0.2,
  shapes: Mapping[str, int | Sequence[int]] | None = None,
) -> ExplainReport:
  """Why ``region`` of ``model`` ends where it does, and what a search of it alone finds.

  Nothing is timed, so the choice is that of ``optimize`` without a GPU.

  Args:
      model: as in ``optimize``.
      region: a key that ``inspect`` shows (or its first letters), or the name of any node,
          or of a tensor that it makes; of one in no region the report says why, and what can be done.
      target: as in ``optimize``, and so are ``budget_s``, ``margin`` and ``shapes``.
      budget_s: seconds for the search.
      margin: the least predicted gain.
      shapes: sizes of dynamic dimensions by name.

  Raises:
      MirageError: REGION_UNKNOWN, or another code of ``docs/errors.md``.
  """
  from mirage_onnx.inspection import explain_region, survey_model
  from mirage_onnx.inspection.node_answer import NodePlace, answer_node
  from mirage_onnx.report.inspection_report import explain_report, node_report

  start = time.monotonic()
  check_budget(budget_s)
  check_kinds("a text", region=region)
  check_kinds("a number", margin=margin)
  profile, _ = asked_target(target)
  sizes = checked_sizes(shapes)
  margin = least_margin(profile, margin)
  options = Options(profile, margin, 300.0 if budget_s is None else budget_s, shapes=sizes)
  with readable(model) as given:
    loaded = load_model(given)
    survey = survey_model(loaded, profile, margin, sizes)
    node, source = answer_node(loaded, survey, region), _source(model)
    if node is not None and node.place is not NodePlace.REGION:
      seconds = time.monotonic() - start
      return node_report(survey, node, source=source, target=profile.name, seconds=seconds)
    found = explain_region(loaded, survey, node.name if node else region, options)
  seconds = time.monotonic() - start
  return explain_report(survey, found, node, source=source, target=profile.name, seconds=seconds)


def _source(model: ModelSource) -> str | None:
  return str(model) if isinstance(model, (str, os.PathLike)) else None
