"""Whole sessions side by side: the slower is said to be, at every size; failures say whose they are."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from cached_steps import cached_step, step_feeds
from rewritten import chain
from timed_models import busy, save

from mirage_onnx.custom_op import race as module
from mirage_onnx.custom_op.arm_session import Arm, ArmSession
from mirage_onnx.custom_op.child import Ended
from mirage_onnx.custom_op.input_facts import input_facts
from mirage_onnx.custom_op.race import ROUNDS, Failed, Race, Racer, Times, race, rounds_us
from mirage_onnx.errors import MirageError
from mirage_onnx.tune.paired import LOOKS, PairedVerdict


def question(*paths, pairs=((0, 1),), seconds=1.0, **more):
  return Race(tuple(map(Arm, map(str, paths))), pairs, seconds, 0.01, provider="cpu", **more)


def test_rounds():
  """By the clock: each takes what it does, and on a busy machine more, of fewer rounds."""
  us = rounds_us((busy(4e-3), busy(1e-3)))
  assert len(us) == 2 and module.LEAST_ROUNDS <= us.shape[1] <= ROUNDS
  assert us[0].min() > 3999 and us[1].min() > 999


def test_slow_runs_and_many_sizes_take_less_of_each(monkeypatch):
  """Else no budget would be enough for the openings that say something."""
  now = [0.0]
  monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

  def takes(seconds):
    def run():
      now[0] += seconds

    return run

  us = rounds_us((takes(2e-3), takes(1e-3)))
  assert us[0] == pytest.approx(2000) and us[1] == pytest.approx(1000)
  for seconds, rounds in ((1e-4, ROUNDS), (0.05, ROUNDS), (0.2, 5), (3.0, 3)):
    now[0] = 0.0
    us = rounds_us((takes(seconds), takes(seconds)))
    assert us.shape == (2, rounds) and us == pytest.approx(seconds * 1e6)
    assert now[0] <= max(2.5, 8 * seconds) + 1e-6
  arms = tuple(map(Arm, "ab"))
  for points, sample_s in ((1, 0.01), (9, 0.01), (64, 4.0 / (64 * 2 * 2 * ROUNDS))):
    asked = Race(arms, ((0, 1),), 60.0, 0.01, points=({},) * points)
    assert module.sample_seconds(asked) == pytest.approx(sample_s)


def test_no_more_openings_than_there_is_time(tmp_path):
  path = save(tmp_path / "m.onnx", 1)
  (row,) = race(question(path, path, seconds=0.0)).rows
  assert row.speedups[0].openings == 1 and row.speedups[0].verdict is PairedVerdict.UNDECIDED


def test_the_slower_model(tmp_path):
  one, nine = save(tmp_path / "one.onnx", 1), save(tmp_path / "nine.onnx", 9)
  found = race(question(nine, one, pairs=((0, 1), (1, 0)), seconds=300.0))
  assert isinstance(found, Times) and found.launches == (0, 0)
  (row,) = found.rows
  assert (row.how, row.sizes) == ("run", "") and row.us[0] > row.us[1] > 0
  assert row.speedups[0].verdict is PairedVerdict.FASTER and row.speedups[1].verdict is PairedVerdict.SLOWER


def test_every_size_but_those_that_the_original_cannot_run(tmp_path):
  path = save(tmp_path / "m.onnx", 2, "rows")
  fixed = save(tmp_path / "fixed.onnx", 2, 4)
  points = ({"rows": 1}, {"rows": 300})
  found = race(question(path, path, points=points, seconds=0.2))
  assert [r.sizes for r in found.rows] == ["rows=1", "rows=300"] and not found.skipped
  assert found.rows[1].us[0] > found.rows[0].us[0]
  model = onnx.load(fixed)
  for value in (*model.graph.input, *model.graph.output):  # a size that it says it takes, and does not
    value.type.tensor_type.shape.dim[0].dim_param = "rows"
  weight = onnx.numpy_helper.from_array(np.ones((4, 256), np.float32), "four")
  model.graph.initializer.append(weight)
  last = model.graph.node[-1].output[0]
  model.graph.node[-1].output[0] = "before"
  model.graph.node.append(onnx.helper.make_node("Add", ["before", "four"], [last]))
  onnx.save(model, fixed)
  found = race(question(fixed, fixed, points=({"rows": 4}, {"rows": 300}), seconds=0.2))
  assert [r.sizes for r in found.rows] == ["rows=4"] and found.skipped == ("rows=300",)
  nothing = race(question(fixed, fixed, points=({"rows": 300}, {"rows": 301}), seconds=0.2))
  assert isinstance(nothing, Failed) and nothing.arm == 0 and "none of the declared sizes" in nothing.reason


def test_whose_failure_it_is(tmp_path, monkeypatch):
  good = save(tmp_path / "good.onnx", 1)
  (tmp_path / "bad.onnx").write_bytes(b"no model")
  for paths, arm in (((good, tmp_path / "bad.onnx"), 1), ((tmp_path / "bad.onnx", good), 0)):
    found = race(question(*paths))
    assert isinstance(found, Failed) and found.arm == arm and "bad.onnx" in found.reason
  monkeypatch.setattr(module, "in_child", lambda *_: Ended("1 running", "ended by SIGSEGV"))
  assert race(question(good, good)) == Failed(1, "1 running: ended by SIGSEGV")
  monkeypatch.setattr(module, "in_child", lambda *_: Ended("its start", "ended by SIGKILL"))
  assert race(question(good, good)).arm is None


def test_races_in_one_process(tmp_path):
  good, bad = save(tmp_path / "good.onnx", 1), tmp_path / "bad.onnx"
  bad.write_bytes(b"no model")
  racer = Racer()
  try:
    racer.begin()
    first = racer._child._worker.pid
    assert isinstance(racer(question(good, good)), Times)
    assert racer(question(good, bad)).arm == 1  # an answer, too
    assert isinstance(racer(question(good, good)), Times) and racer._child._worker.pid == first
  finally:
    racer.close()


def test_an_arm_may_run_bodies(tmp_path):
  three = chain()
  onnx.save(three.model, tmp_path / "m.onnx")
  outputs = frozenset(o for n in three.model.graph.node for o in n.output)
  arms = (Arm(str(tmp_path / "m.onnx")), Arm(str(tmp_path / "m.onnx"), outputs))
  found = race(Race(arms, ((0, 1),), 0.1, 0.01, provider="cpu"))
  assert isinstance(found, Times) and found.rows[0].us[1] > 0


@pytest.mark.gpu
def test_graphs_and_kernels(tmp_path):
  """On a GPU runs and replays are timed, and the rewritten model launches its kernels."""
  three = chain()
  for name, model in (("a", three.original), ("b", three.model)):
    onnx.save(model, tmp_path / f"{name}.onnx")
  found = race(Race((Arm(str(tmp_path / "a.onnx")), Arm(str(tmp_path / "b.onnx"))), ((0, 1),), 20.0, 0.01))
  assert isinstance(found, Times), found
  assert [r.how for r in found.rows] == ["run", "graph"]
  assert found.launches[0] == 0 and found.launches[1] > 3 * ROUNDS
  assert all(r.speedups[0].openings >= LOOKS[0] for r in found.rows)


def test_a_cache_of_one_size_is_changed_in_place(tmp_path):
  """As whoever deploys such a model runs it; else onnxruntime would copy all of the cache."""
  model = cached_step(1, 2, 2, 32, 9)
  onnx.save(model, tmp_path / "m.onnx")
  session = ArmSession(Arm(str(tmp_path / "m.onnx")), "cpu", graph=False)
  feeds = step_feeds(model, [4], garbage=0)
  _, kept, results = session.bound(feeds, "1", input_facts(model).shared)()
  y, *caches = results
  assert [c.data_ptr() for c in caches] == [kept[f"past_{n}"].data_ptr() for n in "kv"]
  assert y.data_ptr() not in {x.data_ptr() for x in kept.values()}


class Crowded(ArmSession):
  """A session beside which no other one has the memory to run; counts those that are open."""

  opened, most = 0, 0

  def __init__(self, *arguments, **more):
    super().__init__(*arguments, **more)
    Crowded.opened += 1
    Crowded.most = max(Crowded.most, Crowded.opened)

  def __del__(self):
    Crowded.opened -= 1

  def bound(self, *arguments):
    if Crowded.opened > 1:
      raise RuntimeError("[ONNXRuntimeError] Failed to allocate memory for requested buffer of size 8")
    return super().bound(*arguments)


def test_one_session_at_a_time(tmp_path, monkeypatch):
  """Two do not have the memory: then the first arm's size is not passed over, and apart all is timed."""
  monkeypatch.setattr(module, "ArmSession", Crowded)
  monkeypatch.setattr(Crowded, "most", 0)
  one, nine = save(tmp_path / "one.onnx", 1, "rows"), save(tmp_path / "nine.onnx", 9, "rows")
  asked = question(nine, one, points=({"rows": 1}, {"rows": 300}), seconds=0.0)
  with pytest.raises(RuntimeError, match="Failed to allocate"):
    module._Race(asked, lambda at: None).rows()
  assert Crowded.opened == 0 and Crowded.most == 2
  monkeypatch.setattr(Crowded, "most", 0)
  told = []
  race = module._Race(replace(asked, apart=True, seconds=600.0), told.append)
  rows = race.rows()
  assert [(sizes, how) for sizes, how, *_ in rows] == [("rows=1", "run"), ("rows=300", "run")]
  assert Crowded.most == 1 and not race.skipped
  (_, _, us, ((mean, *_, openings, _),)) = rows[1]
  assert us[0] > us[1] and mean > 1 and openings >= LOOKS[0]
  opened = [t for t in told if "opening" in t]
  assert opened[:4] == [
    "0 opening nine.onnx",
    "1 opening one.onnx",
    "1 opening one.onnx",
    "0 opening nine.onnx",
  ]
  assert "1 timing rows=300" in told and race.counts == [{}, {}]


