"""The JSON reports of ``optimize`` and ``verify``, as types: the objects that ``--json`` prints.

Those of ``inspect`` and ``explain`` are in ``inspection.py``. Every field is always there, null
where its value is unknown, except those with a default here. A change that a reader of version 1
would trip over raises ``SCHEMA``.
"""

import inspect
from typing import Any, Literal

import msgspec

from mirage_onnx.report.bench_report import BenchReport
from mirage_onnx.report.diff_report import DiffReport
from mirage_onnx.report.inspection import DimensionReport, ExplainReport, InspectReport
from mirage_onnx.report.reduce_report import ReduceReport
from mirage_onnx.report.struct import SCHEMA, Struct
from mirage_onnx.report.timed import MeasuredReport
from mirage_onnx.report.tune_report import TuneReport
from mirage_onnx.tune.outcome import CUT_OFF

__all__ = [
  "CUT_OFF",
  "SCHEMA",
  "Report",
  "VerifyReport",
  "check_report",
  "check_verify_report",
  "json_schema",
]


class Search(Struct, frozen=True):
  """How the candidates of a region were found.

  ``verified``: candidates that passed the proof. ``stop``: EXHAUSTED, BUDGET, STATE_LIMIT or
  INTERRUPTED.
  """

  seconds: float | None
  states: int | None
  verified: int | None
  stop: str | None


class ProofSummary(Struct, frozen=True):
  """Random tests in finite fields: number of draws, bound of the false-accept probability."""

  draws: int | None
  bound: float | None


class SizeReport(Struct, frozen=True):
  """Predicted times of an instance where dynamic dimensions have these sizes."""

  sizes: str
  baseline_us: float
  predicted_us: float


class RegionReport(Struct, frozen=True):
  """One distinct region; ``count`` instances of the model are identical to it.

  ``ops``: names of the ONNX nodes of its first instance. ``reason``: a code of docs/errors.md,
  ``reason_text`` its sentence. Times are of one instance, with dynamic dimensions of a
  typical size; ``sizes``: at all declared sizes. ``unknown_nodes``: how many of ``ops`` have no
  known time; ``baseline_us`` is that of the others, null if there are none. ``ran``: where the kernels
  of a replaced region ran before it was written; emulated ones did at reduced sizes.
  """

  id: str
  ops: list[str]
  count: int
  status: Literal["replaced", "kept"]
  reason: str | None
  choice: Literal["measured", "predicted"] | None
  ugraph: str | None
  predicted_us: float | None
  measured_us: float | None
  baseline_us: float | None
  search: Search | None
  proof: ProofSummary | None
  reason_text: str | None = None
  sizes: list[SizeReport] = msgspec.field(default_factory=list)
  unknown_nodes: int = 0
  ran: Literal["measured", "emulated", "never ran"] | None = None


class ModelReport(Struct, frozen=True):
  """The whole model, predicted, every node once: before, and with what was chosen.

  ``before_us``: the nodes whose times are known; ``after_us``: those of them that are left, and the
  custom nodes (a measured one as the share that it takes of its nodes). ``nodes_unknown``: nodes
  without a known time, which are in neither; ``nodes_unknown_gone`` of them are replaced, so
  ``after_us`` holds what took their place. ``nodes_bounded``: nodes that count as what moving their
  bytes takes, which is less than they take. ``speedup_low``, ``speedup_high``: what a predicted
  speedup may be when it is measured (``report/band.py``).
  """

  nodes: int
  nodes_gone: int
  custom_nodes: int
  nodes_unknown: int
  nodes_unknown_gone: int
  nodes_bounded: int
  before_us: float
  after_us: float
  speedup_low: float | None = None
  speedup_high: float | None = None


class CountReport(Struct, frozen=True):
  """Distinct regions, and instances of them in the model."""

  regions: int
  instances: int


class FoundReport(Struct, frozen=True):
  """All regions that were found, which overlap. ``regions``: distinct ones.

  ``by_result``: REPLACED, NOT_CHOSEN (a kernel would win, other regions win more), or the code of a
  refusal. ``searched_in_part``: distinct ones whose search the time ended after it had found a program.
  """

  regions: int
  instances: int
  by_result: dict[str, CountReport]
  searched_in_part: int


