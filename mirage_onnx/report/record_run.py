"""From a run to what its model keeps of it: the record, and the texts that a model viewer shows."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import onnx

from mirage_onnx import __version__
from mirage_onnx.cost.region_work import region_work
from mirage_onnx.custom_op.runtime import DOMAIN_PREFIX
from mirage_onnx.ir import Region
from mirage_onnx.pipeline import Run
from mirage_onnx.report.optimize_report import (
  NOT_CHOSEN,
  found_report,
  measured_report,
  model_report,
  unknown_nodes,
)
from mirage_onnx.report.run_record import (
  MOST_KEPT,
  VERSION,
  BarrierRecord,
  CandidateRecord,
  KeptRecord,
  NodeRecord,
  PlaceRecord,
  ProofRecord,
  RegionRecord,
  RunRecord,
  WorkRecord,
)
from mirage_onnx.report.schema import CountReport, FoundReport, ModelReport, SizeReport
from mirage_onnx.report.timed import MeasuredReport
from mirage_onnx.target import Target
from mirage_onnx.tune.model_times import ModelTimes, place_us
from mirage_onnx.tune.outcome import Outcome

if TYPE_CHECKING:
  from mirage_onnx.racing import Gate

#: Nodes that the text of a custom node names.
_NAMED = 12
#: Where a custom node says which nodes it stands for (``rewrite/model.py``).
REGION = "pkg.mirage_onnx.region"


def record_run(run: Run, source: Path | None, target: Target, gate: "Gate | None" = None) -> RunRecord:
  """What is kept of a run on ``source`` (None: a model that was no file); ``gate``: what has timed it."""
  number = {n.name: i for i, n in enumerate(run.program.nodes)}
  keys = list(run.counts())
  times = run.times  # None: no time of a node is known of this GPU, only what was measured
  places = [
    PlaceRecord(
      region=keys.index(o.region.key), nodes=sorted(number[n] for n in c.nodes), us=_us(_counted_us(o, times))
    )
    for c, o in run.chosen
  ]
  owners: dict[int, list[int]] = {}
  for i, p in enumerate(places):
    for n in p.nodes:
      owners.setdefault(n, []).append(i)
  node_us: Mapping[str, float] = times.node_us if times else {}
  left: Mapping[str, float] = times.left_us if times else {}
  model, found, measured = model_report(run), found_report(run), measured_report(gate)
  return RunRecord(
    version=VERSION,
    made_by=__version__,
    input=source.name if source else None,
    target=target.name,
    model=ModelReport(**model) if model else None,
    found=FoundReport(**{**found, "by_result": {k: CountReport(**v) for k, v in found["by_result"].items()}}),
    nodes=[
      NodeRecord(
        name=n.name, op=n.op_type, us=_us(node_us[n.name]) if n.name in node_us else None,
        bound=bool(times and n.name in times.bounds), left_us=_us(left.get(n.name, 0.0)),
        places=owners.get(i, []),
      )
      for i, n in enumerate(run.program.nodes)
    ],
    places=places,
    regions=[_region(run, f"r{i}", run.outcomes[key], target) for i, key in enumerate(keys)],
    kept=_kept(run, number, target),
    barriers=[
      BarrierRecord(code=code, text=text, nodes=[number[n] for n in nodes if n in number])
      for code, (text, nodes) in sorted(_barriers(run).items())
    ],
    measured=msgspec.convert(measured, MeasuredReport) if measured else None,
  )  # fmt: skip


def _counted_us(o: Outcome, times: ModelTimes | None) -> float:
  """What one place takes in the time of the whole model."""
  if times is None:
    return o.measured.kernel_us if o.measured else 0.0
  return place_us(o)


def _region(run: Run, name: str, o: Outcome, target: Target) -> RegionRecord:
  c = next(c for c, other in run.chosen if other.region.key == o.region.key)
  measured, region = o.measured, c.region
  ours = measured.kernel_us if measured else o.price_us(0.0)
  unknown = unknown_nodes(run, o)
  known = measured is not None or (run.times is not None and unknown < len(o.region.nodes))
  return RegionRecord(
    id=name,
    key=o.region.key,
    choice="measured" if measured else "predicted",
    # Whether there was time for the emulator depends on the machine's load; equal runs write equal models.
    ran="measured" if measured else "",
    baseline_us=_us(measured.ort_us if measured else o.baseline_us) if known else None,
    ours_us=_us(ours),
    measured=measured is not None,
    unknown_nodes=unknown,
    work=_work(region, target),
    names={x.name: x.source.name for x in (*region.given, *region.outputs)},
    axes=dict(sorted(region.extents.items())),
    typical=dict(sorted(region.symbols.items())),
    proof=_proof(o),
    candidates=_candidates(o),
    sizes=[
      SizeReport(sizes=p.sizes, baseline_us=_us(p.baseline_us), predicted_us=_us(p.kernel_us))
      for p in o.points
    ],
  )


def _work(region: Region, target: Target) -> WorkRecord:
  work = region_work(region)
  return WorkRecord(
    flops=work.flops.total, mma_flops=work.flops.contraction, weight_bytes=work.weight_bytes,
    activation_bytes=work.activation_bytes, floor_us=_us(work.floor_us(target)),
  )  # fmt: skip


def _proof(o: Outcome) -> ProofRecord | None:
  if o.result is None or o.compiled is None:
    return None
  graph = o.compiled.candidate.ugraph
  found = next((v.proof for v in o.result.candidates if v.candidate.ugraph == graph), None)
  if found is None:
    return None
  return ProofRecord(
    # Kept results know neither tier nor sizes, and with or without them the bytes are the same.
    tier="", draws=found.draws, bound=found.bound,
    instantiation=[],
  )  # fmt: skip


def _candidates(o: Outcome) -> list[CandidateRecord]:
  """The verified programs; where other numbers of them were timed, those, of which no more is known."""
  if o.result is None or o.compiled is None:
    return []
  best, measured = o.compiled.candidate, o.measured
  found = [(v.candidate, v.candidate == best) for v in o.result.candidates]
  if not any(is_best for _, is_best in found):
    found.insert(0, (best, True))
  rows = [
    CandidateRecord(
      predicted_us=_us(c.predicted_us), measured_us=_us(measured.kernel_us) if is_best and measured else None,
      kernels=len(c.ugraph.kernels), numbers=[p.to_text() for p in c.params], chosen=is_best,
    )
    for c, is_best in found
  ]  # fmt: skip
  rows += [
    CandidateRecord(predicted_us=_us(p), measured_us=_us(m), kernels=0, numbers=[], chosen=False)
    for p, m in (measured.timed if measured else ())
  ]
  return rows


def _kept(run: Run, number: Mapping[str, int], target: Target) -> list[KeptRecord]:
  """Distinct regions of which no instance was replaced, the most possible gain first."""
  used, rows = run.counts(), list[KeptRecord]()
  for key, o in run.outcomes.items():
    if used[key] or not o.instances:
      continue
    first = o.result.candidates[0].candidate.predicted_us if o.result and o.result.candidates else None
    known = run.times is not None and unknown_nodes(run, o) < len(o.region.nodes)
    rows.append(
      KeptRecord(
        key=key, count=len(o.instances), nodes=sorted(number[n] for n in o.instances[0].nodes),
        code=o.rejection.code if o.rejection else NOT_CHOSEN[0],
        text=o.rejection.reason if o.rejection else NOT_CHOSEN[1],
        baseline_us=_us(o.baseline_us) if known else None,
        predicted_us=_us(first) if first is not None else None, work=_work(o.region, target),
      )
    )  # fmt: skip
  rows.sort(key=lambda r: (-((r.baseline_us or 0.0) - r.work.floor_us) * r.count, r.key))
  return rows[:MOST_KEPT]


def _barriers(run: Run) -> dict[str, tuple[str, list[str]]]:
  found: dict[str, tuple[str, list[str]]] = {}
  for r in run.matches.rejections:
    found.setdefault(r.code, (r.reason, []))[1].extend(r.nodes)
  return found


def describe(model: onnx.ModelProto, record: RunRecord) -> None:
  """Says in every custom node, in place, what it stands for: model viewers show a node's text."""
  # A node names them in the order of its region, which need not be that of the model.
  by_nodes: dict[str, PlaceRecord] = {}
  for p in record.places:
    by_nodes.setdefault(_in_order(record.nodes[n].name for n in p.nodes), p)
  for node in model.graph.node:
    place = by_nodes.get(_in_order(region_of(node).split(",")))
    if place is not None:
      node.doc_string = _text(record, place)
  for function in model.functions:
    if function.domain.startswith(DOMAIN_PREFIX):
      if other := next((n for n in function.node if n.domain.startswith(DOMAIN_PREFIX)), None):
        function.doc_string = f"{other.op_type} of {other.domain} runs where this kernel cannot."
        continue
      ops = op_counts(n.op_type for n in function.node if n.op_type != "Constant")
      function.doc_string = f"{ops}: the original nodes; they run where the kernel cannot."