class Captured(ArmSession):
  """On the CPU, with graphs that only some files can be."""

  refused = ()

  def __init__(self, arm, provider, *, graph):
    super().__init__(arm, "cpu", graph=False)
    self.asked, self.name = graph, arm.path

  def bound(self, *arguments):
    if self.asked and any(name in self.name for name in self.refused):
      raise RuntimeError("a node cannot be captured\nand more")
    return super().bound(*arguments)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
  ("refused", "captured", "ways"),
  [((), True, ["run", "graph"]), (("one", "two"), True, ["run"]), (("one",), True, ["run"]),
   (("two",), False, ["run"]), (("two",), True, None)],
)  # fmt: skip
def test_who_captures_a_graph_can_go_on(tmp_path, monkeypatch, refused, captured, ways, apart):
  """A result that cannot be a CUDA graph where its original can is no result."""
  monkeypatch.setattr(module, "ArmSession", Captured)
  monkeypatch.setattr(module, "gpu_alone", nullcontext)
  monkeypatch.setattr(Captured, "refused", refused)
  one, two = save(tmp_path / "one.onnx", 1), save(tmp_path / "two.onnx", 2)
  asked = replace(question(one, two, seconds=0.0), provider="cuda", captured=captured, apart=apart)
  told = []
  race = module._Race(asked, told.append)
  if ways is None:
    with pytest.raises(MirageError, match="as a CUDA graph, which the original can: a node cannot"):
      race.rows()
    assert told[-1].startswith("1 ")
  else:
    assert [how for _, how, *_ in race.rows()] == ways