class TargetReport(Struct, frozen=True):
  """What a file for several GPUs has for one of them: distinct regions, and the custom nodes of them.

  ``late``: regions that its share of the time left.
  """

  name: str
  regions: int
  custom_nodes: int
  late: int = 0


class Report(Struct, frozen=True):
  """One run of ``optimize``.

  ``target``: all of them with commas between, of a file for several; then ``targets`` has each, the one first
  that all else here is of.

  ``model``: null where no time is known. ``regions``: those that were replaced, every one that the
  budget cut off, and for other refusals the largest; ``found`` counts all.
  ``measured``: null where the whole model was not timed.
  ``barriers``: refusal code -> number of nodes that no region can hold. ``constants``: tensor
  name -> exact value that it was read as. ``checked``: what was done before the output was
  replaced, in words. ``dimensions``: dynamic ones, with the sizes that counted.
  """

  schema: Literal[1]
  input: str | None
  output: str | None
  target: str | None
  seconds: float | None
  regions: list[RegionReport]
  barriers: dict[str, int] = msgspec.field(default_factory=dict)
  constants: dict[str, str] = msgspec.field(default_factory=dict)
  model: ModelReport | None = None
  found: FoundReport | None = None
  checked: str | None = None
  dimensions: list[DimensionReport] = msgspec.field(default_factory=list)
  measured: MeasuredReport | None = None
  targets: list[TargetReport] = msgspec.field(default_factory=list)


class OutputReport(Struct, frozen=True):
  """How one output differs from its reference, at worst over the inputs (``worst``: which).

  ``needed_rtol``: the least relative L2 error per row that would pass, ``rtol``: what passes.
  ``least_atol``, ``least_rtol``: of numpy.allclose, each with the other at 0. ``reason``: why
  nothing would pass, where ``needed_rtol`` is null.
  """

  name: str
  dtype: str
  passed: bool
  identical: bool
  max_abs: float | None
  needed_rtol: float | None
  rtol: float
  worst: str
  reason: str
  least_atol: float | None
  least_rtol: float | None


class RegionCheckReport(OutputReport, frozen=True):
  """One output of the custom node ``node``, run by itself, against the region it replaced.

  Both get the original model's values at the region's inputs.
  """

  node: str


class NodeReport(Struct, frozen=True):
  """A custom node and what ran: its kernel on a GPU, in the emulator, or the function body."""

  name: str
  path: Literal["kernel", "emulated", "body", "not run"]
  launches: int


class VerifyReport(Struct, frozen=True):
  """One run of ``verify``.

  ``regions``: in topological order; ``first_divergence``: the first node beyond its tolerance.
  ``inputs``: the kinds that were tried. ``source``: how the kernels are tied to their CUDA text.
  ``first_difference``: the first output that is not bit-identical. ``failures``: what could not be
  checked, because onnxruntime failed there, or was killed, and outputs that the function bodies compute
  otherwise than the original. ``unverified``: why images that did not run on a GPU were not compiled
  again; where it says so, ``passed`` is false.
  """

  schema: Literal[1]
  passed: bool
  outputs: list[OutputReport]
  nodes: list[NodeReport]
  regions: list[RegionCheckReport]
  inputs: list[str]
  source: str
  unverified: str
  note: str
  failures: list[str]
  first_difference: str | None
  first_divergence: str | None
  needed_rtol: float | None


def check_report(report: dict[str, Any]) -> Report:
  """Read a report, strictly.

  Raises:
      msgspec.ValidationError: a field is missing, unknown or of another type.
  """
  return msgspec.convert(report, Report, strict=True)


def check_verify_report(report: dict[str, Any]) -> VerifyReport:
  """Read a report of ``verify``, strictly.

  Raises:
      msgspec.ValidationError: as ``check_report``.
  """
  return msgspec.convert(report, VerifyReport, strict=True)


#: Command -> its report.
REPORTS: dict[str, type[Struct]] = {
  "optimize": Report,
  "verify": VerifyReport,
  "inspect": InspectReport,
  "explain": ExplainReport,
  "bench": BenchReport,
  "diff": DiffReport,
  "reduce": ReduceReport,
  "tune": TuneReport,
}


def json_schema(command: str = "optimize") -> dict[str, Any]:
  """The JSON Schema (2020-12) of the report of a command."""
  found = msgspec.json.schema(REPORTS[command])
  for definition in found["$defs"].values():
    definition["description"] = inspect.cleandoc(definition["description"])
  return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
