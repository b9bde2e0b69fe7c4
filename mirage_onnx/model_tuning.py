"""The Python interface to one optimized model where there is a GPU: ``tune``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import onnx

from mirage_onnx.api_reports import check_budget
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_file
from mirage_onnx.report.schema import SCHEMA
from mirage_onnx.tune.declared_sizes import DEFAULT, checked_sizes

if TYPE_CHECKING:
  from mirage_onnx.custom_op.model_nodes import CustomNode
  from mirage_onnx.custom_op.race import Failed, Race, Times
  from mirage_onnx.report.run_record import RunRecord
  from mirage_onnx.report.tune_report import TuneReport

#: Seconds for all of it, unless told.
BUDGET_S = 120.0


def tune(
  model: str | Path,
  *,
  budget_s: float | None = None,
  shapes: Mapping[str, int | Sequence[int]] | None = None,
  check: bool = True,
  timer: Callable[[Race], Times | Failed] | None = None,
) -> TuneReport:
  """Measure a model that ``optimize`` wrote on the GPU that is here, and drop what costs time, in place.

  It is timed as whole sessions beside its original, which the bodies of its custom nodes are. Regions go
  until it is faster with confidence; then the file is checked as by ``optimize`` and replaced atomically.

  Args:
      model: the path of the optimized model.
      budget_s: seconds for all of it (default 120).
      shapes: sizes of dynamic dimensions by name, at which it must be faster (default 1, 16 and 256).
      check: run the new file in a plain onnxruntime before it replaces the old one.
      timer: times a race (default: in a child process, on the GPU).

  Raises:
      MirageError: GPU_NEEDED, REPORT_MISSING, FILE_MISSING, NOT_ONNX, OPTION_INVALID, SESSION_FAILED,
          TUNE_FAILED, OUTPUT_UNWRITABLE.
  """
  start = time.monotonic()
  check_budget(budget_s)
  path, sizes = Path(model), checked_sizes(shapes)
  check_file(path)
  from mirage_onnx.custom_op.model_nodes import ModelFile
  from mirage_onnx.custom_op.race import Racer
  from mirage_onnx.custom_op.target_view import only, own_suffix, suffixes_of
  from mirage_onnx.racing import Gate
  from mirage_onnx.report.optimize_report import measured_report
  from mirage_onnx.report.retuned_record import keep, saved_us, without
  from mirage_onnx.report.run_record import read
  from mirage_onnx.report.timed import MeasuredReport
  from mirage_onnx.report.tune_report import TunedKernel, TuneReport
  from mirage_onnx.retuning import groups_of, retuned
  from mirage_onnx.tune.device import present_target

  file = ModelFile.read(path)
  record, suffixes, suffix = read(file.proto), suffixes_of(file.proto), ""
  every = frozenset(o for n in file.custom_nodes() for o in n.outputs)
  whole = file
  if len(suffixes) > 1:
    present = present_target() if timer is None else None
    suffix = (own_suffix(present, suffixes) if present else "") or suffixes[0]
    file = only(file, suffix)
  nodes = file.custom_nodes()
  if not nodes:
    raise MirageError("REPORT_MISSING", "the model has no kernels: nothing in it was replaced")
  points, others = points_of(file.proto, sizes)
  if timer is None:
    _require_gpu(nodes)
  file.bundle()
  # Of another target the record says nothing, and is not changed.
  is_own = not suffix or _suffix_of(record, suffixes) == suffix
  places = _places(record, file.proto, nodes) if is_own else {}
  groups = groups_of(file, {name: saved_us(record, place) for name, place in places.items()})
  end = start + (BUDGET_S if budget_s is None else budget_s)
  gate = Gate(str(path), points, end, timer=timer or Racer(), bodies=every, began=start, others=others)

  def measured() -> MeasuredReport:
    found = measured_report(gate) or {"rows": [], "note": "onnxruntime could not run its kernels"}
    return msgspec.convert(found, MeasuredReport)

  def noted(new: onnx.ModelProto, dropped: Mapping[str, str]) -> None:
    if not is_own:
      return
    gone = {places[n.name]: dropped[g.key] for g in groups if g.key in dropped for n in g.nodes}
    keep(new, without(record, gone), measured())

  gate.begin()
  try:
    found = retuned(path, whole, groups, gate, check=check, noted=noted, suffix=suffix)
  finally:
    gate.close()
  note, lock = "", path.with_name(f"{path.name}.lock")
  if found.dropped and lock.exists():
    with suppress(OSError):
      lock.unlink()
      note = f"{lock} is gone: it would write again what was dropped"
  return TuneReport(
    schema=SCHEMA, model=str(path), target=record.target if is_own else suffix,
    seconds=round(time.monotonic() - start, 3),
    kernels=[
      TunedKernel(
        nodes=[n.name for n in g.nodes], status="dropped" if g.key in found.dropped else "kept",
        reason=found.dropped.get(g.key),
      )
      for g in sorted(groups, key=lambda g: g.key)
    ],
    measured=measured(), checked=found.checked, note=note,
  )  # fmt: skip


def _suffix_of(record: RunRecord, suffixes: Sequence[str]) -> str:
  """Which of a file's targets a record is of; "" where it has no name that is known here."""
  from mirage_onnx.custom_op.target_view import own_suffix
  from mirage_onnx.target import get_target

  with suppress(MirageError):
    return own_suffix(get_target(record.target), suffixes)
  return ""


