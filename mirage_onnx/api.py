"""The Python interface: ``optimize``, ``inspect`` and ``explain`` a model, ``verify`` a pair.

What only some of them need is imported there: a model with nothing to gain takes a second.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from mirage_onnx import events, pipeline
from mirage_onnx.api_reports import check_budget, check_pages, reduce, report_page, write_page
from mirage_onnx.argument_kinds import check_kinds
from mirage_onnx.asked_targets import asked_targets, present_target, warn_of_gpus
from mirage_onnx.branch_price import paying
from mirage_onnx.cluster_compiler import compiling_on
from mirage_onnx.cluster_timer import timing_on
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.deadline import SLACK
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import LoadedModel, atoms, load_model
from mirage_onnx.importer.model_source import ModelSource, readable
from mirage_onnx.importer.steps_of_rooms import sizes_of_steps
from mirage_onnx.locking import better_of, check_same, earlier_of, lock_of, replayed_lock
from mirage_onnx.pipeline import Options, Run
from mirage_onnx.report.notes import Notes
from mirage_onnx.report.optimize_report import (
  dimensions_report,
  found_report,
  measured_report,
  model_report,
  targets_report,
)
from mirage_onnx.report.region_rows import region_rows
from mirage_onnx.report.run_record import kept_record
from mirage_onnx.report.schema import SCHEMA, check_report
from mirage_onnx.report.summary import summary
from mirage_onnx.rewrite.check_process import CheckProcess
from mirage_onnx.rewrite.save import External, check_output
from mirage_onnx.rewrite.turned import is_turned
from mirage_onnx.search_workers import check_workers
from mirage_onnx.several_targets import run_several
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.hooks import never
from mirage_onnx.superopt.result import Stop
from mirage_onnx.target import H200, joined
from mirage_onnx.tune.declared_sizes import checked_sizes
from mirage_onnx.tune.gate import EarlierStaysError
from mirage_onnx.tune.lock import read_lock, write_lock
from mirage_onnx.tune.other_gpu import least_margin
from mirage_onnx.tune.rating import Rating
from mirage_onnx.writing import Destination, checks_ahead, write

if TYPE_CHECKING:
  from mirage_onnx.comparisons import bench, diff, verify
  from mirage_onnx.looking import explain, inspect
  from mirage_onnx.model_tuning import tune
  from mirage_onnx.racing import RacerAhead

__all__ = [
  "Result", "bench", "diff", "explain", "inspect", "optimize", "present_target", "reduce", "report_page",
  "tune", "verify",
]  # fmt: skip


#: Name -> the module that defines it, imported when somebody asks for it.
_ELSEWHERE = {
  "bench": "mirage_onnx.comparisons",
  "diff": "mirage_onnx.comparisons",
  "explain": "mirage_onnx.looking",
  "inspect": "mirage_onnx.looking",
  "tune": "mirage_onnx.model_tuning",
  "verify": "mirage_onnx.comparisons",
}


def __getattr__(name: str) -> object:
  if name not in _ELSEWHERE:
    raise AttributeError(f"module 'mirage_onnx.api' has no attribute {name!r}")
  value = getattr(import_module(_ELSEWHERE[name]), name)
  globals()[name] = value
  return value


@dataclass(frozen=True, slots=True)
class Result:
  """``model``: the optimized model; ``report``: the object that ``--json`` prints; ``str``: what it says."""

  model: onnx.ModelProto
  report: dict[str, Any]

  def __str__(self) -> str:
    """The closing lines that the command prints."""
    return summary(check_report(self.report))


def optimize(
  model: ModelSource,
  output: str | Path | None = None,
  *,
  target: str | None = None,
  budget_s: float | None = None,
  margin: float = 0.2,
  workers: int | str | None = None,
  external: str | None = None,
  emit: events.Emit | None = None,
  journal: str | Path | None = None,
  stop: Callable[[], bool] | None = None,
  shapes: Mapping[str, int | Sequence[int]] | None = None,
  check: bool = True,
  model_check: bool = True,
  lock: str | Path | None = None,
  locked: bool = False,
  page: str | Path | None = None,
  profile: str | Path | None = None,
  steps: bool | int = False,
  began: float | None = None,
) -> Result:
  """Replace regions of ``model`` by generated kernels, where that is faster.

  Args:
      model: a path, an ``onnx.ModelProto`` or its bytes, an ``onnx_ir.Model``, what ``torch.onnx.export``
          returns.
      output: where to write the model, atomically.
      target: a GPU (``h200``, ``RTX 4090``, ``sm_86``), several (``h200,a100``) for one file that all of
          them run, or ``local``, the present one; default: ``local`` where there is a GPU, else ``h200``.
          With ``local`` kernels are timed against ONNX Runtime, else they must be predicted faster by
          ``margin``, by 0.4 where nobody measured the GPU.
      budget_s: seconds for the whole run (default 300); what it does not reach is left as it was.
      margin: the least predicted gain of a region, as a share of its time; no matter with ``local``. Below
          0: regions that are expected to be slower, too (for tests of kernels).
      workers: processes of the search (default: one a core), or a Ray cluster: ``auto``, ``ray://HOST:PORT``.
      external: what to do with untouched weights outside the model file, ``keep`` (default beside the
          input), ``copy`` into a data file beside the output (default elsewhere) or ``inline``.
      emit: is called with what happens (``mirage_onnx.events``).
      journal: a file that keeps what the search has found; a later call with it goes on from there, also
          after a crash.
      stop: polled by the search; when it returns true, the search ends with the best found so far, and
          the model is written with that.
      shapes: the sizes at which a dynamic dimension will be used, by its name in the model (default 1,
          16 and 256): kernels are right at every size, and a region is replaced if they are faster at
          all of these.
      check: before ``output`` is replaced, run the new model in a plain onnxruntime against the original;
          regions with which it fails are left as they were.
      model_check: with ``local``, before ``output`` is replaced, time whole runs of the original and of the
          result at all declared sizes; regions are dropped until the result is faster with confidence.
      lock: a file that is to say what was written; where a call is cut off and ends worse than the one
          before that wrote it, what that one wrote stays.
      locked: write what ``lock`` says, the same bytes, without a search or a GPU.
      page: a file for the report as one HTML page; ``report_page`` makes it of the output later.
      profile: a file that ``mirage-onnx calibrate --profile`` wrote on the target's GPU, here or elsewhere:
          its rates are those of the target. Without ``target`` that GPU is it.
      steps: kernels for one new token of a decoder with GroupQueryAttention, in an ``If`` beside the
          graph as it was, which takes prompts, and other sizes than those of which ``shapes`` has one;
          onnxruntime captures no CUDA graph of a model with that. A number: for caches of so many rows only,
          for which kernels are faster; runs with others go to the graph as it was.
      began: of ``time.monotonic``, when the time of ``budget_s`` began, if that was before this call.

  Raises:
      MirageError: with one of the codes of ``docs/errors.md``.
  """
  start = time.monotonic() if began is None else began
  check_kinds("a path", output=output, journal=journal, lock=lock, page=page, profile=profile)
  check_kinds("a number", margin=margin)
  check_budget(budget_s)
  check_workers(workers)
  sizes: Mapping[str, Sequence[int]] = checked_sizes(shapes)
  if not margin < 1:
    raise MirageError("OPTION_INVALID", f"a margin of {margin}: must be less than 1")
  source = Path(model) if isinstance(model, (str, os.PathLike)) else None
  target_path = Path(output) if output is not None else None
  if target_path is not None and check and find_spec("onnxruntime") is None:
    raise MirageError(
      "ORT_MISSING", "what is written is checked in onnxruntime (check=False, --no-check: not)"
    )
  rated = Rating.of(profile, locked)
  targets, measure = ((H200,), False) if locked else asked_targets(rated.target(target))
  if external not in (None, *External):
    raise MirageError("OPTION_INVALID", f"external={external!r}: keep, copy or inline")
  check_pages([Path(page) if page is not None else None], source, target_path)
  with ExitStack() as ends, readable(model) as given, CheckProcess() as checks, compiling_on(workers):
    ends.enter_context(timing_on(workers, measured=measure))
    sizes, one = sizes_of_steps(given, sizes, steps)
    loaded = load_model(given, steps=one if steps else None)
    if target_path is None and source is None and loaded.path is not None:
      raise MirageError("OPTION_INVALID", "a model of more than 1 GiB in memory needs output=PATH")
    lock_path, recorded = Path(lock) if lock is not None else None, None
    if locked:
      if lock_path is None or target_path is None:
        raise MirageError("OPTION_INVALID", "locked needs an output and its lock")
      recorded = read_lock(lock_path)
      targets = check_same(
        recorded, loaded, target=target, margin=margin, shapes=checked_sizes(sizes),
        external=external, steps=steps,
      )  # fmt: skip
      o = recorded.options
      margin, sizes, external, measure = o.margin, o.shapes, o.external, o.measured
    if recorded is None:
      targets = rated.with_rates(targets, measure, emit or events.silent)
    used, several, asked = targets[0], joined(targets) if len(targets) > 1 else "", margin
    margin = margin if measure or several else least_margin(used, margin)
    weights = External(external) if external else None
    if target_path is not None:
      check_output(target_path, loaded.path, loaded.proto, external=weights)
    options = Options(
      used, margin, 300.0 if budget_s is None else budget_s, workers, measure,
      journal=Path(journal) if journal is not None else None,
      stop=(lambda: Stop.INTERRUPTED if stop() else None) if stop else never,
      shapes=checked_sizes(sizes), began=start,
      streamed=target_path is not None, emulate=recorded is not None or not measure, lock=recorded,
      steps=steps,
    )  # fmt: skip
    if recorded is None and (measure or rated.target(target) is None):
      warn_of_gpus(emit or events.silent, used, measure)
    kept = None
    if measure and page is None and source is not None:
      from mirage_onnx.kept_runs import KeptRun

      more = {"external": external, "check": check, "model_check": model_check}
      kept = KeptRun.of_user(loaded, options, target_path, lock_path, **more)
    if kept and (known := kept.known(emit or events.silent)):
      seconds = round(time.monotonic() - start, 3)
      return Result(known[0], {**known[1], "input": str(source), "output": str(output), "seconds": seconds})
    if target_path is not None and check and recorded is None:
      emit = checks_ahead(loaded, checks, emit or events.silent)
    gated = target_path is not None and measure and model_check and recorded is None
    racer = ends.enter_context(_racer()) if gated else None
    if racer and loaded.path:
      emit = racer.beginning(loaded.path, emit or events.silent)
    if measure and recorded is None and cache_folder("results"):
      from mirage_onnx.tune.kept_hashes import KeptHashes
      from mirage_onnx.verify.weights import hash_beside

      KeptHashes.of_user(loaded).tell()
      hash_beside(loaded)
    if several:
      locks = [recorded.for_target(t.name) for t in targets] if recorded is not None else ()
      run, options = run_several(loaded, options, targets, emit or events.silent, locks)
      used = options.target
    else:
      run = paying(pipeline.run(loaded, options, emit or events.silent), loaded, options)
    checked, gate = None, None
    notes = Notes(source, used)
    if target_path is not None:
      if lock_path is not None and recorded is None and not several:
        run, recorded = better_of(run, lock_path, loaded, options, external, emit or events.silent)
      begun, tell = time.monotonic(), emit or events.silent
      tell(events.StageStarted("write"))
      sha256 = recorded.output if recorded else ""
      notes.record, notes.measured = (recorded.record, recorded.measured) if recorded else ("", "")
      end, slack = start + options.budget_s, SLACK * options.budget_s
      place = Destination(target_path, loaded.path, weights, end, sha256, slack, checks)
      gate = notes.gate = racer.gate_of(run, loaded, place.end, start) if racer and recorded is None else None
      earlier = lock_path and gate and earlier_of(run, lock_path, loaded, options, external, target_path)
      how: dict[str, Any] = {"check": check, "noted": notes.noted, "timed": notes.timed}
      try:
        if gate and earlier:
          gate.earlier = target_path
        run, checked = write(run, loaded, options, place, gate=gate, **how)
      except EarlierStaysError:
        assert earlier
        why = "what an earlier run has written was measured faster"
        again = replayed_lock(earlier, loaded, options, why, tell)
        if again is not None:
          run, recorded, gate = again, earlier, None
          notes.record, notes.measured, notes.gate = earlier.record, earlier.measured, None
          run, checked = write(run, loaded, options, replace(place, sha256=earlier.output), gate=None, **how)
        else:
          assert racer
          gate = notes.gate = racer.gate_of(run, loaded, place.end, start)
          run, checked = write(run, loaded, options, place, gate=gate, **how)
      if lock_path is not None and recorded is None:
        made = lock_of(
          run, loaded, options, external, target_path, kept_record(run.model), notes.measured,
          notes.times_us if run.chosen else None, several, asked if several else None,
        )  # fmt: skip
        write_lock(lock_path, made)
      said = "; ".join((checked, *(gate.said() if gate else ())))
      tell(events.StageEnded("write", time.monotonic() - begun, said))
      if any(map(is_turned, run.model.graph.initializer)):  # as written: what was streamed is in no memory
        run = replace(run, model=onnx.load(target_path, load_external_data=False))
    else:
      run = notes.noted(run)
  if page is not None:
    from mirage_onnx.report.record_run import record_run

    folder = target_path.resolve().parent if target_path is not None else None
    write_page(Path(page), record_run(run, source, used, gate), ModelFile(run.model, folder))
  report = {
    "schema": SCHEMA,
    "input": str(source) if source is not None else None,
    "output": str(output) if output is not None else None,
    "target": several or used.name,
    "targets": targets_report(run, used) if several else [],
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
  if kept:
    kept.keep(run, report)
  return Result(run.model, report)


def _racer() -> RacerAhead:
  from mirage_onnx.racing import RacerAhead

  return RacerAhead()


def _constants(loaded: LoadedModel, run: Run) -> dict[str, str]:
  found = atoms(loaded, run.program.constants)
  return {str(a).split("'")[1]: str(a) for a in found}
