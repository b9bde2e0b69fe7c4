"""Checkpoints: written whole or not at all, read for the region they are of."""

import json
import os
from dataclasses import replace

import pytest
from goldens import GOLDENS, golden, region

from mirage_onnx.errors import MirageError
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.superopt import atomic
from mirage_onnx.superopt.checkpoint import load_candidates, save_candidates

ONE, TWO = golden("lora"), golden("lora_two_kernels")
REGION = region("lora")
CANDIDATES = (
  Candidate(ONE.ugraph, ONE.params, 7.1 + 1e-12),
  Candidate(ONE.ugraph, (replace(ONE.params[0], warps=8),), 8.0),
  Candidate(TWO.ugraph, TWO.params),
)


@pytest.fixture
def path(tmp_path):
  return tmp_path / "checkpoint.json"


def test_candidates_come_back(path):
  save_candidates(path, REGION, CANDIDATES)
  found = load_candidates(path, REGION)
  assert found == CANDIDATES
  assert [c.predicted_us for c in found] == [c.predicted_us for c in CANDIDATES]
  first = path.read_bytes()
  save_candidates(str(path), REGION, found)
  assert path.read_bytes() == first
  assert json.loads(first)["region"] == REGION.text


@pytest.mark.parametrize("one", GOLDENS, ids=lambda g: g.name)
def test_every_golden(path, one):
  save_candidates(path, one.region, [Candidate(one.ugraph, one.params, 1.0)])
  assert load_candidates(path, one.region) == (Candidate(one.ugraph, one.params, 1.0),)


def test_other_sizes_have_no_candidates(path):
  save_candidates(path, REGION, CANDIDATES)
  larger = replace(REGION, extents={a: 2 * n for a, n in REGION.extents.items()})
  assert load_candidates(path, larger) == ()


def test_no_file_and_no_candidates(path):
  assert load_candidates(path, REGION) == ()
  save_candidates(path, REGION, ())
  assert load_candidates(path, REGION) == ()


def refusal(path, of=REGION):
  with pytest.raises(MirageError) as caught:
    load_candidates(path, of)
  assert "\n" not in caught.value.detail
  return caught.value


def test_a_region_of_another_structure(path):
  save_candidates(path, REGION, CANDIDATES)
  error = refusal(path, region("gated_mlp"))
  assert error.code == "CHECKPOINT" and "computes something else" in error.detail


def test_a_cut_file(path):
  save_candidates(path, REGION, CANDIDATES)
  whole = path.read_bytes().rstrip()
  for size in range(0, len(whole), 61):
    path.write_bytes(whole[:size])
    assert refusal(path).code == "CHECKPOINT"


def test_unreadable(path):
  path.mkdir()
  assert refusal(path).code == "FILE_UNREADABLE"


DAMAGE = {
  "not a checkpoint": (["format"], "x"),
  "of version 2": (["version"], 2),
  "what region": (["region"], None),
  "no list": (["candidates"], {}),
  "candidate 1 is damaged": (["candidates", 1], "x"),
  "not a ugraph": (["candidates", 1, "ugraph"], "ugraph 1\nx\n"),
  "version 1": (["candidates", 1, "ugraph"], "ugraph 2\n"),
  "not canonical": (["candidates", 1, "ugraph"], "ugraph 1"),
  "for 1 kernels": (["candidates", 0, "params"], []),
  "candidate 0 is damaged": (["candidates", 0, "params"], ["tile=8"]),
  "a time of -1.0 us": (["candidates", 0, "predicted_us"], -1.0),
  "a time of 'x' us": (["candidates", 0, "predicted_us"], "x"),
}


@pytest.mark.parametrize("says", DAMAGE)
def test_damage_is_told(path, says):
  save_candidates(path, REGION, CANDIDATES)
  content = json.loads(path.read_text())
  (*way, last), value = DAMAGE[says]
  place = content
  for step in way:
    place = place[step]
  place[last] = value
  path.write_text(json.dumps(content))
  error = refusal(path)
  assert error.code == "CHECKPOINT" and says in error.detail
  path.write_text("[" * 100_000)
  assert refusal(path).code == "CHECKPOINT"


def test_a_write_that_fails_leaves_the_old_one(path, monkeypatch):
  save_candidates(path, REGION, CANDIDATES)

  def fail(descriptor, data):
    os.write(descriptor, data[:10])
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(atomic, "write_whole", fail)
  with pytest.raises(MirageError, match="No space left") as caught:
    save_candidates(path, REGION, CANDIDATES[:1])
  assert caught.value.code == "OUTPUT_UNWRITABLE"
  assert load_candidates(path, REGION) == CANDIDATES
  assert os.listdir(path.parent) == [path.name]
  with pytest.raises(MirageError, match="No such file"):
    save_candidates(path.parent / "none" / "x", REGION, ())


def test_a_link_stays_a_link(path):
  link = path.with_name("link")
  link.symlink_to(path.name)
  save_candidates(link, REGION, CANDIDATES)
  assert link.is_symlink() and load_candidates(path, REGION) == CANDIDATES
