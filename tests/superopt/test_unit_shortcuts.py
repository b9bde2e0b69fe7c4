"""What a unit leaves out before it builds or solves it would not have stayed."""

import pytest
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.cost import tiled_work
from mirage_onnx.lower.lanes import choose_lanes
from mirage_onnx.superopt import tiled_numbers, units
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.target import H200

#: Their searches meet each of the shortcuts.
MEETING = ("lora_two_adapters", "pooled_linear")


def _candidates(name):
  result = search(PROGRAMS[name](), H200, prover(), space=ALL, budget_s=600.0)
  return [(v.candidate, v.proof.draws) for v in result.candidates], result.report.stop


@pytest.fixture
def without(monkeypatch):
  """No shortcuts; what is found that contradicts one, and how often each is met."""
  wrong, met = [], {"floor": 0, "fits": 0, "lanes": 0}
  fits, solve, is_beaten = tiled_numbers.fits_nowhere, units.solved, units.Units._is_beaten
  last = {}

  def not_beaten(self, floor_us, maxima, found):
    met["floor"] += is_beaten(self, floor_us, maxima, found)
    last["floor"] = floor_us
    return False

  def fits_maybe(*arguments):
    last["fits"] = fits(*arguments)
    met["fits"] += last["fits"] is not None

  def solved(*arguments, **more):
    last["fits"] = None
    found = solve(*arguments, **more)
    if found and (last["fits"] or found[0] < last["floor"]):
      wrong.append((found[0], dict(last)))
    return found

  def lanes_of(kernel, known=None):
    met["lanes"] += known is not None
    if before(kernel, known) != (anew := choose_lanes(kernel)):
      wrong.append((known, anew))
    return anew

  before = tiled_work.lanes_of
  monkeypatch.setattr(units.Units, "_is_beaten", not_beaten)
  monkeypatch.setattr(tiled_numbers, "fits_nowhere", fits_maybe)
  monkeypatch.setattr(units, "solved", solved)
  monkeypatch.setattr(tiled_work, "lanes_of", lanes_of)
  return wrong, met


@pytest.fixture(scope="module")
def usual():
  return {name: _candidates(name) for name in MEETING}


@pytest.mark.parametrize("name", MEETING)
def test_the_same_is_found_without_shortcuts(usual, without, name):
  wrong, met = without
  assert _candidates(name) == usual[name]
  assert wrong == []
  assert all(met.values()), met
