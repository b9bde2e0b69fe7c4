"""What ``optimize``'s report says of the whole: its times, and what became of all regions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from mirage_onnx.pipeline import OtherTarget, Run
from mirage_onnx.report.band import speedup_band
from mirage_onnx.report.schema import CUT_OFF
from mirage_onnx.target import Target
from mirage_onnx.tune.declared_sizes import declared_sizes
from mirage_onnx.tune.outcome import Outcome, cut_off

if TYPE_CHECKING:
  from mirage_onnx.racing import Gate

#: What a region is said to be that was not refused, and its sentence.
NOT_CHOSEN = ("NOT_CHOSEN", "other regions with its nodes save more together")


def model_report(run: Run) -> dict[str, Any] | None:
  """The fields of ``ModelReport``; None where no time of the model is known."""
  t = run.times
  if t is None or t.unknown == t.nodes:
    return None
  low, high = speedup_band(t.before_us, t.after_us) or (None, None)
  return {
    "nodes": t.nodes,
    "nodes_gone": t.gone,
    "custom_nodes": t.kernels,
    "nodes_unknown": t.unknown,
    "nodes_unknown_gone": t.unknown_gone,
    "nodes_bounded": t.bounded,
    "before_us": round(t.before_us, 3),
    "after_us": round(t.after_us, 3),
    "speedup_low": low,
    "speedup_high": high,
  }


def targets_report(run: Run, first: Target) -> list[dict[str, Any]]:
  """The fields of ``TargetReport`` of every target of a file for several; ``first``: what ``run`` is of."""
  own = OtherTarget(first, run.chosen, len(cut_off(run.outcomes)))
  return [
    {
      "name": t.target.name, "regions": len({o.region.key for _, o in t.chosen}),
      "custom_nodes": len(t.chosen), "late": t.late,
    }
    for t in (own, *run.others)
  ]  # fmt: skip


def dimensions_report(run: Run, shapes: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
  """The fields of ``DimensionReport`` of each dynamic dimension; ``shapes``: sizes that the user gave."""
  names = list(run.program.primes.values())
  declared = declared_sizes(run.program, shapes) if names else None
  return [
    {"name": n, "sizes": list(declared.sizes[n]), "typical": declared.typical[n]} for n in names if declared
  ]


def measured_report(gate: "Gate | None") -> dict[str, Any] | None:
  """The fields of ``MeasuredReport``: the last time that the whole model was timed; None if it was not."""
  if gate is None or not (gate.rows or gate.note):
    return None
  rows = []
  for row in gate.rows:
    (before_us, after_us), (s,) = row.us, row.speedups
    rows.append({
      "sizes": row.sizes, "how": row.how, "before_us": round(before_us, 3), "after_us": round(after_us, 3),
      "speedup": round(s.mean, 4), "low": round(s.low, 4),
      "high": round(s.high, 4) if isfinite(s.high) else None, "openings": s.openings,
    })  # fmt: skip
  return {"rows": rows, "note": gate.note}


def found_report(run: Run) -> dict[str, Any]:
  """The fields of ``FoundReport``: all regions, distinct ones and instances, by what became of them."""
  used, every = run.counts(), Counter(c.key for c in run.matches.candidates)
  regions, instances = Counter[str](), Counter[str]()
  for key, count in every.items():
    o = run.outcomes[key]
    alone = Counter(rejection.code for _, rejection in o.left_alone)
    instances += alone
    code = NOT_CHOSEN[0] if o.rejection is None else o.rejection.code
    instances[code] += max(0, count - used[key] - alone.total())
    regions["REPLACED" if used[key] else code] += 1
  instances["REPLACED"] += used.total()
  return {
    "regions": len(every),
    "instances": every.total(),
    "by_result": {
      code: {"regions": regions[code], "instances": instances[code]} for code in sorted(regions | instances)
    },
    "searched_in_part": sum(_in_part(o) for o in run.outcomes.values()),
  }


def unknown_nodes(run: Run, o: Outcome) -> int:
  """Nodes of a region without a time."""
  return sum(n not in run.node_us for n in o.region.nodes)


def _in_part(o: Outcome) -> bool:
  """Whether the time ended a search that had found something."""
  return bool(o.result and o.result.candidates and str(o.result.report.stop) in CUT_OFF)
