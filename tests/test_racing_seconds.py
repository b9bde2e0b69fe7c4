"""For how long the gate asks: its share of the time, and what a repeat asks again."""

import onnx
import pytest
from rewritten import chain
from timed_arms import Timer, costs
from written_runs import OPTIONS, a_run

from mirage_onnx import racing, writing
from mirage_onnx.custom_op import race
from mirage_onnx.importer import load_model
from mirage_onnx.racing import Gate


@pytest.fixture(scope="module")
def three():
  return chain()


def test_what_is_faster_is_not_asked_about_for_long(three, tmp_path, monkeypatch):
  """Leaving out regions of a result that may be written as it is has a share of the time before."""
  now = [1000.0]
  monkeypatch.setattr(racing.time, "monotonic", lambda: now[0])
  timer = Timer(costs(three, 1, 2, 14), noise=0.005)

  def slow(race):
    now[0] += 30.0
    return timer(race)

  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, 2000.0)
  monkeypatch.setattr(racing, "BATCH", 1)
  gate = Gate(str(tmp_path / "in.onnx"), ({},), 2000.0, timer=slow, began=-170.0)
  writing.write(a_run(three, loaded), loaded, OPTIONS, place, check=False, gate=gate)
  # 1200 s were over when it was seen to be faster, 6 % of which are for two of the three regions, as 30 s are
  # seen to be what each takes; one of them goes, and the rest is asked about again.
  assert [len(q.arms) for q in timer.asked] == [2, 2, 2, 2]


class Remembering(race.Racer):
  """A ``Racer`` whose races take ``seconds``; remembers what it was asked, and what was left."""

  def __init__(self, timer, now, seconds, before=None):
    self.timer, self.now, self.seconds = timer, now, seconds
    self.known = {} if before is None else dict(before.known)
    self.left = {} if before is None else dict(before.left)

  def __call__(self, question):
    key = self.key(question)
    if key not in self.known:
      self.now[0] += self.seconds
      self.known[key] = self.timer(question)
    return self.known[key]

  def key(self, question):
    return question.pairs, question.alpha, tuple(a.bodies for a in question.arms)

  def knows(self, question):
    return self.key(question) in self.known

  def leave(self, question, budget_s):
    self.left[self.key(question)] = budget_s

  def has_left(self, question, budget_s):
    return self.left.get(self.key(question), 0.0) >= budget_s


def test_a_repeat_asks_what_the_run_before_it_had_time_for(three, tmp_path, monkeypatch):
  """It has all the time that the rest took then, and would ask for more; what is known costs none."""
  now = [1000.0]
  monkeypatch.setattr(racing.time, "monotonic", lambda: now[0])
  monkeypatch.setattr(racing, "BATCH", 1)
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")

  def asked(racer, began, end=2000.0):
    place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, end)
    gate = Gate(str(tmp_path / "in.onnx"), ({},), end, timer=racer, began=began)
    gate.begin = gate.close = lambda: None
    writing.write(a_run(three, loaded), loaded, OPTIONS, place, check=False, gate=gate)
    return (tmp_path / "out.onnx").read_bytes()

  timer = Timer(costs(three, 1, 2, 3), noise=0.005)
  first = Remembering(timer, now, 30.0)
  written = asked(first, began=now[0] - 570.0)
  # 600 s were over, 6 % of which (36 s) are for one question of 30 s; the second would end too late.
  assert len(first.known) == 2 and len(first.left) == 1
  again = Remembering(timer, now, 1.0, first)
  assert (
    asked(again, began=now[0], end=now[0] + 1000.0) == written and again.known.keys() == first.known.keys()
  )
  larger = Remembering(timer, now, 1.0, first)
  asked(larger, began=now[0], end=now[0] + 3000.0)
  assert len(larger.known) == 4, "with a larger budget all are asked"
  late = Remembering(timer, now, 1.0, first)
  now[0] += 5000.0
  assert asked(late, began=now[0] - 900.0, end=now[0] + 5.0) == written, (
    "what is known is no question of time"
  )
