"""A repeat ends where the run before it has ended, unless that was cut off or had less time."""

from dataclasses import replace

import pytest
import stand_ins

from mirage_onnx.errors import Rejection
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop
from mirage_onnx.tune.kept_ends import UNSEARCHED, KeptEnds
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.predict import NO_TIME


def outcome(key, instances=2, rejection=None):
  nodes = (f"n{key}",)
  places = (stand_ins.place(nodes),) * instances
  return Outcome(stand_ins.region(key, nodes), places, 10.0, rejection=rejection)


def searched(o, stop=Stop.EXHAUSTED, states=5):
  return replace(o, result=SearchResult((), SearchReport(1.0, states, 0, 0, stop, (), ())))


@pytest.fixture
def outcomes():
  small = Rejection("TOO_SMALL", "small", ())
  return {key: outcome(key, rejection=small if key == "e" else None) for key in "abcde"}


@pytest.fixture
def ended(tmp_path, outcomes):
  """What a run of 100 s has left behind: a and b searched, b timed, c interrupted, d not begun."""
  store = KeptFolder(tmp_path, {"machine": "one"})
  first = KeptEnds(store, outcomes, 100.0)
  assert first.known is None and first.only(outcomes) == outcomes
  found = outcomes | {
    "a": searched(outcomes["a"]),
    "b": searched(outcomes["b"], Stop.BUDGET),
    "c": searched(outcomes["c"], Stop.INTERRUPTED),
  }
  first.keep(found, ["b"], "the others were expected to gain 0.1%")
  return store, found


def test_a_repeat_asks_for_the_same(ended, outcomes):
  again = KeptEnds(ended[0], outcomes, 100.0)
  assert again.known.searched == {"a", "b"} and again.known.timed == ("b",)
  assert again.known.why == "the others were expected to gain 0.1%"
  left = again.only(outcomes)
  assert {key: o.rejection.code for key, o in left.items() if o.rejection} == {
    "c": "NOT_TIMED", "d": "NOT_TIMED", "e": "TOO_SMALL",
  }  # fmt: skip
  assert left["d"].rejection.reason == UNSEARCHED and left["d"].rejection.nodes == ("nd",)


def test_terms_of_what_is_not_timed_are_not_checked_again(tmp_path, outcomes):
  store = KeptFolder(tmp_path, {})
  found = {key: searched(o) for key, o in outcomes.items()}
  found["c"] = replace(found["c"], left_alone=((stand_ins.place(()), Rejection("NOT_EQUIVALENT", "", ())),))
  first = KeptEnds(store, outcomes, 100.0)
  assert not first.settled
  first.keep(found, ["b"], "enough")
  assert KeptEnds(store, outcomes, 100.0).settled == {"a", "d", "e"}


def test_a_larger_budget_goes_on(ended, outcomes):
  assert KeptEnds(ended[0], outcomes, 120.0).known and KeptEnds(ended[0], outcomes, 20.0).known
  assert KeptEnds(ended[0], outcomes, 130.0).known is None


def test_other_regions_places_or_machines_have_no_end(ended, outcomes, tmp_path):
  store, _ = ended
  assert KeptEnds(store, {k: o for k, o in outcomes.items() if k != "d"}, 100.0).known is None
  assert KeptEnds(store, outcomes | {"a": outcome("a", 3)}, 100.0).known is None
  assert KeptEnds(store, outcomes | {"e": outcome("e")}, 100.0).known is None
  assert KeptEnds(KeptFolder(tmp_path, {"machine": "two"}), outcomes, 100.0).known is None


def test_what_the_budget_left_unsearched_is_not_begun_again(tmp_path, outcomes):
  """A repeat of MiniLM beside other work had no end for it, and searched and timed for 332 s."""
  store = KeptFolder(tmp_path, {})
  found = {key: searched(o, *([Stop.BUDGET, 0] if key == "d" else [])) for key, o in outcomes.items()}
  KeptEnds(store, outcomes, 100.0).keep(found, ["a"], "enough")
  again = KeptEnds(store, outcomes, 100.0)
  assert again.known.unbegun == {"d"} and again.known.searched == set("abce")
  left = again.only(outcomes)
  assert {key for key, o in left.items() if o.rejection} == {"d", "e"}
  assert left["d"].rejection == Rejection("BUDGET", NO_TIME, ("nd",))
  assert KeptEnds(store, outcomes, 130.0).known is None


@pytest.mark.parametrize(
  "value", [{}, {"searched": 1, "unbegun": [], "timed": [], "why": "", "budget_s": 9}, {"budget_s": "x"}]
)
def test_a_file_that_says_nothing(tmp_path, outcomes, value):
  store = KeptFolder(tmp_path, {})
  KeptEnds(store, outcomes, 100.0).keep({k: searched(o) for k, o in outcomes.items()}, ["a"], "enough")
  assert KeptEnds(store, outcomes, 100.0).known
  store.put(KeptEnds(store, outcomes, 100.0)._key, value)
  assert KeptEnds(store, outcomes, 100.0).known is None
