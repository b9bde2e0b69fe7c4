"""The rows of ``optimize``'s report: replaced regions, and those that stayed, with their reasons."""

from dataclasses import replace
from typing import Any

from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.pipeline import Run
from mirage_onnx.report.optimize_report import NOT_CHOSEN, unknown_nodes
from mirage_onnx.tune.outcome import Outcome, cut_off


def region_rows(run: Run) -> list[dict[str, Any]]:
  """Replaced regions; all that time cut off; of other reasons the largest; nodes that are in no region.

  And what explains the nodes that stay and are in none of these.
  """
  counts = run.counts()
  replaced = [run.outcomes[k] for k in counts]
  rows = [_row(run, f"r{i}", o, counts[o.region.key]) for i, o in enumerate(replaced)]
  covered = {n for c, _ in run.chosen for n in c.nodes}
  refused: dict[str, Outcome] = {}
  late = cut_off(run.outcomes)
  for o in run.outcomes.values():
    if o.rejection is None or o in late or set(o.region.nodes) & covered:
      continue
    known = refused.get(o.rejection.code)
    if known is None or len(o.region.nodes) > len(known.region.nodes):
      refused[o.rejection.code] = o
  for i, (_, o) in enumerate(sorted(refused.items())):
    rows.append(_row(run, f"k{i}", o, len(o.instances)))
  rows += [_row(run, f"b{i}", o, len(o.instances)) for i, o in enumerate(late)]
  left = [row for o in run.outcomes.values() for row in _left_alone(o, covered)]
  rows += [_row(run, f"u{i}", o, len(o.instances)) for i, o in enumerate(left)]
  shown = (c for o in (*refused.values(), *late, *left) for c in o.instances)
  explained = covered.union(*(c.nodes for c in shown), *(r.nodes for r in run.matches.rejections))
  rows += [_kept(run, f"s{i}", o) for i, o in enumerate(_staying(run, covered, explained))]
  groups: dict[str, list[str]] = {}
  text: dict[str, str] = {}
  for r in run.matches.rejections:
    groups.setdefault(r.code, []).extend(r.nodes)
    text.setdefault(r.code, r.reason)
  unknown = dict.fromkeys(
    ("choice", "ugraph", "predicted_us", "measured_us", "baseline_us", "search", "proof")
  )
  for i, (code, nodes) in enumerate(sorted(groups.items())):
    row = {"id": f"n{i}", "ops": nodes, "count": 1, "status": "kept", "reason": code}
    rows.append({**row, **unknown, "reason_text": text[code]})
  return rows


def _staying(run: Run, covered: set[str], explained: set[str]) -> list[Outcome]:
  """Regions with the nodes that nothing else explains: all of theirs overlap what was replaced.

  First those that overlap the least of it; then the largest. Instances are those with such nodes.
  """
  todo = {n.name for n in run.program.nodes} - explained
  found = list[Outcome]()

  def overlap(o: Outcome) -> tuple[int, int]:
    return min(len(c.nodes & covered) for c in o.instances), -len(o.region.nodes)

  for o in sorted((o for o in run.outcomes.values() if o.instances), key=overlap) if todo else ():
    if own := tuple(c for c in o.instances if c.nodes & todo):
      todo -= frozenset[str]().union(*(c.nodes for c in own))
      found.append(replace(o, instances=own, region=own[0].region))
  return found


def _kept(run: Run, name: str, o: Outcome) -> dict[str, Any]:
  """The row of a region that stays, also where a kernel would win."""
  code, reason = (o.rejection.code, o.rejection.reason) if o.rejection else NOT_CHOSEN
  row = _row(run, name, replace(o, compiled=None), len(o.instances))
  return row | {"reason": code, "reason_text": reason}


def _left_alone(o: Outcome, covered: set[str]) -> list[Outcome]:
  """The instances that were left alone though others of their region were not, by reason."""
  found: dict[str, Outcome] = {}
  for c, rejection in o.left_alone:
    if not c.nodes & covered:
      had = found.get(rejection.code, replace(o, instances=(), region=c.region, rejection=rejection))
      found[rejection.code] = replace(had, instances=(*had.instances, c))
  return list(found.values())


def _row(run: Run, name: str, o: Outcome, count: int) -> dict[str, Any]:
  report = o.result.report if o.result else None
  first = o.result.candidates[0] if o.result and o.result.candidates else None
  chosen = o.compiled.candidate if o.compiled else first.candidate if first else None
  replaced = o.rejection is None and o.compiled is not None
  measured, unknown = o.measured, unknown_nodes(run, o)
  known = unknown < len(o.region.nodes)
  search = None
  if report is not None:
    search = {
      "seconds": round(report.seconds, 3),
      "states": report.states,
      "verified": report.verified,
      "stop": str(report.stop),
    }
  proof = None
  if o.result and chosen and replaced:  # the tuner's numbers may be others: a proof is for all of them
    same = (v.proof for v in o.result.candidates if v.candidate.ugraph == chosen.ugraph)
    proof = next(same, None)
  return {
    "id": name,
    "ops": list(o.region.nodes),
    "count": count,
    "status": "replaced" if replaced else "kept",
    "reason": o.rejection.code if o.rejection else None,
    "choice": ("measured" if measured else "predicted") if replaced else None,
    "ran": ("measured" if measured else o.ran or "never ran") if replaced else None,
    "ugraph": print_ugraph(chosen.ugraph) if chosen else None,
    "predicted_us": round(float(chosen.predicted_us), 3) if chosen else None,
    "measured_us": round(measured.kernel_us, 3) if measured else None,
    "baseline_us": round(measured.ort_us if measured else o.baseline_us, 3) if measured or known else None,
    "unknown_nodes": unknown,
    "search": search,
    "proof": {"draws": proof.draws, "bound": proof.bound} if proof else None,
    "reason_text": o.rejection.reason if o.rejection else None,
    "sizes": [
      {
        "sizes": p.sizes,
        "baseline_us": round(p.baseline_us, 3),
        "predicted_us": round(float(p.kernel_us), 3),
      }
      for p in o.points
    ],
  }
