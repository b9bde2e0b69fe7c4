"""A question that was answered is not asked again; an answer that cannot be one is not taken."""

import random
from dataclasses import replace

import pytest
from small_models import Net

from mirage_onnx.choosing import kept_choice, partition
from mirage_onnx.choosing.partition import choose
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates


class Kept(dict):
  """Of any run."""

  put = dict.__setitem__


def some_program():
  """Norms and products whose values others read, too; two outputs."""
  net = Net()
  x, y = net.input(8, 64), net.input(8, 64)
  a = net.Add(x, y)
  b = net.Sub(a, net.ReduceMean(a, [-1]))
  c = net.Tanh(net.Mul(net.MatMul(b, net.weight(64, 64)), b))
  d = net.Sub(c, net.ReduceMean(net.Exp(c), [-1]))
  return import_model(load_model(net.model(net.Mul(d, a), net.Abs(net.Add(c, y)))))


@pytest.fixture
def asked(monkeypatch):
  """What ``choose`` is asked, what it keeps, and how often it has solved anything."""
  pick = random.Random(3)
  program = some_program()
  found = list(find_candidates(program).candidates)
  node_us = {n.name: pick.randint(1, 20) / 2 for n in program.nodes}
  solved, best = [], partition._best_choice
  monkeypatch.setattr(partition, "_best_choice", lambda *a: solved.append(1) or best(*a))
  return program, found, [0.5] * len(found), node_us, Kept(), solved


def test_answered_once(asked):
  program, found, times, node_us, kept, solved = asked
  want = choose(program, found, times, node_us, kept=kept)
  assert want == choose(program, found, times, node_us, kept=kept) and len(solved) == 1
  assert want == choose(program, found, times, node_us)  # without what is kept


def test_what_there_was_no_time_for_is_not_kept(asked, monkeypatch):
  """Windows of one size only: a run with more time may know better."""
  program, found, times, node_us, kept, solved = asked
  monkeypatch.setattr(partition, "WHOLE", 1)
  monkeypatch.setattr(partition, "WINDOW", 4)
  choose(program, found, times, node_us, until=0.0, kept=kept)
  assert not any("chosen" in v for v in kept.values())
  want = choose(program, found, times, node_us, kept=kept)
  assert len(solved) == 2 and any("chosen" in v for v in kept.values())
  assert want == choose(program, found, times, node_us, until=0.0, kept=kept) and len(solved) == 2


def test_everything_that_decides_is_part_of_the_question(asked):
  program, found, times, node_us, *_ = asked
  other = replace(found[0], outputs=found[0].outputs | {"x"})
  nodes = (replace(program.nodes[0], inputs=("other",)), *program.nodes[1:])
  alone = {program.nodes[1].name: (program.nodes[0].name, 1.0)}
  more = {**node_us, program.nodes[0].name: 77.0}
  asks = [
    (program, found, times, node_us, {}),
    (program, [other, *found[1:]], times, node_us, {}),
    (program, found, [0.25, *times[1:]], node_us, {}),
    (program, found, times, more, {}),
    (program, found, times, node_us, alone),
    (replace(program, nodes=nodes), found, times, node_us, {}),
    (replace(program, outputs=program.outputs[1:]), found, times, node_us, {}),
    (program, found[::-1], times, node_us, {}),
  ]
  assert len({kept_choice.question(*a) for a in asks}) == len(asks)
  assert kept_choice.question(*asks[0]) == kept_choice.question(*asks[0])


def test_an_edited_answer_is_not_taken(asked):
  program, found, times, node_us, kept, solved = asked
  want = choose(program, found, times, node_us, kept=kept)
  (name,) = (k for k, v in kept.items() if "chosen" in v)
  assert want and len(found) > 1
  twice = next([i, j] for i in range(len(found)) for j in range(i) if found[i].outputs & found[j].outputs)
  for wrong in ([10**9], [-1], "all", None, [want[0], want[0]], [True], sorted(twice), [*range(len(found))]):
    before = len(solved)
    kept[name] = {"chosen": wrong}
    assert choose(program, found, times, node_us, kept=kept) == want
    assert len(solved) == before + 1, wrong
  assert kept_choice.answered({"chosen": list(want)}, found, lambda chosen: False) is None
