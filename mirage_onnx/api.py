"""The Python interface: ``optimize``, ``inspect`` and ``explain`` a model, ``verify`` a pair.

What only some of them need is imported there: a model with nothing to gain takes a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from mirage_onnx import events, pipeline
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import LoadedModel, atoms, load_model
from mirage_onnx.importer.external import check_file
from mirage_onnx.importer.model_source import ModelSource, readable
from mirage_onnx.pipeline import Options, Run
from mirage_onnx.report.optimize_report import found_report, model_report
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
  from mirage_onnx.report.bench_report import BenchReport
  from mirage_onnx.report.diff_report import DiffReport
  from mirage_onnx.report.inspection import ExplainReport, InspectReport

#: Of one size of ``bench``.
_MOST_SECONDS = 3600.0
#: Of a search: four months; timers take no more.
_MOST_BUDGET_S = 1e7


@dataclass(frozen=True, slots=True)
class Result:
  """``model``: the optimized model; ``report``: the object that ``--json`` prints."""

  model: onnx.ModelProto
  report: dict[str, Any]


def optimize(
  model: ModelSource,
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
) -> Result:
  """Replace regions of ``model`` by generated kernels, where that is faster.

  Args:
      model: a path, an ``onnx.ModelProto``, an ``onnx_ir.Model`` or what ``torch.onnx.export`` returns.
      output: where to write the model, atomically.
      target: a device profile (``h200``) or ``local``, the present GPU; default: ``local`` where there
          is a GPU, else ``h200``. With ``local`` kernels are timed against ONNX Runtime, otherwise they
          must be predicted faster by ``margin``.
      budget_s: seconds for the whole run (default 300); what it does not reach is left as it was.
      margin: the least predicted gain of a region, as a share of its time; no matter with ``local``.
      workers: processes of the search (default: one per core).
      external: what to do with untouched weights outside the model file, ``keep`` (default beside the
          input), ``copy`` into a data file beside the output (default elsewhere) or ``inline``.
      emit: is called with what happens (``mirage_onnx.events``).
      journal: a file that keeps what the search has found; a later call with it goes on from there, also
          after a crash.
      stop: polled by the search; when it returns true, the search ends with the best found so far, and
          the model is written with that.
      tiled: also search regions in which two activations are contracted (attention), which may take
          minutes; default: where kernels are timed, for their times are predicted only roughly.
      shapes: the sizes at which a dynamic dimension will be used, by its name in the model (default 1,
          16 and 256): kernels are right at every size, and a region is replaced if they are faster at
          all of these.
      check: before ``output`` is replaced, run the new model in a plain onnxruntime against the original;
          regions with which it fails are left as they were.

  Raises:
      MirageError: with one of the codes of ``docs/errors.md``.
  """
  start = time.monotonic()
  _check_budget(budget_s)
  source = Path(model) if isinstance(model, (str, Path)) else None
  target_path = Path(output) if output is not None else None
  if target_path is not None and check and find_spec("onnxruntime") is None:
    raise MirageError(
      "ORT_MISSING", "what is written is checked in onnxruntime (check=False, --no-check: not)"
    )
  profile, measure = _target(target)
  if external not in (None, *External):
    raise MirageError("OPTION_INVALID", f"external={external!r}: keep, copy or inline")
  weights = External(external) if external else None
  with readable(model) as given:
    loaded = load_model(given)
    if target_path is None and source is None and loaded.path is not None:
      raise MirageError("OPTION_INVALID", "a model of more than 1 GiB in memory needs output=PATH")
    if target_path is not None:
      check_output(target_path, loaded.path, loaded.proto, external=weights)
    options = Options(
      profile, margin, 300.0 if budget_s is None else budget_s, workers, measure,
      journal=Path(journal) if journal is not None else None,
      stop=(lambda: Stop.INTERRUPTED if stop() else None) if stop else never,
      tiled=measure if tiled is None else tiled, shapes=checked_sizes(shapes or {}), began=start,
      streamed=target_path is not None, emulate=not measure,
    )  # fmt: skip
    run = pipeline.run(loaded, options, emit or events.silent)
    checked = None
    if target_path is not None:
      place = Place(target_path, loaded.path, weights, start + options.budget_s)
      run, checked = write(run, loaded, options, place, check=check)
      if any(map(is_turned, run.model.graph.initializer)):  # as written: what was streamed is in no memory
        run = replace(run, model=onnx.load(target_path, load_external_data=False))
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
  }
  return Result(run.model, report)


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


def _check_budget(budget_s: float | None) -> None:
  if budget_s is not None and not 0 <= budget_s <= _MOST_BUDGET_S:
    raise MirageError("OPTION_INVALID", f"a budget of {budget_s} seconds: {_MOST_BUDGET_S:.0f} at most")


def _check_pair(a: str | Path, b: str | Path, seed: int, dims: Mapping[str, Sequence[int]]) -> None:
  """That two models are files, and have the dimensions of which ``dims`` gives sizes."""
  for path in (a, b):
    check_file(Path(path))
  if seed < 0:
    raise MirageError("OPTION_INVALID", f"the seed is {seed}: it must not be negative")
  if dims:
    from mirage_onnx.custom_op.model_nodes import ModelFile

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

  The CUDA text of ``b`` is generated again and compared. onnxruntime runs in a child process: what kills
  it is one of the ``failures``, or SESSION_FAILED.

  Args:
      a: the original's path.
      b: that of the optimized model.
      seed: of the random inputs.
      provider: ``cpu`` or ``cuda``. Left out, as ``emulate``: the CUDA provider where there is a GPU for
          ``b``, else the CPU provider with the kernels of ``b`` in the emulator where there is a C++
          compiler.
      rtol: the tolerance of every float output (default: that of its type).
      emulate: run the kernels of ``b`` in the emulator, or not.
      inputs: arrays by name, or an ``.npz`` file.
      bisect: check every custom node by itself on every input, not only on the first.
      shapes: sizes of dynamic dimensions by name; all combinations are run.

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

  Sessions with default options, inputs and outputs on the device.

  Args:
      a: the original's path.
      b: that of the optimized model.
      provider: ``cpu`` or ``cuda``. Left out: the CUDA provider where there is a GPU for ``b``, else the
          CPU provider, where the function bodies of ``b`` run.
      seconds: at every combination of ``shapes``.
      seed: of the random inputs.
      shapes: sizes of dynamic dimensions by name.

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
  from mirage_onnx.custom_op.model_nodes import ModelFile
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
  model: ModelSource,
  *,
  target: str | None = None,
  every: bool = False,
  shapes: Mapping[str, Sequence[int]] | None = None,
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
  profile, _ = _target(target)
  sizes = checked_sizes(shapes or {})
  with readable(model) as given:
    survey = survey_model(load_model(given), profile, shapes=sizes)
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
  shapes: Mapping[str, Sequence[int]] | None = None,
) -> ExplainReport:
  """Why ``region`` of ``model`` ends where it does, and what a search of it alone finds.

  Nothing is timed, so the choice is that of ``optimize`` without a GPU.

  Args:
      model: as in ``optimize``.
      region: a key that ``inspect`` shows (or its first letters), or the name of a node in it.
      target: as in ``optimize``, and so are ``budget_s``, ``margin`` and ``shapes``.
      budget_s: seconds for the search.
      margin: the least predicted gain.
      shapes: sizes of dynamic dimensions by name.

  Raises:
      MirageError: REGION_UNKNOWN, or another code of ``docs/errors.md``.
  """
  from mirage_onnx.inspection import explain_region, survey_model
  from mirage_onnx.report.inspection_report import explain_report

  start = time.monotonic()
  _check_budget(budget_s)
  profile, _ = _target(target)
  sizes = checked_sizes(shapes or {})
  options = Options(profile, margin, 300.0 if budget_s is None else budget_s, shapes=sizes)
  with readable(model) as given:
    loaded = load_model(given)
    survey = survey_model(loaded, profile, margin, sizes)
    found = explain_region(loaded, survey, region, options)
  seconds = time.monotonic() - start
  source = _source(model)
  return explain_report(survey, found, source=source, target=profile.name, seconds=seconds)


def _source(model: ModelSource) -> str | None:
  return str(model) if isinstance(model, (str, Path)) else None
