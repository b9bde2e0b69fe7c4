"""The choice of regions equals the best of all choices, and respects who else reads a value."""

import random
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize
from small_models import Net, layers_with_a_mask

from mirage_onnx.choosing import partition, small_choice
from mirage_onnx.choosing.partition import choose
from mirage_onnx.choosing.small_choice import least_cost
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates


def gone(program, used):
  """Nodes that nobody needs when ``used`` are replaced (the greatest such set)."""
  yielded = {o for c in used for o in c.outputs}
  read = {i.tensor.name for c in used for i in c.region.inputs}
  readers = program.consumers()
  found = {n for c in used for n in c.nodes}
  while True:
    needed = {
      n.name
      for n in program.nodes
      if n.name in found
      for o in n.outputs
      if o not in yielded and (o in program.outputs or o in read or set(readers.get(o, ())) - found)
    }
    if not needed:
      return found
    found -= needed


def gain(
  program, used, all_, times,
  node_us,
):  # fmt: skip
  """Microseconds saved, or None for a choice that yields a tensor twice."""
  picked = [all_[i] for i in used]
  outputs = [o for c in picked for o in c.outputs]
  if len(outputs) != len(set(outputs)):
    return None
  saved = sum(node_us[n] for n in gone(program, picked))
  return saved - sum(times[i] for i in used)


def is_acyclic(program, used):
  """Whether the rewritten graph has an order: by running it, one node or region at a time."""
  replaced = {o for c in used for o in c.outputs}
  dead = gone(program, used)
  todo = [({i.tensor.name for i in c.region.inputs}, set(c.outputs)) for c in used]
  todo += [(set(n.inputs), set(n.outputs) - replaced) for n in program.nodes if n.name not in dead]
  made = {o for _, outputs in todo for o in outputs}
  while todo:
    ready = [x for x in todo if not x[0] & made]
    if not ready:
      return False
    for inputs, outputs in ready:
      todo.remove((inputs, outputs))
      made -= outputs
  return True


def best_gain(
  program, some, times,
  node_us,
):  # fmt: skip
  best = 0.0
  for count in range(1, len(some) + 1):
    for used in combinations(range(len(some)), count):
      g = gain(program, used, some, times, node_us)
      if g is not None and g > best and is_acyclic(program, [some[i] for i in used]):
        best = g
  return best


def random_program(pick):
  """A DAG of elementwise functions, reductions, contractions and barriers, with shared values."""
  net = Net()
  values = [net.input(8, 64), net.input(8, 64)]
  kinds = ["Add", "Mul", "Sub", "Exp", "Tanh", "Abs", "mean", "linear", "barrier"]
  for kind in pick.choices(kinds, [3, 3, 2, 3, 2, 2, 2, 1, 1], k=pick.randint(4, 9)):
    x, y = pick.choice(values[-4:]), pick.choice(values)
    if kind == "mean":
      values.append(net.Sub(x, net.ReduceMean(x, [-1])))
    elif kind == "linear":
      values.append(net.MatMul(x, net.weight(64, 64)))
    elif kind == "barrier":
      values.append(net.CumSum(x, net.constant(1, np.int64)))
    else:
      values.append(getattr(net, kind)(*(x, y)[: 2 if kind in ("Add", "Mul", "Sub") else 1]))
  read = {i for n in net.nodes for i in n.input}
  outputs = [n.output[0] for n in net.nodes if n.output[0] not in read]
  outputs += [pick.choice([n.output[0] for n in net.nodes])]
  return import_model(load_model(net.model(*dict.fromkeys(outputs))))


def drawn(seed):
  """A program, its candidates, and times of both."""
  pick = random.Random(seed)
  program = random_program(pick)
  found = list(find_candidates(program).candidates)
  times = [pick.randint(1, 60) / 4 for _ in found]
  node_us = {n.name: pick.randint(0, 20) / 2 for n in program.nodes}
  return program, found, times, node_us


def check_choice(seed, most):
  """The gain of what is chosen, of at most ``most`` candidates, is that of the best subset."""
  pick = random.Random(seed)
  program = random_program(pick)
  found = list(find_candidates(program).candidates)
  some = pick.sample(found, min(len(found), most))
  times = [pick.randint(1, 60) / 4 for _ in some]
  node_us = {n.name: pick.randint(0, 20) / 2 for n in program.nodes}
  chosen = choose(program, some, times, node_us)
  got = gain(program, chosen, some, times, node_us)
  assert is_acyclic(program, [some[i] for i in chosen])
  assert got == pytest.approx(best_gain(program, some, times, node_us), abs=0.05)


