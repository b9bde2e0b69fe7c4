"""The JSON report of ``reduce``, as a type, and its text."""

from typing import Literal

from mirage_onnx.reduction import Reduced, ReductionStep
from mirage_onnx.report.struct import SCHEMA, Struct


class ReduceReport(Struct, frozen=True):
  """One run of ``reduce``; ``bytes``: of the model with its weights.

  ``exit_code``: of the command, with which it still ends. ``finished``: nothing smaller was left to try.
  """

  schema: Literal[1]
  input: str
  output: str
  nodes_before: int
  nodes: int
  bytes_before: int
  bytes: int
  runs: int
  seconds: float
  exit_code: int
  finished: bool


def reduce_report(found: Reduced, source: str, output: str) -> ReduceReport:
  """The report of a reduction that was written to ``output``."""
  return ReduceReport(
    schema=SCHEMA, input=source, output=output, nodes_before=found.nodes_before, nodes=found.nodes,
    bytes_before=found.bytes_before, bytes=found.bytes, runs=found.runs, seconds=round(found.seconds, 3),
    exit_code=found.code or 0, finished=found.is_whole,
  )  # fmt: skip


def step_line(step: ReductionStep) -> str:
  """How far a reduction is, in one line."""
  return (
    f"reduce: {step.nodes_before} → {step.nodes} nodes; {step.stage}; {step.runs} runs, {step.seconds:.0f} s"
  )


def reduce_line(report: ReduceReport) -> str:
  """What came out."""
  more = "" if report.finished else "; not finished: it may become smaller still"
  size = f"{_size(report.bytes_before)} → {_size(report.bytes)}"
  return (
    f"wrote {report.output}: {report.nodes_before} → {report.nodes} nodes, {size}, "
    f"{report.runs} runs in {report.seconds:.1f} s{more}"
  )


def _size(count: int) -> str:
  unit, one = next(((u, n) for u, n in (("MB", 1e6), ("kB", 1e3)) if count >= n), ("bytes", 1))
  return f"{count / one:.0f} {unit}"
