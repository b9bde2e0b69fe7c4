"""Times of kernels at many sizes: each is worked out once."""

from dataclasses import replace

import numpy as np
from recorded_programs import recorded_graph
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import KernelParams
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.target import H200
from mirage_onnx.tune import at_sizes
from mirage_onnx.tune.declared_sizes import declared_sizes
from mirage_onnx.tune.known_sizes import unpredicted_at


def test_a_time_is_asked_once(monkeypatch):
  graph, asked = recorded_graph("lora"), []

  def us(graph, kernel, extents, params, target):
    asked.append((kernel.name, params, dict(extents)))
    return float(len(asked))

  monkeypatch.setattr(at_sizes, "lowered_us", us)
  once, (kernel,) = at_sizes.lowered_once(), graph.kernels
  params = KernelParams((16, 16), loop_tile=16)
  sizes = {"a0": 8, "a1": 64, "a2": 64, "a3": 16}
  wide = replace(params, warps=8)
  times = [once(graph, kernel, at, p, H200) for p in (params, wide) for at in (sizes, {**sizes, "a0": 16})]
  assert times == [1.0, 2.0, 3.0, 4.0]
  assert [once(graph, kernel, {**sizes}, p, H200) for p in (params, wide)] == [1.0, 3.0]
  assert len(asked) == 4
  assert (
    at_sizes.lowered_once()(graph, kernel, sizes, params, H200) == 5.0
  )  # another question, nothing is kept


def test_nodes_are_timed_at_points_that_differ_for_a_region():
  """A size of another part of the model makes no point more; what is found is as at all of them."""
  net = Net(np.float16)
  x, y = net.input("tokens", 64), net.input("pixels", 64)
  program = import_model(load_model(net.model(net.Exp(net.Tanh(x)), net.Exp(net.Tanh(y)))))
  declared = declared_sizes(program, {})
  found = find_candidates(program, None, declared.typical).candidates
  one = next(c for c in found if "tokens" in str(c.region.given[0].tensor.shape))
  asked = []

  def node_us(k):
    asked.append(k)
    return {n: float(declared.points[k]["tokens"]) for n in one.nodes}

  sized = at_sizes.sized_instance(one, program, declared.points, node_us)
  assert len(declared.points) == 9 and len(asked) == len(sized) == 3
  assert [(s.sizes, s.baseline_us) for s in sized] == [(f"tokens={n}", 2.0 * n) for n in (1, 16, 256)]


def test_a_part_says_what_the_whole_says_of_its_nodes():
  net = Net(np.float16)
  x, y = net.input("tokens", 4096), net.input("pixels", 1 << 20)
  made = net.Exp(net.Tanh(x)), net.Exp(net.Tanh(y))
  program = import_model(load_model(net.model(*made)))
  points = declared_sizes(program, {"tokens": (1, 64), "pixels": (1, 1 << 12)}).points
  whole = unpredicted_at(program, points, H200)
  assert len(whole.nodes) == 2 and all("pixels=4096" in why for why in whole.nodes.values())
  for names in ([n.name for n in program.nodes if n.outputs[0] in some] for some in made):
    part = unpredicted_at(program, points, H200, names)
    assert part.nodes == {n: why for n, why in whole.nodes.items() if n in names}
