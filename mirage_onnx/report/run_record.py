"""What a model keeps of the run that made it, for ``report``: times, choices and reasons, no kernels.

Kernels, µGraphs and their text are in the model's bundle. Nothing here is of the clock or of a folder, so
that equal runs write equal models. Anyone may have written a record: it is bounded and read strictly.
"""

import base64
import os
import zlib
from pathlib import Path

import msgspec
import onnx

from mirage_onnx.errors import MirageError
from mirage_onnx.report.schema import FoundReport, ModelReport, SizeReport
from mirage_onnx.report.struct import Struct
from mirage_onnx.report.timed import MeasuredReport

#: Where a model keeps it: zlib-compressed JSON in base64.
KEY = "mirage_onnx.report"
#: Where it keeps how it was timed: JSON.
MEASURED_KEY = "mirage_onnx.measured"
VERSION = 1
#: Of a record as JSON; one of a model of 2,000 nodes has a hundredth.
MAX_BYTES = 16 << 20
#: Kept regions that a record lists, those that could save most first.
MOST_KEPT = 200


class NodeRecord(Struct, frozen=True, array_like=True):
  """A node of the original, in its order.

  ``us``: in ONNX Runtime, null where no time is known; ``bound``: what moving its bytes takes, which is less
  than it takes. ``left_us``: what of it is left in the result. ``places``: numbers of the places that
  compute it (``RunRecord.places``).
  """

  name: str
  op: str
  us: float | None
  bound: bool
  left_us: float
  places: list[int]


class PlaceRecord(Struct, frozen=True, array_like=True):
  """One instance of a replaced region: number of the region, numbers of its nodes, what it counts as."""

  region: int
  nodes: list[int]
  us: float


class WorkRecord(Struct, frozen=True):
  """What a region has to do at least, and how long no kernel is faster (``cost/region_work.py``)."""

  flops: int
  mma_flops: int
  weight_bytes: int
  activation_bytes: int
  floor_us: float


class CandidateRecord(Struct, frozen=True):
  """A verified program: its kernels' numbers, times (null: never timed), and whether it was chosen."""

  predicted_us: float
  measured_us: float | None
  kernels: int
  numbers: list[str]
  chosen: bool


class ProofRecord(Struct, frozen=True):
  """Random tests in finite fields, as ``inspection.ProofReport``."""

  tier: str
  draws: int
  bound: float
  instantiation: list[str]


class RegionRecord(Struct, frozen=True):
  """A distinct region that was replaced; ``names``: tensor of the µGraph -> name in the model.

  ``axes``: extents, with dynamic dimensions of a typical size (``typical``). Times are of one place.
  ``ran``: "measured" or "" (what is in older models: emulated, never ran).
  """

  id: str
  key: str
  choice: str
  ran: str
  baseline_us: float | None
  ours_us: float
  measured: bool
  unknown_nodes: int
  work: WorkRecord
  names: dict[str, str]
  axes: dict[str, int]
  typical: dict[str, int]
  proof: ProofRecord | None
  candidates: list[CandidateRecord]
  sizes: list[SizeReport]


class KeptRecord(Struct, frozen=True):
  """A distinct region that stayed as it was in ``count`` places, of whose first ``nodes`` are."""

  key: str
  count: int
  nodes: list[int]
  code: str
  text: str
  baseline_us: float | None
  predicted_us: float | None
  work: WorkRecord


class BarrierRecord(Struct, frozen=True):
  """Nodes that no region can hold, for one reason."""

  code: str
  text: str
  nodes: list[int]


class RunRecord(Struct, frozen=True):
  """One run of ``optimize``. ``input``: the name of the file, without its folder.

  ``measured``: the whole model as it was timed before it was written; in a file it stands by itself, for it
  is known later than the rest.
  """

  version: int
  made_by: str
  input: str | None
  target: str
  model: ModelReport | None
  found: FoundReport
  nodes: list[NodeRecord]
  places: list[PlaceRecord]
  regions: list[RegionRecord]
  kept: list[KeptRecord]
  barriers: list[BarrierRecord]
  measured: MeasuredReport | None = None


def store(model: onnx.ModelProto, record: RunRecord) -> None:
  """Adds the record to the metadata of ``model``, in place."""
  packed = zlib.compress(msgspec.json.encode(record), 9)
  restore(model, base64.b64encode(packed).decode("ascii"))


def kept_record(model: onnx.ModelProto) -> str:
  """The record as it is in the metadata; empty where there is none."""
  return next((p.value for p in model.metadata_props if p.key == KEY), "")


def restore(model: onnx.ModelProto, text: str) -> None:
  """Put a record as ``kept_record`` gave it into the metadata of ``model``, in place."""
  kept = [p for p in model.metadata_props if p.key != KEY]
  del model.metadata_props[:]
  model.metadata_props.extend(kept)
  model.metadata_props.add(key=KEY, value=text)


def measured_text(measured: MeasuredReport) -> str:
  """As a model keeps it."""
  return msgspec.json.encode(measured).decode()


def append_measured(path: Path, text: str) -> None:
  """Adds it to a model file, behind its end: protobuf reads what follows as more of the same message."""
  more = onnx.ModelProto()
  more.metadata_props.add(key=MEASURED_KEY, value=text)
  with path.open("ab") as stream:
    stream.write(more.SerializeToString())
    stream.flush()
    os.fsync(stream.fileno())


def read(model: onnx.ModelProto) -> RunRecord:
  """The record of an optimized model.

  Raises:
      MirageError: REPORT_MISSING, with what is wrong.
  """
  found, measured = (
    next((p.value for p in model.metadata_props if p.key == key), None) for key in (KEY, MEASURED_KEY)
  )
  if found is None:
    raise MirageError("REPORT_MISSING", "the model holds no record of an optimization")
  try:
    stream = zlib.decompressobj()
    text = stream.decompress(base64.b64decode(found, validate=True), MAX_BYTES + 1)
    if len(text) > MAX_BYTES or not stream.eof:
      raise ValueError(f"it is cut off, or longer than {MAX_BYTES} bytes")
    record = msgspec.json.decode(text, type=RunRecord, strict=True)
    _check(record)
    if measured is not None and len(measured) <= MAX_BYTES:
      times = msgspec.json.decode(measured, type=MeasuredReport, strict=True)
      record = msgspec.structs.replace(record, measured=times)
  except (ValueError, zlib.error, RecursionError) as error:
    raise MirageError(
      "REPORT_MISSING", f"the model's record of its optimization cannot be read: {error}"
    ) from None
  return record


def _check(record: RunRecord) -> None:
  """That numbers of nodes, places and regions are those of some.

  Raises:
      ValueError: which is not.
  """
  if record.version != VERSION:
    raise ValueError(f"version {record.version}, this program reads {VERSION}")
  inside = [*(p.nodes for p in record.places), *(k.nodes for k in record.kept)]
  every = [n for nodes in (*inside, *(b.nodes for b in record.barriers)) for n in nodes]
  lists = [
    ("node", len(record.nodes), every),
    ("place", len(record.places), [n for x in record.nodes for n in x.places]),
    ("region", len(record.regions), [x.region for x in record.places]),
  ]
  for what, count, used in lists:
    if wrong := [n for n in used if not 0 <= n < count]:
      raise ValueError(f"there is no {what} {wrong[0]}")
  if not all(inside):
    raise ValueError("a region without a node")
