"""Which regions a prediction chooses: what a region must win by, and against what."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import stand_ins
from small_models import Net

from mirage_onnx import deadline
from mirage_onnx.deadline import Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.target import H200
from mirage_onnx.tune import ahead, arriving, exploring, realise
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.race import Measured


def chosen_nodes(monkeypatch, model, node_us, ours_us, margin):
  """The nodes of each chosen region. ``ours_us``: the offered ones, by their nodes."""
  loaded = load_model(model)
  program = import_model(loaded)
  monkeypatch.setattr(realise, "tuned", lambda _, o, *rest, **more: compiled(o))
  outcomes = {}
  for c in find_candidates(program).candidates:
    if c.nodes in ours_us:
      result = stand_ins.found(ours_us[c.nodes])
      outcomes[c.region.key] = Outcome(c.region, (c,), 0.0, result)
  assert len(outcomes) == len(ours_us)
  chosen, _ = realise.Realisation(
    loaded, program, outcomes, node_us, H200, margin=margin, measure=False, tries=1
  ).run()
  return {c.nodes for c, _ in chosen}


def compiled(outcome):
  return Outcome(outcome.region, outcome.instances, 0.0, outcome.result, outcome.result.candidates[0])


def one_pair():
  """A model, the candidate of its two nodes, and what a search has of it: a program of 2 us for 40."""
  net = Net(seed=3, opset=18)
  loaded = load_model(net.model(net.Exp(net.Tanh(net.input(4, 64)))))
  program = import_model(loaded)
  (candidate, *_) = (c for c in find_candidates(program).candidates if len(c.nodes) == 2)
  result = stand_ins.found(2.0)
  outcome = Outcome(candidate.region, (candidate,), 40.0, result)
  return loaded, program, candidate, outcome


def times_by(monkeypatch, timed):
  """Regions are timed by ``timed``, nothing is made ahead or in processes, and there are no siblings."""
  monkeypatch.setattr(realise, "tuned", timed)
  monkeypatch.setattr(realise, "available_cores", lambda: 2)
  monkeypatch.setattr(realise, "kind_of", lambda o, target: "row")
  monkeypatch.setattr(realise, "with_siblings", lambda loaded, program, chosen, *rest: (chosen, {}))
  monkeypatch.setattr(ahead.Ahead, "soon", lambda self, some: None)


class Clock:
  """Seconds that only tests let pass, but for a microsecond a look: what a machine takes is no part."""

  def __init__(self, monkeypatch):
    self.now = 1000.0
    for module in (realise, deadline, exploring, arriving):
      monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self.looked_at))

  def looked_at(self):
    self.now += 1e-6
    return self.now


def nodes(*names):
  return frozenset(names)


def test_the_choice_is_by_what_is_expected(monkeypatch):
  """A region that wins by the margin is not cut where its first half wins by more."""
  net = Net(seed=3, opset=18)
  x = net.input(4, 64)
  normed = net.Div(x, net.Sqrt(net.ReduceMean(net.Mul(x, x), [-1])))
  model = net.model(net.MatMul(normed, net.weight(64, 48)))
  *norm, product = [n.name for n in model.graph.node]
  times = {**dict.fromkeys(norm, 3.0), product: 65.0}
  ours = {nodes(*norm): 2.0, nodes(*norm, product): 56.0}
  assert chosen_nodes(monkeypatch, model, times, ours, 0.2) == {nodes(*norm, product)}
  ours[nodes(*norm, product)] = 67.5
  assert chosen_nodes(monkeypatch, model, times, ours, 0.2) == {nodes(*norm)}


@pytest.mark.parametrize(("us", "margin", "wins"), [(4.5, 0.2, False), (3.9, 0.2, True), (4.5, 0.05, True)])
def test_a_region_wins_by_the_margin_against_what_disappears(monkeypatch, us, margin, wins):
  """Others still read the first node: only the second one's time is saved."""
  net = Net(seed=3, opset=18)
  read = net.Exp(net.input(4, 64))
  model = net.model(net.MatMul(read, net.weight(64, 48)), net.Erf(read))
  first, second, _ = (n.name for n in model.graph.node)
  times = dict.fromkeys((n.name for n in model.graph.node), 5.0)
  found = chosen_nodes(monkeypatch, model, times, {nodes(first, second): us}, margin)
  assert found == ({nodes(first, second)} if wins else set())


def test_regions_that_save_the_same_stay_in_order(monkeypatch):
  """Sums of the same times, in the order of a set of names: they differ in the last bit, if they are sums."""
  net = Net(seed=3, opset=18)
  x = net.input(4, 64)
  for _ in range(12):
    x = net.Tanh(net.Mul(net.Exp(net.Neg(x)), net.Sigmoid(x)))
  loaded = load_model(net.model(x))
  program = import_model(loaded)
  monkeypatch.setattr(realise, "tuned", lambda _, o, *rest, **more: compiled(o))
  node_us = {
    n.name: {"Neg": 3.9, "Exp": 2.3, "Mul": 8.5, "Sigmoid": 8.4}.get(n.op_type, 4.1) for n in program.nodes
  }
  found = [c for c in find_candidates(program).candidates if len(c.nodes) == 5 and len(c.outputs) == 1]
  (key,) = {
    c.region.key for c in found if {n.op_type for n in program.nodes if n.name in c.nodes} >= {"Neg", "Exp"}
  }
  same = tuple(c for c in found if c.region.key == key)
  result = stand_ins.found(0.5)
  outcomes = {key: Outcome(same[0].region, same, 0.0, result)}
  chosen, _ = realise.Realisation(
    loaded, program, outcomes, node_us, H200, margin=0.2, measure=False, tries=1
  ).run()
  place = {n.name: i for i, n in enumerate(program.nodes)}
  at = [min(place[n] for n in c.nodes) for c, _ in chosen]
  assert len(at) == 12 and at == sorted(at)


