"""The Python interface: ``optimize``, ``inspect`` and ``explain`` a model, ``verify`` a pair.

What only some of them need is imported there: a model with nothing to gain takes a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mirage_onnx import events, pipeline
from mirage_onnx.api_reports import check_budget, check_page, reduce, report_page, write_page
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import LoadedModel, atoms, load_model
from mirage_onnx.importer.external import check_file
from mirage_onnx.pipeline import Options, Run, stage
from mirage_onnx.report.notes import Notes
from mirage_onnx.report.optimize_report import (
  dimensions_report,
  found_report,
  measured_report,
  model_report,
)
from mirage_onnx.report.region_rows import region_rows
from mirage_onnx.report.schema import SCHEMA
from mirage_onnx.rewrite.save import External, check_output
from mirage_onnx.rewrite.turned import is_turned
from mirage_onnx.superopt.hooks import never
from mirage_onnx.superopt.result import Stop
from mirage_onnx.target import H200, Target, get_target
from mirage_onnx.tune.declared_sizes import checked_sizes
from mirage_onnx.writing import Place, write

if TYPE_CHECKING:
  from mirage_onnx.custom_op.comparison import Comparison
  from mirage_onnx.racing import Gate
  from mirage_onnx.report.bench_report import BenchReport
  from mirage_onnx.report.diff_report import DiffReport
  from mirage_onnx.report.inspection import ExplainReport, InspectReport

__all__ = [
  "Result", "bench", "diff", "explain", "inspect", "optimize", "present_target", "reduce", "report_page",
  "verify",
]  # fmt: skip

#: Of one size of ``bench``.
_MOST_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Result:
  """``model``: the optimized model; ``report``: the object that ``--json`` prints."""

  model: onnx.ModelProto
  report: dict[str, Any]


def optimize(
  model: str | Path | onnx.ModelProto,
  output: str | Path | None = None,
  *,
  target: str | None = None,
  budget_s: float | None = None,
  margin: float = 0.2,
  workers: int | None = None,
  external: str | None = None,
  emit: events.Emit | None = None,
  journal: str | Path | None = None,
  stop: Callable[[], bool] | None = None,
  tiled: bool | None = None,
  shapes: Mapping[str, Sequence[int]] | None = None,
  check: bool = True,
  model_check: bool = True,
  page: str | Path | None = None,
) -> Result:
  """Replace regions of ``model`` by generated kernels, where that is faster.

  ``target``: a device profile (``h200``) or ``local``, the present GPU; default: ``local`` where
  there is a GPU, else ``h200``. With ``local`` kernels are timed against ONNX Runtime, otherwise
  they must be predicted faster by ``margin``. ``output``: where to write the model, atomically.
  ``external``: what to do with untouched weights outside the model file, ``keep`` (default beside
  the input), ``copy`` into a data file beside the output (default elsewhere) or ``inline``. ``journal``: a
  file that keeps what the search has found; a later call with it goes on from there, also after
  a crash. ``stop``: polled by the search; when it returns true, the search ends with the best
  found so far, and the model is written with that. ``tiled``: also search regions in which two
  activations are contracted (attention), which may take minutes; default: where kernels are
  timed, for their times are predicted only roughly. ``shapes``: the sizes
  at which a dynamic dimension will be used, by its name in the model (default 1, 16 and 256):
  kernels are right at every size, and a region is replaced if they are faster at all of these.
  ``check``: before ``output`` is replaced, run the new model in a plain onnxruntime against the
  original; regions with which it fails are left as they were. ``model_check``: with ``local``, before
  ``output`` is replaced, time whole runs of the original and of the result at all declared sizes; regions
  are dropped until the result is faster with confidence, and with none left the original is written.
  ``page``: a file for the report as one HTML page; ``report_page`` makes it of the output later.

  Raises:
      MirageError: with one of the codes of ``docs/errors.md``.
  """
  start = time.monotonic()
  check_budget(budget_s)
  source = Path(model) if isinstance(model, (str, Path)) else None
  target_path = Path(output) if output is not None else None
  profile, measure = _target(target)
  if external not in (None, *External):
    raise MirageError("OPTION_INVALID", f"external={external!r}: keep, copy or inline")
  weights = External(external) if external else None
  if page is not None:
    check_page(Path(page), source, target_path)
  loaded = load_model(model)
  if target_path is not None:
    check_output(target_path, source, loaded.proto, external=weights)
  options = Options(
    profile, margin, 300.0 if budget_s is None else budget_s, workers, measure,
    journal=Path(journal) if journal is not None else None,
    stop=(lambda: Stop.INTERRUPTED if stop() else None) if stop else never,
    tiled=measure if tiled is None else tiled, shapes=checked_sizes(shapes or {}), began=start,
    streamed=target_path is not None, emulate=not measure,
  )  # fmt: skip
  run = pipeline.run(loaded, options, emit or events.silent)
  checked, gate = None, None
  notes = Notes(source, profile)
  if target_path is not None:
    place = Place(target_path, source, weights, start + options.budget_s)
    gate = notes.gate = _gate(run, source, place.end) if measure and model_check else None
    with stage(emit or events.silent, "check") as detail:
      run, checked = write(
        run, loaded, options, place, check=check, gate=gate, noted=notes.noted, timed=notes.timed
      )
      detail.extend(gate.said() if gate else ())
    if any(map(is_turned, run.model.graph.initializer)):  # as written: what was streamed is in no memory
      run = replace(run, model=onnx.load(target_path, load_external_data=False))
  else:
    run = notes.noted(run)
  if page is not None:
    from mirage_onnx.report.record_run import record_run

    folder = target_path.resolve().parent if target_path is not None else None
    write_page(Path(page), record_run(run, source, profile, gate), ModelFile(run.model, folder))
  report = {
    "schema": SCHEMA,
    "input": str(source) if source is not None else None,
    "output": str(output) if output is not None else None,
    "target": profile.name,
    "seconds": round(time.monotonic() - start, 3),
    "model": model_report(run),
    "found": found_report(run),
    "regions": region_rows(run),
    "barriers": dict(sorted(Counter(r.code for r in run.matches.rejections).items())),
    "constants": _constants(loaded, run),
    "checked": checked,
    "measured": measured_report(gate),
    "dimensions": dimensions_report(run, options.shapes),
  }
  return Result(run.model, report)


def _gate(run: Run, source: Path | None, end: float) -> Gate | None:
  """What times whole models; None where the original is in no file that onnxruntime could read."""
  if source is None or not run.chosen:
    return None
  from mirage_onnx.racing import Gate

  return Gate(str(source), run.points, end)


def present_target() -> Target | None:
  """The profile of the present GPU, None where there is none."""
  from mirage_onnx.tune.device import present_target as present

  return present()


def _target(name: str | None) -> tuple[Target, bool]:
  is_local = name is not None and name.lower() == "local"
  if name is not None and not is_local:
    return get_target(name), False
  present = present_target()
  if present is not None:
    return present, True
  if is_local:
    from mirage_onnx.tune.device import no_profile

    raise MirageError("NO_GPU", no_profile())
  return H200, False


def _check_pair(a: str | Path, b: str | Path, seed: int, dims: Mapping[str, Sequence[int]]) -> None:
  """That two models are files, and have the dimensions of which ``dims`` gives sizes."""
  for path in (a, b):
    check_file(Path(path))
  if seed < 0:
    raise MirageError("OPTION_INVALID", f"the seed is {seed}: it must not be negative")
  if dims:
    graph = ModelFile.read(a).proto.graph
    values = (*graph.input, *graph.output, *graph.value_info)
    names = sorted({d.dim_param for v in values for d in v.type.tensor_type.shape.dim if d.dim_param})
    if unknown := [n for n in dims if not any(n in name for name in names)]:
      have = ", ".join(names) or "none"
      raise MirageError("OPTION_INVALID", f"no dynamic dimension is called {unknown[0]!r}; there are: {have}")


def _constants(loaded: LoadedModel, run: Run) -> dict[str, str]:
  found = atoms(loaded, run.program.constants)
  return {str(a).split("'")[1]: str(a) for a in found}


def verify(
  a: str | Path,
  b: str | Path,
  *,
  seed: int = 0,
  provider: str | None = None,
  rtol: float | None = None,
  emulate: bool | None = None,
  inputs: Mapping[str, np.ndarray] | str | Path | None = None,
  bisect: bool = False,
  shapes: Mapping[str, Sequence[int]] | None = None,
) -> Comparison:
  """Run the original ``a`` and the optimized ``b`` on the same inputs and compare.

  ``provider`` and ``emulate`` left out: the CUDA provider where there is a GPU for ``b``, else
  the CPU provider with the kernels of ``b`` in the emulator where there is a C++ compiler.
  ``inputs``: arrays by name, or an ``.npz`` file. ``bisect``: check every custom node by itself
  on every input, not only on the first. ``shapes``: sizes of dynamic dimensions by name; all
  combinations are run. The CUDA text of ``b`` is generated again and compared. onnxruntime runs in a
  child process: what kills it is one of the ``failures``, or SESSION_FAILED.

  Raises:
      MirageError: SOURCE_MISMATCH, those of ``compare_models`` and ``read_inputs``.
  """
  from mirage_onnx.custom_op.choose_path import choose_path
  from mirage_onnx.custom_op.compare_inputs import read_inputs
  from mirage_onnx.custom_op.isolated import compare_isolated
  from mirage_onnx.custom_op.sources import check_sources

  dims = checked_sizes(shapes or {})
  _check_pair(a, b, seed, dims)
  provider, emulate, advice = choose_path(b, provider, emulate)
  given = read_inputs(inputs) if isinstance(inputs, (str, Path)) else inputs
  source = check_sources(b, strict=emulate)
  found = compare_isolated(
    str(a), str(b), seed=seed, provider=provider, rtol=rtol, emulate=emulate, inputs=given,
    bisect=bisect, dims=dims,
  )  # fmt: skip
  note = "; ".join(text for text in (found.note, advice) if text)
  return replace(found.with_source(source.text, source.unseen), note=note)


def bench(
  a: str | Path,
  b: str | Path,
  *,
  provider: str | None = None,
  seconds: float = 5.0,
  seed: int = 0,
  shapes: Mapping[str, Sequence[int]] | None = None,
) -> BenchReport:
  """Time whole onnxruntime runs of the original ``a`` and of ``b``, side by side.

  Sessions with default options, inputs and outputs on the device. ``provider`` left out: the CUDA
  provider where there is a GPU for ``b``, else the CPU provider, where the function bodies of ``b`` run.
  ``seconds``: at every combination of ``shapes`` (sizes of dynamic dimensions by name).

  Raises:
      MirageError: FILE_MISSING, OPTION_INVALID, SHAPES_DIFFER, SESSION_FAILED.
  """
  from mirage_onnx.custom_op.choose_path import choose_path
  from mirage_onnx.custom_op.model_times import time_models
  from mirage_onnx.report.bench_report import BenchNode, BenchReport, BenchRow

  dims = checked_sizes(shapes or {})
  _check_pair(a, b, seed, dims)
  if not 0 < seconds <= _MOST_SECONDS:
    raise MirageError("OPTION_INVALID", f"{seconds} seconds: more than 0, {_MOST_SECONDS:.0f} at most")
  provider, _, _ = choose_path(b, provider, False if provider == "cpu" else None)
  found = time_models(str(a), str(b), provider=provider, dims=dims, seconds=seconds, seed=seed)
  nodes = [BenchNode(name=name, launches=count) for name, count in found.launches.items()]
  bodies = "B's kernels need their GPU; here its function bodies ran, which are the original's nodes"
  return BenchReport(
    schema=SCHEMA, a=str(a), b=str(b), provider="cuda" if provider == "cuda" else "cpu",
    rows=[BenchRow(**asdict(row)) for row in found.rows], nodes=nodes,
    note=bodies if nodes and not any(n.launches for n in nodes) else "",
  )  # fmt: skip


def diff(a: str | Path, b: str | Path) -> DiffReport:
  """What the model ``b`` has in place of its original ``a``: node by node, and of the weights.

  Raises:
      MirageError: FILE_MISSING, NOT_ONNX.
  """
  from mirage_onnx.inspection import model_diff
  from mirage_onnx.report.diff_report import DiffNode, DiffReport, DiffWeight

  found = model_diff(ModelFile.read(a), ModelFile.read(b))
  nodes = [
    DiffNode(
      node=r.node, replaces=list(r.nodes), ops=dict(Counter(r.ops)), inputs=list(r.inputs),
      outputs=list(r.outputs),
    )
    for r in found.replaced
  ]  # fmt: skip
  added, gone = (
    [DiffWeight(name=name, bytes=size) for name, size in weights]
    for weights in (found.weights_added, found.weights_gone)
  )
  return DiffReport(
    schema=SCHEMA, a=str(a), b=str(b), nodes=nodes, unchanged=found.unchanged, changed=list(found.changed),
    gone=list(found.gone), added=list(found.added), weights_added=added, weights_gone=gone,
    interface=list(found.interface),
  )  # fmt: skip


def inspect(
  model: str | Path | onnx.ModelProto,
  *,
  target: str | None = None,
  every: bool = False,
  shapes: Mapping[str, Sequence[int]] | None = None,
) -> InspectReport:
  """What could be fused in ``model``, and what that would bring at most: no search, no GPU.

  ``target`` and ``shapes`` as in ``optimize``. ``every``: all regions that the model offers, not only
  those of the partition with the most possible gain.

  Raises:
      MirageError: with one of the codes of ``docs/errors.md``.
  """
  from mirage_onnx.inspection import survey_model
  from mirage_onnx.report.inspection_report import inspect_report

  start = time.monotonic()
  profile, _ = _target(target)
  survey = survey_model(load_model(model), profile, shapes=checked_sizes(shapes or {}))
  seconds = time.monotonic() - start
  source = _source(model)
  return inspect_report(survey, source=source, target=profile.name, seconds=seconds, every=every)


def explain(
  model: str | Path | onnx.ModelProto,
  region: str,
  *,
  target: str | None = None,
  budget_s: float | None = None,
  margin: float = 0.2,
  shapes: Mapping[str, Sequence[int]] | None = None,
) -> ExplainReport:
  """Why ``region`` of ``model`` ends where it does, and what a search of it alone finds.

  ``region``: a key that ``inspect`` shows (or its first letters), or the name of a node, or of a tensor
  that it makes; of a node that is in no region the report says why, and what can be done.
  Nothing is timed, so the choice is that of ``optimize`` without a GPU. ``shapes`` as in ``optimize``.

  Raises:
      MirageError: REGION_UNKNOWN, or another code of ``docs/errors.md``.
  """
  from mirage_onnx.inspection import explain_region, survey_model
  from mirage_onnx.inspection.node_answer import Place, answer_node
  from mirage_onnx.report.inspection_report import explain_report, node_report

  start = time.monotonic()
  check_budget(budget_s)
  profile, _ = _target(target)
  loaded = load_model(model)
  sizes = checked_sizes(shapes or {})
  survey = survey_model(loaded, profile, margin, sizes)
  options = Options(profile, margin, 300.0 if budget_s is None else budget_s, shapes=sizes)
  node, source = answer_node(loaded, survey, region), _source(model)
  if node is not None and node.place is not Place.REGION:
    seconds = time.monotonic() - start
    return node_report(survey, node, source=source, target=profile.name, seconds=seconds)
  found = explain_region(loaded, survey, node.name if node else region, options)
  seconds = time.monotonic() - start
  return explain_report(survey, found, node, source=source, target=profile.name, seconds=seconds)


def _source(model: str | Path | onnx.ModelProto) -> str | None:
  return str(model) if isinstance(model, (str, Path)) else None
