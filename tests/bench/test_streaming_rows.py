"""Rows with the features of older GPUs: what is prepared, what is taken of it, what is said of times."""

import json
import lzma
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import stand_ins
import streaming_rows
from cases import Row
from linear_cases import gated_mlp

from mirage_onnx.target import H100
from mirage_onnx.targets import ARCHITECTURES
from mirage_onnx.tune.outcome import Outcome

NAME = "gated.b2"
SIZES = {"b2": {"batch": 2, "hidden": 1024, "out": 1024}}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(streaming_rows, "ROWS", {"gated": Row("gated", gated_mlp, SIZES, {}, {})})
    patch.setattr(streaming_rows, "SEARCH_S", 4.0)
    path = tmp_path_factory.mktemp("rows") / "rows.json.xz"
    assert streaming_rows.prepare(path, H100, [NAME], time.monotonic() + 300, 1) == 0
    yield path


def test_every_set_of_features_has_programs_within_its_limits(prepared):
  row = streaming_rows.read(prepared)["rows"][NAME]
  regions, found, _ = streaming_rows.compiled_of((NAME, row, H100))
  assert {e["key"] for e in row} == set(regions) == set(found) != set()
  for sets in found.values():
    assert list(sets) == ["own", "sm_80", "sm_89"] and all(sets.values())
    for arch in ("sm_80", "sm_89"):
      for source in (s for c in sets[arch] for s in c.sources):
        assert source.smem_bytes <= ARCHITECTURES[arch].smem_bytes
        assert source.cluster == 1 and not source.pdl
  assert any(s.pdl for sets in found.values() for c in sets["own"] for s in c.sources)


def test_what_is_not_proven_is_left_out(prepared):
  row = streaming_rows.read(prepared)["rows"][NAME]
  regions, _, _ = streaming_rows.compiled_of((NAME, row, H100))
  entry = row[0]
  region, programs = regions[entry["key"]], entry["sets"]["sm_80"]
  assert len(streaming_rows.candidates_of(region, programs)) == len(programs)
  wrong = [p | {"ugraph": p["ugraph"].replace("= mul ", "= add ")} for p in programs]
  assert wrong != programs and streaming_rows.candidates_of(region, wrong) == []


@pytest.mark.parametrize(
  ("slow", "right", "held", "code"),
  [(1.2, True, True, 0), (1.4, True, True, 1), (1.4, True, False, 0), (1.0, False, False, 1)],
)
def test_the_table_and_what_fails(prepared, tmp_path, monkeypatch, capsys, slow, right, held, code):
  monkeypatch.setattr(streaming_rows, "MANY_QUERIES", () if held else (NAME,))
  us = {"own": 10.0, "sm_80": 10.0 * slow, "sm_89": 11.0}

  def measured(gpu, region, sets, values):
    assert values[1].region is region or values[1].region.key == region.key
    return {"limit_us": 8.0, "sets": {w: [{"us": us[w], "right": right} for _ in c] for w, c in sets.items()}}

  monkeypatch.setattr(streaming_rows, "present_target", lambda: H100)
  monkeypatch.setattr(streaming_rows, "gpu_of", lambda target: None)
  monkeypatch.setattr(streaming_rows, "facts", lambda: {"gpu": "none"})
  monkeypatch.setattr(streaming_rows, "measured", measured)
  monkeypatch.setattr(streaming_rows, "ProcessPoolExecutor", ThreadPoolExecutor)  # which have the rows above
  out = tmp_path / "out.json"
  assert streaming_rows.timed(prepared, out, [NAME], time.monotonic() + 300, 1) == code
  (row,) = json.loads(out.read_text())["rows"]
  regions = len(row["regions"])
  assert row["us"]["own"] == 10.0 * regions and row["slower"] == {"sm_80": slow, "sm_89": 1.1}
  assert ("beyond 1.35x: none" in capsys.readouterr().out) == (slow < 1.35 or not held)
  monkeypatch.setattr(streaming_rows, "measured", None)  # what is there is not timed again
  assert streaming_rows.timed(prepared, out, [NAME], time.monotonic() + 300, 1) == code


@pytest.mark.parametrize(
  ("predicted", "timed", "taken"),
  [((8,), (9,), (8,)), ((1,), (9,), (9,)), ((4, 1), (9,), (4, 1)), ((), (9,), (9,))],
)
def test_a_row_is_of_what_reads_most_of_it(monkeypatch, predicted, timed, taken):
  """What is predicted to gain may be a small part of a row."""

  def run(loaded, options):
    sizes = predicted if options.margin == 0 else timed
    regions = [stand_ins.region(f"k{n}", extents={"bytes": n}) for n in sizes]
    chosen = [(None, Outcome(r, (), 0.0)) for r in regions]
    return SimpleNamespace(chosen=chosen, counts=lambda: Counter(o.region.key for _, o in chosen))

  monkeypatch.setattr(streaming_rows, "run", run)
  monkeypatch.setattr(streaming_rows, "bytes_of", lambda region: region.extents["bytes"])
  monkeypatch.setattr(streaming_rows, "case_of", lambda name: SimpleNamespace(tiled=False))
  monkeypatch.setattr(streaming_rows, "loaded_of", lambda case: None)
  regions, counts = streaming_rows.partition(NAME, H100)
  assert set(regions) == set(counts) == {f"k{n}" for n in taken}


def test_a_file_for_another_gpu(prepared, tmp_path):
  other = tmp_path / "other.xz"
  other.write_bytes(lzma.compress(json.dumps({"target": "h200", "rows": {}}).encode()))
  with pytest.raises(SystemExit, match="is for h200"):
    streaming_rows.prepare(other, H100, [NAME], time.monotonic(), 1)