def test_what_is_chosen_has_time_to_be_compiled(monkeypatch):
  """A choice that takes all its time (many regions of the same gain) had left none: all were late."""
  net = Net(seed=3, opset=18)
  model = net.model(net.Exp(net.Tanh(net.input(4, 64))))
  loaded = load_model(model)
  program = import_model(loaded)
  monkeypatch.setattr(realise, "tuned", lambda _, o, *rest, **more: compiled(o))
  choose, asked, clock = realise.choose, [], Clock(monkeypatch)

  def slow(*given, **more):
    clock.now = max(clock.now, given[-1])
    asked.append(given[-1])
    return choose(*given[:-1], **more)

  monkeypatch.setattr(realise, "choose", slow)
  (candidate, *_) = (c for c in find_candidates(program).candidates if len(c.nodes) == 2)
  outcome = Outcome(candidate.region, (candidate,), 40.0, stand_ins.found(2.0))
  ends = Ends(clock.now + 6)
  chosen, _ = realise.Realisation(
    loaded, program, {candidate.region.key: outcome}, dict.fromkeys(candidate.nodes, 20.0), H200,
    margin=0.2, measure=False, tries=1, ends=ends,
  ).run()  # fmt: skip
  assert asked and len(chosen) == 1 and not ends.over


def test_instances_are_checked_as_soon_as_a_region_was_timed(monkeypatch):
  """At the end there may be no time for it, and everything that was timed would be refused."""
  loaded, program, candidate, outcome = one_pair()
  asked = []

  class Checks:
    def verdicts(self, instances, chosen):
      asked.append((tuple(instances), chosen))
      return (None,) * len(instances)

    def refused(self, chosen, ends):
      assert asked, "only at the end"
      return {}

  def timed(loaded, o, *rest, **more):
    return replace(compiled(o), measured=Measured(2.0, 40.0, 1, ()))

  times_by(monkeypatch, timed)
  node_us = dict.fromkeys(candidate.nodes, 20.0)
  chosen, _ = realise.Realisation(
    loaded, program, {candidate.region.key: outcome}, node_us, H200, margin=0.0, measure=True, tries=1,
    instances=Checks(),
  ).run()  # fmt: skip
  assert [c for c, _ in chosen] == [candidate] and asked == [
    ((candidate,), outcome.result.candidates[0].candidate)
  ]


@pytest.mark.parametrize("reserved_s", [0.0, 1.0])
def test_what_was_timed_is_checked_although_timing_ended_late(monkeypatch, reserved_s):
  """A look that was under way may go on behind the end; what the check needs is still there then."""
  loaded, program, candidate, outcome = one_pair()
  asked, clock = [], Clock(monkeypatch)

  class Checks:
    def verdicts(self, instances, chosen):
      deadline.check()
      raise AssertionError("there was time")

    def refused(self, chosen, ends):
      asked.append(ends.seconds_left)
      late = Rejection("BUDGET", "late", ())
      return {o.region.key: replace(o, compiled=None, rejection=late) for _, o in chosen if ends.over}

  def timed(loaded, o, *rest, **more):
    clock.now = ends.at + 0.3 + reserved_s  # also behind the end of the checks
    return replace(compiled(o), measured=Measured(2.0, 40.0, 1, ()))

  times_by(monkeypatch, timed)
  ends = Ends(clock.now + 8.0)
  chosen, found = realise.Realisation(
    loaded, program, {candidate.region.key: outcome}, dict.fromkeys(candidate.nodes, 20.0), H200,
    margin=0.0, measure=True, tries=1, instances=Checks(), ends=ends, checks=Ends(ends.at + reserved_s),
  ).run()  # fmt: skip
  assert ends.over and asked
  assert [c for c, _ in chosen] == ([candidate] if reserved_s else [])
  assert reserved_s or found[candidate.region.key].rejection.code == "BUDGET"


def test_predicted_regions_are_compiled_side_by_side(monkeypatch):
  """Each of two waits until the other one is at work; their instances are asked about at once."""
  net = Net(seed=3, opset=18)
  x = net.Exp(net.Tanh(net.input(4, 64)))
  weight = net.weight(64, 64)
  model = net.model(net.Sigmoid(net.Neg(net.MatMul(x, weight))))
  loaded = load_model(model)
  program = import_model(loaded)
  product = next(n.name for n in program.nodes if n.op_type == "MatMul")
  pairs = [c for c in find_candidates(program).candidates if len(c.nodes) == 2 and product not in c.nodes]
  assert len(pairs) == 2
  both, asked = threading.Barrier(2), []

  class Checks:
    def verdicts(self, instances, chosen):
      asked.extend(instances)
      return (None,) * len(instances)

    def refused(self, chosen, ends):
      assert sorted(map(id, asked)) == sorted(id(c) for c, _ in chosen), "only at the end"
      return {}

  def waiting(loaded, o, *rest, **more):
    both.wait(timeout=60)
    return compiled(o)

  monkeypatch.setattr(realise, "tuned", waiting)
  monkeypatch.setattr(realise, "available_cores", lambda: 2)
  result = stand_ins.found(2.0)
  outcomes = {c.region.key: Outcome(c.region, (c,), 40.0, result) for c in pairs}
  node_us = {n: 20.0 for c in pairs for n in c.nodes}
  chosen, found = realise.Realisation(
    loaded, program, outcomes, node_us, H200, margin=0.2, measure=False, tries=1, instances=Checks()
  ).run()
  assert {c.nodes for c, _ in chosen} == {c.nodes for c in pairs}
  assert not any(o.rejection for o in found.values())
