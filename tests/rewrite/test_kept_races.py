"""Races that are known: the same bytes are not timed twice, and what says nothing is not kept."""

import os
import time
from dataclasses import replace
from math import inf

import onnx
import pytest
from small_models import Net

from mirage_onnx.custom_op.arm_session import Arm
from mirage_onnx.custom_op.race import Failed, Race, Raced, Racer, Times
from mirage_onnx.racing import Gate
from mirage_onnx.rewrite.kept_races import KeptRacer
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.tune.paired import Speedup


@pytest.fixture
def models(tmp_path):
  paths = []
  for seed in (1, 2):
    net = Net(seed=seed)
    onnx.save(net.model(net.Exp(net.MatMul(net.input(4, 8), net.weight(8, 8)))), tmp_path / f"{seed}.onnx")
    paths.append(tmp_path / f"{seed}.onnx")
  return paths


def times(openings=4, high=1.2):
  rows = (Raced("n=4", "graph", (10.0, 9.0), (Speedup(1.1, 1.05, high, openings, 0.005),)),)
  return Times(rows, (0, 4), ("n=9",), ({}, {"a": 4}))


class Asked:
  def __init__(self, answer):
    self.answer, self.questions = answer, []

  def __call__(self, question):
    self.questions.append(question)
    return self.answer


def question(models, **more):
  return Race(tuple(Arm(str(m)) for m in models), ((0, 1),), 5.0, 0.01, ({"n": 4},), **more)


@pytest.mark.parametrize("high", [1.2, inf])
def test_it_is_asked_once(models, tmp_path, high):
  ask, store = Asked(times(high=high)), KeptFolder(tmp_path / "kept", {"gpu": "one"})
  assert KeptRacer(store, ask)(question(models)) == times(high=high)
  again = KeptRacer(store, ask)(replace(question(models), seconds=1.0))  # how long it may take is no matter
  assert again == times(high=high) and len(ask.questions) == 1


def test_whatever_differs_is_asked(models, tmp_path):
  ask, store = Asked(times()), KeptFolder(tmp_path / "kept", {"gpu": "one"})
  racer = KeptRacer(store, ask)
  racer(question(models))
  first = question(models)
  racer(replace(first, arms=(first.arms[0], Arm(first.arms[1].path, frozenset({"y"})))))
  racer(replace(first, alpha=0.05))
  racer(replace(first, points=({"n": 5},)))
  KeptRacer(KeptFolder(tmp_path / "kept", {"gpu": "two"}), ask)(first)
  assert len(ask.questions) == 5
  models[1].write_bytes(models[0].read_bytes())
  racer(first)
  assert len(ask.questions) == 6


@pytest.mark.parametrize("answer", [Failed(1, "no memory"), times(openings=2)])
def test_what_says_nothing_is_not_kept(models, tmp_path, answer):
  ask, store = Asked(answer), KeptFolder(tmp_path / "kept", {})
  for _ in range(2):
    assert KeptRacer(store, ask)(question(models)) == answer
  assert len(ask.questions) == 2


def test_what_is_brief_is_asked_again_with_more_time_only(models, tmp_path):
  """A repeat of the same run gets as far as the first one did: nowhere."""
  ask, store = Asked(times(openings=2)), KeptFolder(tmp_path / "kept", {})
  brief = question(models, brief=True)
  assert not KeptRacer(store, ask).knows(brief)
  for _ in range(2):
    assert KeptRacer(store, ask)(brief) == times(openings=2)
  assert KeptRacer(store, ask).knows(brief) and len(ask.questions) == 1
  longer = replace(brief, seconds=2 * brief.seconds)
  assert not KeptRacer(store, ask).knows(longer) and not KeptRacer(store, ask).knows(question(models))
  KeptRacer(store, ask)(longer)
  assert len(ask.questions) == 2


def test_what_was_left_is_no_question_of_a_repeat(models, tmp_path):
  store = KeptFolder(tmp_path / "kept", {})
  racer, other = KeptRacer(store, Asked(times())), replace(question(models), alpha=0.05)
  assert not racer.has_left(other, 300.0)
  racer.leave(other, 300.0)
  again = KeptRacer(store, Asked(times()))
  assert again.has_left(other, 300.0) and again.has_left(other, 90.0)
  assert not again.has_left(other, 600.0) and not again.has_left(question(models), 300.0)
  assert not Racer().has_left(other, 300.0) and not Racer().knows(other)


def test_damage_is_asked_again(models, tmp_path):
  ask, store = Asked(times()), KeptFolder(tmp_path / "kept", {})
  KeptRacer(store, ask)(question(models))
  for file in (tmp_path / "kept").iterdir():
    file.write_bytes(file.read_bytes().replace(b"graph", b"grapf"))
  assert KeptRacer(store, ask)(question(models)) == times() and len(ask.questions) == 2


def test_data_that_is_named_by_its_content_may_be_written_again(models, tmp_path):
  """A repeat writes the weights of its result anew: their bytes are in the name."""
  for name, known in (("out.onnx.0123456789abcdef.data", True), ("weights.bin", False)):
    proto = onnx.load(models[0])
    onnx.save(proto, tmp_path / "b.onnx", save_as_external_data=True, location=name, size_threshold=0)
    ask, store = Asked(times()), KeptFolder(tmp_path / f"kept {name}", {})
    racer, some = KeptRacer(store, ask), question([models[1], tmp_path / "b.onnx"])
    racer(some)
    os.utime(tmp_path / name, ns=(1, 1))
    racer(some)
    assert len(ask.questions) == (1 if known else 2), name


def test_who_has_raced_an_original_begins_no_process(models, tmp_path, monkeypatch):
  begun = []
  monkeypatch.setattr(Racer, "begin", lambda self, original="": begun.append(1))
  store = KeptFolder(tmp_path / "kept", {})
  racer = KeptRacer(store, Asked(times()))
  racer.begin(str(models[0]))
  racer(question(models))
  KeptRacer(store, Asked(times())).begin(str(models[0]))
  assert begun == [1]
  KeptRacer(store, Asked(times())).begin(str(models[1]))
  KeptRacer(store, Asked(times())).begin()
  assert begun == [1, 1, 1]


@pytest.mark.parametrize("mean", [1.1, 0.9])
def test_which_choice_was_preferred_is_known_before_the_other_is_written(models, tmp_path, mean):
  """By what it is made with, beside these files; not where it could not be timed."""
  row = Raced("", "graph", (10.0, 10.0 / mean), (Speedup(mean, mean / 1.05, mean * 1.05, 4, 0.005),))
  answers = iter((Failed(0, "no memory"), Failed(0, "no memory"), Times((row,), (0, 0))))
  store, end = KeptFolder(tmp_path / "kept", {}), time.monotonic() + 60
  gate = Gate(str(models[0]), ({},), end, timer=KeptRacer(store, lambda q: next(answers)))
  assert not gate.prefers(models[0], models[1], "a choice")
  assert gate.preferred(models[1], "a choice") is None
  assert gate.prefers(models[0], models[1], "a choice") == (mean > 1)
  later = Gate(str(models[0]), ({},), end, timer=KeptRacer(store, Asked(None)))
  assert later.preferred(models[1], "a choice") == (mean > 1)
  assert later.preferred(models[1], "another") is None and later.preferred(models[0], "a choice") is None
  models[1].write_bytes(models[0].read_bytes())
  assert later.preferred(models[1], "a choice") is None