@settings(max_examples=30)
@example(10525)  # a circle through a node that a third region may take away
@given(st.integers(0, 10**6))
def test_best_of_all_choices(seed):
  check_choice(seed, 12)


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_the_gain_of_trying_is_that_of_the_solver(seed):
  pick = random.Random(seed)
  program = random_program(pick)
  found = list(find_candidates(program).candidates)
  some = pick.sample(found, min(len(found), 14))
  times = [pick.randint(1, 60) / 4 for _ in some]
  node_us = {n.name: pick.randint(0, 20) / 2 for n in program.nodes}
  pairs = [(n.name, pick.choice(program.nodes).name) for n in pick.sample(program.nodes, 2)]
  alone = {n: (p, pick.choice([0.1, 0.5, 3.0])) for n, p in pairs if n != p}
  gains, answers = [], []
  for most in (10**9, -1):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(small_choice, "MOST", most)
      patch.setattr(partition, "least_cost", lambda *a: answers.append(least_cost(*a)) or answers[-1])
      used = choose(program, some, times, node_us, alone)
    assert is_acyclic(program, [some[i] for i in used])
    left = gone(program, [some[i] for i in used])
    lone = sum(us for n, (p, us) in alone.items() if p in left and n not in left)
    gains.append(gain(program, used, some, times, node_us) - lone)
  assert gains[0] == pytest.approx(gains[1], abs=0.05)
  assert not some or answers[-1] is None
  parents = {p for p, _ in alone.values()}
  pays = all(us <= node_us[p] for p, us in alone.values()) and len(parents) == len(alone)
  assert not some or not pays or answers[0] is not None


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.integers(0, 10**9))
def test_best_of_all_choices_many_times(seed):
  check_choice(seed, 12)


def gated_layers(net, layers):
  """A stack of norms and gated projections, its candidates, and times that favour the large ones."""
  x = net.input(1, 64)
  for _ in range(layers):
    y = net.rms(x, net.weight(64))
    gate, up = (net.MatMul(y, net.weight(64, 64)) for _ in range(2))
    x = net.Add(x, net.MatMul(net.Mul(net.Mul(gate, net.Sigmoid(gate)), up), net.weight(64, 64)))
  program = import_model(load_model(net.model(x)))
  found = find_candidates(program).candidates
  return program, found, [1.0 + 0.1 * len(c.nodes) for c in found], {n.name: 2.0 for n in program.nodes}


@pytest.mark.parametrize("layers", [1, 3])
def test_windows_lose_next_to_nothing(net, layers, monkeypatch):
  """By windows, and as one integer program."""
  program, found, times, node_us = gated_layers(net, layers)
  gains = []
  for whole in (len(found), 1):
    monkeypatch.setattr(partition, "WHOLE", whole)
    monkeypatch.setattr(partition, "WINDOW", 70)
    used = choose(program, found, times, node_us)
    assert is_acyclic(program, [found[i] for i in used])
    gains.append(gain(program, used, found, times, node_us))
  assert len(found) > 70 or layers == 1
  assert gains[0] is not None and gains[1] is not None
  assert 0.98 * gains[0] <= gains[1] <= gains[0] + 0.05


def test_a_rough_choice_is_nearly_as_good(net, monkeypatch):
  program, found, times, node_us = gated_layers(net, 6)
  best = gain(program, choose(program, found, times, node_us), found, times, node_us)
  monkeypatch.setattr(partition, "WINDOW", 70)
  real, calls = optimize.milp, []
  monkeypatch.setattr(optimize, "milp", lambda *a, **k: calls.append(k["options"]) or real(*a, **k))
  used = choose(program, found, times, node_us, rough=True)
  assert is_acyclic(program, [found[i] for i in used])
  assert 0.95 * best <= gain(program, used, found, times, node_us) <= best + 0.05
  assert {c["mip_rel_gap"] for c in calls} == {partition.ROUGH}