@pytest.mark.parametrize("points", [1, 2])
def test_one_session_for_both_ways(tmp_path, monkeypatch, points):
  """A session of gigabytes takes seconds. Of several sizes runs say first which there are."""
  monkeypatch.setattr(module, "ArmSession", Captured)
  monkeypatch.setattr(module, "gpu_alone", nullcontext)
  monkeypatch.setattr(Captured, "refused", ())
  one, two = save(tmp_path / "one.onnx", 1, "rows"), save(tmp_path / "two.onnx", 2, "rows")
  told, graphs = [], []

  class Told(Captured):
    def bound(self, feeds, graph_id, shared):
      graphs.append((self.asked, graph_id))
      return super().bound(feeds, graph_id, shared)

  monkeypatch.setattr(module, "ArmSession", Told)
  sizes = tuple({"rows": n + 1} for n in range(points))
  asked = replace(question(one, two, seconds=600.0, points=sizes), provider="cuda")
  rows = module._Race(asked, told.append).rows()
  openings = {speedup[3] for _, _, _, speedups in rows for speedup in speedups}
  assert {how for _, how, *_ in rows} == {"run", "graph"} and len(openings) == 1
  (count,) = openings
  more = 2 * (points > 1)
  assert count >= LOOKS[0] and sum("opening" in t for t in told) == 2 * count + more
  first = [(False, "-1")] * 4 + [(True, "1"), (True, "1"), (True, "2"), (True, "2")]
  both = [(True, "-1")] * 2 + [(True, "1")] * 2
  assert graphs[:8] == (first if points > 1 else both * 2)
