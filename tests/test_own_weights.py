"""Layers with one region and unlike weights, and inputs to the end of their type: what the original
computes without overflow, op by op in its own types, the kernels do too.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from small_models import run_model
from unlike_layers import GOLDEN, SAFE, instances, layers

import mirage_onnx
from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.importer import load_model
from mirage_onnx.ir import Candidate, KernelParams
from mirage_onnx.target import H200
from mirage_onnx.verify.instance_checks import check_instances
from mirage_onnx.verify.interpret_steps import interpret_steps
from mirage_onnx.verify.weights import ModelWeights, sample_weights

ROWS, DEPTH, WIDTH = 16, 128, 32
EDGE = 65504.0


def test_every_layer_is_finite_where_the_original_is(rng):
  """A scale of 60 beside one of 1; one channel at 30000 and a scale of 3. All three layers get kernels."""
  model = layers(1, 60, 3)
  x = rng.standard_normal((3, 16, 512)) * np.array([500, 500, 1000]).reshape(3, 1, 1)
  x[2, :, 7] = 30000
  feeds = dict(zip([i.name for i in model.graph.input], x.astype(np.float16), strict=True))
  result = mirage_onnx.optimize(model, target="h200", margin=-100.0)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  wants, outputs = run_model(model, feeds), session.run(None, feeds)
  launches = mirage_onnx.launches(session)
  assert len(launches) >= 3 and all(n >= 1 for n in launches.values())
  for want, got in zip(wants, outputs, strict=True):
    assert np.isfinite(want).all() and np.isfinite(got).all()
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2e-2, atol=2e-2)


@dataclass(frozen=True)
class Layer:
  """What is drawn of a layer and its input. ``spike``: of one channel, times the others' scale."""

  gamma: float
  spike: float
  tiny: bool
  inputs: str
  scale: float

  def scales(self):
    found = np.full(DEPTH, self.gamma)
    found[3] *= self.spike
    found[5:9] = 6e-8 if self.tiny else self.gamma
    return np.clip(found, -EDGE, EDGE)

  def input(self, rng):
    x = rng.standard_normal((ROWS, DEPTH)) * self.scale
    if self.inputs == "outlier channel":
      x[:, 3] = EDGE
    if self.inputs == "constant rows":
      x[0], x[1], x[-1] = 0.0, self.scale, EDGE
    if self.inputs == "denormals":
      x = np.round(x / self.scale) * 6e-8
    return np.clip(x, -EDGE, EDGE).astype(np.float16)


KINDS = ("normal", "outlier channel", "constant rows", "denormals")
LAYERS = st.builds(
  Layer,
  gamma=st.floats(-3, 3).map(lambda e: 10.0**e),
  spike=st.sampled_from([1.0, 1.0, 30.0, -100.0]),
  tiny=st.booleans(),
  inputs=st.sampled_from(KINDS),
  scale=st.floats(-8, 15).map(lambda e: 2.0**e),
)
PROGRAMS = {"early": GOLDEN.ugraph, "safe": SAFE}
PARAMS = (KernelParams(tile=(32, 16), loop_tile=64),)


@cache
def compiled():
  """Both programs in the emulator; without its checks it is fast, and theirs have their own tests."""
  extents = {"a0": DEPTH, "a1": WIDTH, "a2": ROWS}
  found = [emit_candidate(Candidate(g, PARAMS), extents, H200, n) for n, g in PROGRAMS.items()]
  return compile_kernels([kernel for kernels in found for kernel in kernels], checks=False)


def emulated(region, number, graph, arrays):
  """The output of the kernels, given arrays by the names of the model."""
  held = {}
  for i in region.inputs:  # in the order of axes that the program wants
    order = [i.axes.index(a) for a in graph.tensor(i.name).axes]
    held[i.name] = np.ascontiguousarray(arrays[i.tensor.name].transpose(order))
  (out,) = region.outputs
  held[out.name] = np.full((ROWS, WIDTH), np.nan, np.float16)
  compiled().run(held, [number])
  return held[out.name].astype(np.float64)


def check(drawn, seed):
  """Both programs on all layers; how many (layer, program) pairs were allowed, and how many not."""
  rng = np.random.default_rng(seed)
  model = layers(*(d.scales() for d in drawn), depth=DEPTH, width=WIDTH)
  loaded, counts = load_model(model), [0, 0]
  found = instances(model)
  assert len(found) == len(drawn)
  for number, graph in enumerate(PROGRAMS.values()):
    regions = [c.region for c in found]
    verdicts = check_instances(regions, graph, PARAMS, ModelWeights(loaded))
    for region, layer, refused in zip(regions, drawn, verdicts, strict=True):
      counts[refused is not None] += 1
      if refused is not None:
        continue
      x = next(i.tensor.name for i in region.inputs if not i.is_weight)
      arrays = {**sample_weights(loaded, region), x: layer.input(rng)}
      wide = {n: a.astype(np.float64) for n, a in arrays.items()}
      out = region.outputs[0].tensor.name
      exact, want = (interpret_steps(region, wide, rounded=r)[out] for r in (False, True))
      got = emulated(region, number, graph, arrays)
      defined = np.isfinite(want)
      assert np.isfinite(got[defined]).all(), (layer, number)
      # Products of denormals vanish in 16 bits, where a norm in fp32 comes first they do not: the
      # errors are those of the type's least number, and large of what is hardly more.
      for row in range(ROWS if layer.inputs != "denormals" else 0):
        at = defined[row]
        norm = np.linalg.norm(exact[row][at]) + 1e-4
        errors = [np.linalg.norm(y[row][at] - exact[row][at]) / norm for y in (got, want)]
        assert errors[0] <= 3 * errors[1] + 0.02, (layer, row, errors, number)
  return counts


def layer(gamma, inputs="normal", scale=500.0, spike=1.0):
  return Layer(gamma, spike, False, inputs, scale)


def test_the_checks_tell_layers_apart():
  """Of the two programs one is for scales up to 1 only."""
  assert check([layer(1.0), layer(60.0)], 0) == [3, 1]
  assert check([layer(3.0, "outlier channel")], 0) == [1, 1]


@settings(max_examples=6)
@example([layer(1.0), layer(1000.0, scale=2.0**15)], 1)
@example([layer(0.5, spike=30.0, inputs="constant rows"), layer(0.9, "outlier channel")], 2)
@given(st.lists(LAYERS, min_size=1, max_size=3), st.integers(0, 2**16))
def test_what_is_allowed_is_right(drawn, seed):
  check(drawn, seed)


@pytest.mark.slow
@settings(max_examples=60, phases=(Phase.generate,))
@given(st.lists(LAYERS, min_size=1, max_size=4), st.integers(0, 2**16))
def test_what_is_allowed_is_right_for_many(drawn, seed):
  check(drawn, seed)
