"""One file for several GPUs: the stages once for each of them, and what they choose in one model.

The first target that replaces anything says which regions there are. For every other one a region is one of
these, or has no node of them: regions that overlap in part cannot both be nodes of one graph. Where a target
has no kernel for a region, its GPUs run the original's nodes there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mirage_onnx import events, pipeline
from mirage_onnx.importer import LoadedModel
from mirage_onnx.pipeline import Options, OtherTarget, Run
from mirage_onnx.target import Target
from mirage_onnx.tune.other_gpu import least_margin
from mirage_onnx.tune.outcome import cut_off

if TYPE_CHECKING:
  from mirage_onnx.tune.lock import Lock


def run_several(
  loaded: LoadedModel,
  options: Options,
  targets: Sequence[Target],
  emit: events.Emit = events.silent,
  locks: Sequence[Lock | None] = (),
) -> tuple[Run, Options]:
  """``pipeline.run`` for each of ``targets``; the run of the one that chooses the regions, with its options.

  The others are its ``others``. ``options``: as for one of them, with the margin that was asked for; its time
  is shared out evenly. ``locks``: of each target what an earlier run has chosen.
  """
  end = (time.monotonic() if options.began is None else options.began) + options.budget_s
  done = list[tuple[Run, Options]]()
  for k, target in enumerate(targets):
    now = time.monotonic()
    own = replace(
      options,
      target=target,
      margin=least_margin(target, options.margin),
      budget_s=max(1.0, (end - now) / (len(targets) - k)),
      began=options.began if k == 0 else now,
      journal=options.journal if k == 0 else None,
      beside=tuple(c for run, _ in done for c, _ in run.chosen),
      lock=locks[k] if locks else None,
    )
    done.append((pipeline.run(loaded, own, emit), own))
  first = next((k for k, (run, _) in enumerate(done) if run.chosen), 0)
  run, own = done.pop(first)
  own = replace(own, budget_s=options.budget_s, began=options.began)
  if not run.chosen:
    return run, own
  others = tuple(OtherTarget(o.target, r.chosen, len(cut_off(r.outcomes))) for r, o in done)
  return pipeline.with_these(replace(run, others=others), loaded, own, range(len(run.chosen))), own