def _require_gpu(nodes: Sequence[CustomNode]) -> None:
  from mirage_onnx.target import suffixes_that_run
  from mirage_onnx.tune.device import present_gpu, present_target

  present, here = present_target(), present_gpu()
  if present is None:
    what = (
      f"the GPU here is {here}, which runs none of our kernels" if here else "there is no usable GPU here"
    )
    raise MirageError("GPU_NEEDED", what)
  if wrong := next((n for n in nodes if n.domain.rpartition(".")[2] not in suffixes_that_run(present)), None):
    raise MirageError("GPU_NEEDED", f"the kernels are of {wrong.domain}, the GPU here is {here}")


def _places(record: RunRecord, model: onnx.ModelProto, nodes: Sequence[CustomNode]) -> dict[str, int]:
  """The name of a custom node -> the number of its place in the record.

  Raises:
      MirageError: REPORT_MISSING, the record is of another model.
  """
  from mirage_onnx.report.record_run import region_of
  from mirage_onnx.report.retuned_record import place_of

  graphs = {id(n.graph): n.graph for n in nodes}.values()
  stands_for = {o: region_of(n) for graph in graphs for n in graph.node for o in n.output}
  found = {n.name: place_of(record, stands_for[n.outputs[0]]) for n in nodes}
  made = {name: place for name, place in found.items() if place is not None}
  if len(made) < len(nodes) or len(set(made.values())) < len(nodes):
    raise MirageError("REPORT_MISSING", "the model's record is not of its custom nodes")
  return made


def points_of(
  model: onnx.ModelProto, sizes: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[Mapping[str, int], ...], tuple[Mapping[str, int], ...]]:
  """The smallest sizes of all dynamic dimensions, the ones between, and the largest; and those of no kernel.

  Of a decoder whose steps have a branch, of which nothing is said, they are those of steps.
  """
  from mirage_onnx.importer.steps_apart import named_step_sizes

  dims = (d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim)
  names = sorted({d for d in dims if d})
  if unknown := [n for n in sizes if n not in names]:
    have = ", ".join(names) or "none"
    raise MirageError("OPTION_INVALID", f"no dynamic dimension is called {unknown[0]!r}; there are: {have}")
  steps = named_step_sizes(model)
  own = {n: sorted(sizes.get(n, (steps[n],) if n in steps else DEFAULT)) for n in names}
  most = max((len(s) for s in own.values()), default=1)
  points = tuple({n: s[min(i, len(s) - 1)] for n, s in own.items()} for i in range(most))
  return points, tuple(p for p in points if any(p.get(n, size) != size for n, size in steps.items()))
