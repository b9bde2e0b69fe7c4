"""What a model keeps of its run: it is read back as it was, and nothing else is read."""

import base64
import zlib

import msgspec
import onnx
import pytest
from refused import refused
from reported import copied, optimized, record_of

from mirage_onnx.report import run_record
from mirage_onnx.report.run_record import (
  KEY,
  MAX_BYTES,
  MEASURED_KEY,
  append_measured,
  measured_text,
  read,
  store,
)
from mirage_onnx.report.timed import MeasuredReport, TimedReport


def with_value(value):
  model = copied(optimized()[1].model)
  for p in model.metadata_props:
    if p.key == KEY:
      p.value = value
  return model


def packed(data):
  return base64.b64encode(zlib.compress(data)).decode()


def test_it_is_read_back_as_it_was_and_is_stored_once():
  model, record = copied(optimized()[1].model), record_of()
  store(model, record)
  assert read(model) == record
  assert sum(p.key == KEY for p in model.metadata_props) == 1
  assert "mirage_onnx.version" in {p.key for p in model.metadata_props}


def test_a_model_that_was_not_optimized_has_none():
  assert refused("REPORT_MISSING", lambda: read(optimized()[0]))


@pytest.mark.parametrize(
  "value",
  [
    "",
    "not base64!",
    base64.b64encode(b"not zlib").decode(),
    packed(b"not json"),
    packed(b"[]"),
    packed(b'{"version":1}'),
    packed(b"[" * 100_000),
    packed(b" " * (MAX_BYTES + 1)),
  ],
)
def test_what_anyone_may_have_written_is_refused(value):
  assert refused("REPORT_MISSING", lambda: read(with_value(value)))


@pytest.mark.parametrize(
  ("field", "change"),
  [
    ("version", lambda r: 2),
    ("places", lambda r: [msgspec.structs.replace(r.places[0], nodes=[len(r.nodes)])]),
    ("places", lambda r: [msgspec.structs.replace(r.places[0], nodes=[])]),
    ("places", lambda r: [msgspec.structs.replace(r.places[0], region=-1)]),
    ("nodes", lambda r: [msgspec.structs.replace(r.nodes[0], places=[99]), *r.nodes[1:]]),
    ("kept", lambda r: [msgspec.structs.replace(r.kept[0], nodes=[-1])]),
  ],
)
def test_numbers_that_are_those_of_nothing_are_refused(field, change):
  record = record_of()
  model = copied(optimized()[1].model)
  store(model, msgspec.structs.replace(record, **{field: change(record)}))
  assert refused("REPORT_MISSING", lambda: read(model))


def test_how_it_was_timed_is_added_to_the_file(tmp_path):
  """Behind its end, where protobuf reads on; the rest of the model is as it was."""
  row = TimedReport(
    sizes="batch=1", how="run", before_us=3.0, after_us=2.0, speedup=1.5, low=1.4, high=None, openings=9
  )  # fmt: skip
  measured, path = MeasuredReport(rows=[row], note="a note"), tmp_path / "model.onnx"
  onnx.save(optimized()[1].model, path)
  append_measured(path, measured_text(measured))
  model = onnx.load(path)
  assert read(model) == msgspec.structs.replace(record_of(), measured=measured)
  del model.metadata_props[-1]
  assert model == optimized()[1].model
  model.metadata_props.add(key=MEASURED_KEY, value='{"rows":[{"sizes":3}]}')
  assert refused("REPORT_MISSING", lambda: read(model))


def test_a_text_that_is_cut_off_is_refused():
  model = optimized()[1].model
  value = next(p.value for p in model.metadata_props if p.key == KEY)
  cut = base64.b64encode(base64.b64decode(value)[:-8]).decode()
  assert refused("REPORT_MISSING", lambda: read(with_value(cut)))
  assert record_of().version == run_record.VERSION