def region_of(node: onnx.NodeProto) -> str:
  """The names of the nodes that a custom node stands for, joined by commas; "" of other nodes."""
  return next((p.value for p in node.metadata_props if p.key == REGION), "")


def _in_order(names: Iterable[str]) -> str:
  return ",".join(sorted(",".join(names).split(",")))


def _text(record: RunRecord, place: PlaceRecord) -> str:
  region, nodes = record.regions[place.region], [record.nodes[n] for n in place.nodes]
  lines = [f"In place of {len(nodes)} node{'s' * (len(nodes) != 1)}: {op_counts(n.op for n in nodes)}."]
  if region.baseline_us is not None and region.ours_us:
    speedup = f"{region.baseline_us / region.ours_us:.2f}x"
    least = "at least " if region.unknown_nodes and not region.measured else ""
    lines.append(
      f"{least}{speedup} {region.choice} ({record.target}): {region.baseline_us:.1f} µs in ONNX Runtime, "
      f"{region.ours_us:.1f} µs here."
    )
  else:
    lines.append(
      f"{region.ours_us:.1f} µs {region.choice} ({record.target}); ONNX Runtime's time is unknown."
    )
  names = [n.name for n in nodes]
  more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
  lines.append(f"Nodes: {', '.join(names[:_NAMED])}{more}.")
  return "\n".join(lines)


def op_counts(ops: Iterable[str]) -> str:
  """``2 MatMul, Add``: in the order in which they come first."""
  return ", ".join(f"{n} {op}" if n > 1 else op for op, n in Counter(ops).items())


def _us(value: float) -> float:
  return round(float(value), 3)
