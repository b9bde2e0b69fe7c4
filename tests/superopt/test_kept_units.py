"""A search that goes on from a journal is the search that was never cut off, bit by bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from search_summaries import after, summary
from small_models import Net, region_of, search_region

from mirage_onnx.events import SearchProgress
from mirage_onnx.superopt import progress
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.journal import Journal
from mirage_onnx.superopt.kept_units import unit_record, unit_result
from mirage_onnx.superopt.result import SearchBound, Stop
from mirage_onnx.superopt.space import ALL, EMITTED
from mirage_onnx.superopt.units import Units
from mirage_onnx.target import H200


def norm_linear():
  net = Net()
  x = net.input(8, 512)
  return net.model(net.MatMul(net.rms(x, net.weight(512)), net.weight(512, 256)))


REGION = region_of(norm_linear())
SETTING = {"target": "h200"}


@pytest.fixture
def path(tmp_path):
  return tmp_path / "journal"


def search_with(path, stop=lambda: None):
  with Journal(path, SETTING) as journal:
    return summary(search_region(REGION, hooks=Hooks(journal, stop)))


@pytest.mark.parametrize("space", [EMITTED, ALL], ids=["emitted", "all"])
def test_units_come_back(space):
  units = Units(REGION, H200, SearchBound(), AXIOMS, space)
  outputs = units.outputs
  results = [units.run(outputs, reads) for reads in units.outline(outputs).derivations]
  assert len(results) > 1 and any(r.kernels for r in results)
  assert any(r.counts.pruned for r in results)
  assert space is ALL or any(r.reasons for r in results)
  for result in results:
    assert unit_result(unit_record(result)) == result


def test_from_the_journal_nothing_is_searched(path, monkeypatch):
  first = search_with(path)
  assert first == summary(search_region(REGION))

  def fail(*a):
    raise AssertionError("searched again")

  monkeypatch.setattr(Units, "run", fail)
  assert search_with(path) == first


def test_a_search_cut_off_again_and_again(path):
  whole, polls, cuts = summary(search_region(REGION)), 0, 0
  best = {c[0]: c for c in reversed(whole[0])}
  while (found := search_with(path, after(polls)))[4] is Stop.INTERRUPTED:
    # What was verified before the cut is what the whole search finds.
    assert all(best[c[0]] == c for c in {c[0]: c for c in reversed(found[0])}.values())
    polls, cuts = polls + 7, cuts + 1
  assert found == whole and cuts > 3


OTHER_PROCESS = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[3]]
from test_kept_units import search_with
search_with(Path(sys.argv[1]))
"""


def test_another_process_finds_the_same(path, monkeypatch):
  """Also where hashes differ: every unit has the same key and the same kernels there."""
  here = path.with_name("here")
  search_with(here)
  folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
  for seed in ("1", "2"):
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    run = [sys.executable, "-c", OTHER_PROCESS, str(path), *folders]
    subprocess.run(run, check=True, env=environment)
    assert path.read_bytes() == here.read_bytes()
    path.unlink()


def test_events_of_a_search(path, monkeypatch):
  monkeypatch.setattr(progress, "INTERVAL_S", 0.0)
  found = []
  result = search_region(REGION, budget_s=900.0, hooks=Hooks(emit=found.append))
  events = [e for e in found if isinstance(e, SearchProgress)]
  assert events and {e.region for e in events} == {REGION.key}
  assert all(0 <= e.units_done <= e.units_known for e in events)
  assert events[-1].states <= result.report.states
  assert 0 < events[-1].budget_left_s <= 900
  assert events[-1].best_us is not None and events[0].best_us is None


def test_a_restriction_is_not_mixed_up(path):
  """No key holds a callable, so a restricted search leaves the store alone."""
  with Journal(path, SETTING) as journal:
    search_region(REGION, hooks=Hooks(journal), allow=lambda kernel, params: False)
  assert not path.exists()
