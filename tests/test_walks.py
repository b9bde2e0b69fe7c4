"""Each of the walks reads down: a run builds nothing twice.

A model to its file (program, matches, plans, bodies, bundle), a region to its kernels, a µGraph to its text.
"""

import importlib
from collections import Counter

import pytest
from small_models import Net

import mirage_onnx


def three_layers():
  """Two equal layers and one of another size: three instances of two regions."""
  net = Net(seed=3)
  x = net.input(8, 512)
  for width in (512, 512, 640):
    x = net.Relu(net.MatMul(net.rms(x, net.weight(512)), net.weight(512, width)))
  return net.model(x)


#: What builds something -> what is built, by the arguments.
BUILT = {
  "mirage_onnx.pipeline:import_model": lambda loaded: "program",
  "mirage_onnx.pipeline:find_candidates": lambda program, *_: "matches",
  "mirage_onnx.rewrite.apply:plan_candidate": lambda region, *_: region.nodes,
  "mirage_onnx.rewrite.model:build_body": lambda nodes, replacement, *_: replacement.nodes,
  "mirage_onnx.rewrite.apply:write_bundle": lambda bundle: "bundle",
  "mirage_onnx.rewrite.apply:rewrite_model": lambda *_: "model",
  "mirage_onnx.codegen.emit:lowered": lambda graph, kernel, params, sizes, *_: (
    kernel,
    params,
    tuple(sorted(sizes.items())),
  ),
  "mirage_onnx.codegen.emit:text_of": lambda threads, *_: (
    threads.kernel,
    threads.params,
    tuple(sorted(threads.extents.items())),
  ),
  "mirage_onnx.compiler.compile:of_one": lambda text, name, target: (text, name),
}


@pytest.fixture
def built(monkeypatch):
  """How often what was built, by who builds it."""
  found = {place: Counter() for place in BUILT}

  def counting(place, right):
    def counted(*args, **more):
      found[place][BUILT[place](*args)] += 1
      return right(*args, **more)

    return counted

  for place in BUILT:
    module, name = place.split(":")
    module = importlib.import_module(module)
    monkeypatch.setattr(module, name, counting(place, getattr(module, name)))
  return found


def test_nothing_is_built_twice(built):
  result = mirage_onnx.optimize(three_layers(), target="h200", workers=1)
  assert len([n for n in result.model.graph.node if n.domain.startswith("ai.mirage")]) == 3
  assert all(places for places in built.values())
  twice = {place: [what for what, often in of.items() if often > 1] for place, of in built.items()}
  assert not any(twice.values()), twice
  assert len(built["mirage_onnx.rewrite.model:build_body"]) == 3
