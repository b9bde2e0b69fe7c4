"""A model's record after some of its kernels were measured to cost time, and went."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
import onnx

from mirage_onnx.report.band import speedup_band
from mirage_onnx.report.run_record import (
  MEASURED_KEY,
  MOST_KEPT,
  KeptRecord,
  NodeRecord,
  PlaceRecord,
  RegionRecord,
  RunRecord,
  store,
)
from mirage_onnx.report.schema import CountReport, FoundReport, ModelReport
from mirage_onnx.report.timed import MeasuredReport

#: The code of what was replaced before.
SLOWER = "MODEL_SLOWER"


def place_of(record: RunRecord, stands_for: str) -> int | None:
  """The number of the place of a custom node; ``stands_for``: names of its nodes, joined by commas."""
  wanted = sorted(stands_for.split(","))
  found = (i for i, p in enumerate(record.places) if sorted(record.nodes[n].name for n in p.nodes) == wanted)
  return next(found, None)


def saved_us(record: RunRecord, place: int) -> float:
  """What a place should save, as the record has it; 0 where no time is known."""
  p = record.places[place]
  known = [record.nodes[n].us for n in p.nodes]
  return sum(us for us in known if us is not None) - p.us if any(us is not None for us in known) else 0.0


def without(record: RunRecord, gone: Mapping[int, str]) -> RunRecord:
  """``record`` without these places; each with the reason."""
  if not gone:
    return record
  left = [i for i in range(len(record.places)) if i not in gone]
  regions = sorted({record.places[i].region for i in left})
  places = [
    PlaceRecord(regions.index(record.places[i].region), record.places[i].nodes, record.places[i].us)
    for i in left
  ]
  nodes = [
    msgspec.structs.replace(
      n,
      places=[left.index(i) for i in n.places if i not in gone],
      left_us=n.left_us if not n.places or set(n.places) - set(gone) else (n.us or 0.0),
    )
    for n in record.nodes
  ]
  dropped = sorted({record.places[i].region for i in gone})
  kept = [
    _kept(record, record.regions[r], [i for i in gone if record.places[i].region == r], gone) for r in dropped
  ]
  return msgspec.structs.replace(
    record,
    model=_model(record, nodes, places) if record.model else None,
    found=_found(record.found, len(set(dropped) - set(regions)), len(gone)),
    nodes=nodes,
    places=places,
    regions=[msgspec.structs.replace(record.regions[r], id=f"r{i}") for i, r in enumerate(regions)],
    kept=[*kept, *record.kept][:MOST_KEPT],
    measured=None,
  )


def keep(model: onnx.ModelProto, record: RunRecord, measured: MeasuredReport) -> None:
  """Put the record, and how the model was timed, in place of what ``model`` has."""
  others = [p for p in model.metadata_props if p.key != MEASURED_KEY]
  del model.metadata_props[:]
  model.metadata_props.extend(others)
  store(model, msgspec.structs.replace(record, measured=None))
  model.metadata_props.add(key=MEASURED_KEY, value=msgspec.json.encode(measured).decode())


def _kept(
  record: RunRecord, region: RegionRecord, places: Sequence[int], why: Mapping[int, str]
) -> KeptRecord:
  return KeptRecord(
    key=region.key, count=len(places), nodes=record.places[places[0]].nodes, code=SLOWER, text=why[places[0]],
    baseline_us=region.baseline_us, predicted_us=region.ours_us, work=region.work,
  )  # fmt: skip


def _model(record: RunRecord, nodes: Collection[NodeRecord], places: Collection[PlaceRecord]) -> ModelReport:
  assert record.model is not None
  after_us = sum(n.left_us for n in nodes) + sum(p.us for p in places)
  gone = sum(not n.left_us and bool(n.places) for n in nodes)
  low, high = speedup_band(record.model.before_us, after_us) or (None, None)
  return msgspec.structs.replace(
    record.model, nodes_gone=min(gone, record.model.nodes_gone), custom_nodes=len(places),
    after_us=round(after_us, 3), speedup_low=low, speedup_high=high,
  )  # fmt: skip


def _found(found: FoundReport, regions: int, instances: int) -> FoundReport:
  counts = dict(found.by_result)
  for code, sign in (("REPLACED", -1), (SLOWER, 1)):
    had = counts.get(code, CountReport(0, 0))
    new = CountReport(had.regions + sign * regions, had.instances + sign * instances)
    counts[code] = new
    if not new.instances:
      del counts[code]
  return msgspec.structs.replace(found, by_result=dict(sorted(counts.items())))