def test_layers_with_a_mask_in_common_are_one_problem_of_a_rough_choice(net, monkeypatch):
  """Each layer's regions may compute the mask again; the windows of equal layers are solved once."""
  calls, real = [], optimize.milp
  program, found, node_us = layers_with_a_mask(net)
  times = [sum(node_us[n] for n in sorted(c.nodes)) * (0.5 + 0.3 / len(c.nodes)) for c in found]
  monkeypatch.setattr(partition, "WINDOW", 3 * len(found) // 16)
  monkeypatch.setattr(optimize, "milp", lambda *a, **k: calls.append(1) or real(*a, **k))
  used = choose(program, found, times, node_us, rough=True)
  assert 0 < len(calls) < 8
  best = choose(program, found, times, node_us)
  assert gain(program, used, found, times, node_us) >= 0.97 * gain(program, best, found, times, node_us)


def test_windows_where_the_whole_is_not_proven(net, monkeypatch):
  """The solver's time ends before it has found anything: what windows find is taken."""
  program, found, times, node_us = gated_layers(net, 3)
  real, calls = optimize.milp, []

  def first_ends_early(*args, **kwargs):
    calls.append(real(*args, **kwargs))
    if len(calls) == 1:
      calls[0].x, calls[0].status = None, 1
    return calls[-1]

  best = gain(program, choose(program, found, times, node_us), found, times, node_us)
  monkeypatch.setattr(optimize, "milp", first_ends_early)
  monkeypatch.setattr(partition, "WINDOW", 40)
  got = gain(program, choose(program, found, times, node_us), found, times, node_us)
  assert len(calls) > 1
  assert 0.9 * best <= got <= best + 0.05


@settings(max_examples=20)
@example(10525)
@given(st.integers(0, 10**6))
def test_without_any_time_the_choice_is_at_least_a_greedy_one(seed):
  """A solver that never finds anything: what is chosen can be rewritten, and gains where one region does."""
  program, found, times, node_us = drawn(seed)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(small_choice, "MOST", -1)
    patch.setattr(optimize, "milp", lambda *a, **k: SimpleNamespace(status=1, x=None))
    used = choose(program, found, times, node_us)
  assert is_acyclic(program, [found[i] for i in used])
  alone = [gain(program, [i], found, times, node_us) for i in range(len(found))]
  assert gain(program, used, found, times, node_us) >= max([0.0, *alone]) - 0.05


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_small_windows_make_a_choice_that_can_be_rewritten(seed):
  program, found, times, node_us = drawn(seed)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(partition, "WHOLE", 0)
    patch.setattr(partition, "WINDOW", 4)
    used = choose(program, found, times, node_us)
  got = gain(program, used, found, times, node_us)
  assert got is not None and got >= -0.05
  assert is_acyclic(program, [found[i] for i in used])


class Kept(dict):
  """Of any run."""

  put = dict.__setitem__


def test_a_proven_choice_is_solved_once(monkeypatch):
  """A later run takes it, unless it is no solution of these rows: a file can be edited."""
  monkeypatch.setattr(small_choice, "MOST", -1)
  pick = random.Random(3)
  program = random_program(pick)
  found = list(find_candidates(program).candidates)
  node_us = {n.name: pick.randint(1, 20) / 2 for n in program.nodes}
  times, kept, solved = [0.5] * len(found), Kept(), []
  monkeypatch.setattr(optimize, "milp", lambda *a, milp=optimize.milp, **k: solved.append(1) or milp(*a, **k))
  want = choose(program, found, times, node_us, kept=kept)
  assert want and len(solved) == len(kept) - 1 > 0
  count = len(solved)
  del kept[next(k for k, v in kept.items() if "chosen" in v)]
  assert choose(program, found, times, node_us, kept=kept) == want and len(solved) == count
  del kept[next(k for k, v in kept.items() if "chosen" in v)]
  everything = max(max(v["ones"]) for v in kept.values())
  for wrong in ({"ones": [*range(everything + 1)]}, {"ones": [10**9]}, {"ones": "all"}, {}):
    kept.update(dict.fromkeys(kept, wrong))
    assert choose(program, found, times, node_us, kept=kept) == want
  assert len(solved) == 5 * count
  assert choose(program, found, [9.0] * len(found), node_us, kept=kept) != want


def chain():
  net = Net()
  y = net.Mul(net.Exp(net.Add(net.input(8, 64), net.input(8, 64))), 2.0)
  program = import_model(load_model(net.model(y)))
  return program, list(find_candidates(program).candidates)


def test_nothing_to_choose_from():
  program, _ = chain()
  assert choose(program, [], [], {}) == ()


def test_a_loss_is_not_chosen():
  program, found = chain()
  node_us = {n.name: 1.0 for n in program.nodes}
  assert choose(program, found, [100.0] * len(found), node_us) == ()
  assert choose(program, found, [0.1] * len(found), node_us) != ()


def test_of_equal_gains_the_fewer_nodes():
  program, found = chain()
  whole = next(c for c in found if len(c.nodes) == 3)
  node_us = {n.name: 1.0 for n in program.nodes}
  assert choose(program, [whole, whole], [1.0, 1.0], node_us) in ((0,), (1,))


def test_a_value_needed_elsewhere_keeps_its_node(net):
  """The first node's result is also read by a barrier: its time is not saved."""
  total = net.Add(net.input(8, 64), net.input(8, 64))
  y = net.Mul(net.Exp(total), 2.0)
  other = net.Gather(total, [0])
  program = import_model(load_model(net.model(y, other)))
  whole = [c for c in find_candidates(program).candidates if c.outputs == {y}]
  whole = [max(whole, key=lambda c: len(c.nodes))]
  assert len(whole[0].nodes) == 3
  add, *rest = (n.name for n in program.nodes)
  node_us = {add: 100.0, **dict.fromkeys(rest, 1.0)}
  assert choose(program, whole, [1.5], node_us) == (0,)
  assert choose(program, whole, [2.5], node_us) == ()


def test_a_value_that_a_region_reads_keeps_its_node(net):
  """Two regions share a stage: the one that does not recompute it must still find its value."""
  total = net.Add(net.input(8, 64), net.input(8, 64))
  a, b = net.Mul(net.Exp(total), 2.0), net.Mul(net.Tanh(total), 2.0)
  program = import_model(load_model(net.model(a, b)))
  found = find_candidates(program).candidates
  with_add = next(c for c in found if c.outputs == {a} and len(c.nodes) == 3)
  without = next(c for c in found if c.outputs == {b} and len(c.nodes) == 2)
  add, *rest = (n.name for n in program.nodes)
  node_us = {add: 100.0, **dict.fromkeys(rest, 1.0)}
  assert choose(program, [with_add, without], [5.0, 0.5], node_us) == (1,)


def test_overlapping_regions_save_the_shared_stage_together(net):
  total = net.Add(net.input(8, 64), net.input(8, 64))
  a, b = net.Mul(net.Exp(total), 2.0), net.Mul(net.Tanh(total), 2.0)
  program = import_model(load_model(net.model(a, b)))
  found = [c for c in find_candidates(program).candidates if len(c.nodes) == 3]
  found = [c for c in found if len(c.outputs) == 1]
  node_us = {n.name: 4.0 for n in program.nodes}
  assert [c.outputs for c in found] == [{a}, {b}]
  # each alone loses (5 > 4 + 4 is false, but 9 > 8), both together win 20 - 18
  assert choose(program, found, [9.0, 9.0], node_us) == (0, 1)
  assert choose(program, found[:1], [9.0], node_us) == ()


def test_two_regions_that_would_need_each_other(net):
  """Both may be replaced, but not both: each yields what the other reads."""
  x = [net.input(8, 64) for _ in range(8)]

  def stage(op, i):
    return getattr(net, op)(net.Add(net.Mul(x[i], x[i + 1]), net.Mul(x[i + 2], x[i + 3])))

  p, r = stage("Tanh", 0), stage("Exp", 4)
  q, s = net.Mul(p, net.Exp(r)), net.Add(p, net.Tanh(r))
  program = import_model(load_model(net.model(q, s)))
  found = find_candidates(program).candidates
  by_outputs = {c.outputs: c for c in found}
  both = [by_outputs[frozenset({p, q})], by_outputs[frozenset({r, s})]]
  node_us = {n.name: 4.0 for n in program.nodes}
  assert len(choose(program, both, [1.0, 1.0], node_us)) == 1
  chosen = choose(program, found, [1.0] * len(found), node_us)
  assert not {frozenset({p, q}), frozenset({r, s})} <= {found[i].outputs for i in chosen}


def test_of_equal_choices_more_nodes_disappear(net):
  """The sum costs nothing, as ONNX Runtime would have it in a norm; it is not left alone."""
  y = net.MatMul(net.input(1, 64), net.weight(64, 64))
  program = import_model(load_model(net.model(net.Add(y, net.input(1, 64)))))
  found = find_candidates(program).candidates
  used = choose(program, found, [1.0] * len(found), {program.nodes[0].name: 2.0})
  assert [len(found[i].nodes) for i in used] == [2]
  # A region without the sum is cheaper by less than the sum takes by itself.
  times = [1.0 + 0.5 * (len(c.nodes) > 1) for c in found]
  node_us, (product, added) = {program.nodes[0].name: 2.0}, (n.name for n in program.nodes)
  for us, sizes in ((0.4, [1]), (0.6, [2])):
    used = choose(program, found, times, node_us, {added: (product, us)})
    assert [len(found[i].nodes) for i in used] == sizes
