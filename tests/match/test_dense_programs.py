"""Small graphs in which everything reads everything: a bounded work, and every node is in a region."""

import time
from functools import partial

import numpy as np
import pytest
from onnx import TensorProto, helper
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.inspection.survey import survey_model
from mirage_onnx.ir.term import walk
from mirage_onnx.match import candidates
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.target import H200


def ladder(count=200):
  """Each of these reads the two before: 5 kB, whose regions took 4 s."""
  net = Net(np.float32)
  a, b = net.input(8, 64), net.input(8, 64)
  rng = np.random.default_rng(0)
  for _ in range(count):
    a, b = b, getattr(net, rng.choice(("Mul", "Add", "Sub", "Div", "Max")))(b, a)
  return net.model(b)


def gated(count=20):
  """Products, each added to any of those before: 4 kB, whose choice took 20 s."""
  net = Net(np.float32)
  known = [net.input(8, 64)]
  rng = np.random.default_rng(5)
  for _ in range(count):
    made = net.Tanh(net.Add(net.MatMul(known[-1], net.weight(64, 64)), net.weight(64)))
    known.append(net.Add(made, known[rng.integers(len(known))]))
  return net.model(known[-1])


def work(found):
  """The terms of all regions, each form once."""
  return sum(len(walk(r.terms)) for r in {c.region.text: c.region for c in found.candidates}.values())


def test_work_is_bounded_and_every_node_is_in_a_region(monkeypatch):
  program = import_model(load_model(ladder(60)))
  every = find_candidates(program)
  monkeypatch.setattr(candidates, "LEAST_WORK", 1000)
  monkeypatch.setattr(candidates, "WORK_PER_NODE", 16)
  few = find_candidates(program)
  assert work(every) > 3 * 1000
  assert work(few) < 1.3 * 1000  # the last of before the bound, and one in as many nodes as a region has
  assert {n for c in few.candidates for n in c.nodes} == {n for c in every.candidates for n in c.nodes}
  assert few.rejections == every.rejections == ()
  kept = {(c.nodes, c.outputs) for c in every.candidates}
  assert all((c.nodes, c.outputs) in kept for c in few.candidates)


def named(count=3000):
  """A model whose values that nobody reads have 3000 names of dimensions: 110 kB took 1.1 s."""
  model = gated(2)
  for k in range(count):
    model.graph.value_info.append(helper.make_tensor_value_info(f"v{k}", TensorProto.FLOAT, [f"d{k}", 3]))
  return model


@pytest.mark.parametrize("make", [ladder, partial(ladder, 400), gated, named])
def test_a_small_model_is_looked_at_soon(make):
  loaded = load_model(make())
  start = time.process_time()
  survey_model(loaded, H200)
  assert time.process_time() - start < 10  # 1.2 s on a core that does nothing else, 0.4 s of it imports
