"""Loops over a cache of a fixed size end where a run says that it does."""

from dataclasses import replace

import numpy as np
import pytest
from cached_steps import cached_step
from emulated_gpu import EmulatedGpu

from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.compiler.candidates import Compiled, emit_candidate
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import H100
from mirage_onnx.tune.hard_inputs import hard_inputs
from mirage_onnx.tune.measure import Inputs, prepare
from mirage_onnx.tune.oracle import Oracle
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import sample_weights

ROOM = 2048
ENDS = "const int steps = seen < 1 ? 1 : at_most(seen, "


@pytest.fixture(scope="module")
def searched():
  """What attends, of two caches, and a program in parts of the keys and one of whole rows of them."""
  loaded = load_model(cached_step(2, 1, 4, 64, ROOM, rotary=False))
  found = find_candidates(import_model(loaded), replace(TIMED, reductions=True)).candidates
  region = next(c.region for c in found if c.outputs == {"y"})
  every = [v.candidate for v in search(region, H100, prover(region), space=space_of(region)).candidates]
  looped = [c for c in every if c.ugraph.kernels[0].loop]
  in_parts = [c for c in looped if c.ugraph.kernels[0].loop in c.ugraph.kernels[0].grid]
  whole = [c for c in looped if c not in in_parts and len(c.params) == 1]
  return (region, sample_weights(loaded, region)), in_parts[0], whole[0]


def with_numbers(candidate, tile, **numbers):
  """``tile``: of the keys, where they are shared out."""
  kernel, first = candidate.ugraph.kernels[0], candidate.params[0]
  own = tuple(tile if a == kernel.loop else n for a, n in zip(kernel.grid, first.tile, strict=True))
  return Candidate(candidate.ugraph, (replace(first, tile=own, **numbers), *candidate.params[1:]))


@pytest.mark.parametrize(
  ("part", "numbers"),
  [
    (0, {"tile": 128, "cluster": 1, "loop_tile": 32, "warps": 2, "stages": 2}),
    (0, {"tile": 256, "cluster": 2, "loop_tile": 32, "warps": 2, "stages": 3}),
    (1, {"tile": 1, "cluster": 1, "loop_tile": 64, "warps": 2, "stages": 3}),
    (1, {"tile": 1, "cluster": 4, "loop_tile": 32, "warps": 2, "stages": 2}),
  ],
  ids=["in parts", "in parts and ranks", "whole", "in ranks"],
)
def test_right_and_as_with_all_iterations(searched, monkeypatch, part, numbers):
  """At the first place and the last, at borders of steps and parts, for each sequence by itself; lengths that
  are none are taken as a full cache."""
  region, weights = searched[0]
  candidate = with_numbers(searched[1 + part], **numbers)
  rng, made = np.random.default_rng(0), []
  data = hard_inputs(region, weights, rng, 0)
  for early in (True, False):
    if not early:
      line = lambda self, writer: writer.line(f"const int steps = {self.steps};")  # noqa: E731
      monkeypatch.setattr(PiecesText, "declare_steps", line)
    sources = emit_candidate(candidate, region.extents, H100, "k")
    assert (ENDS in sources[0].text) == early
    gpu = EmulatedGpu()
    inputs = Inputs(gpu, region, data)
    compiled = Compiled(candidate, sources, ("",) * len(sources))
    made.append((gpu, inputs, *prepare(gpu, region, compiled, inputs)))
  (o,) = region.outputs
  for ends in ((0, ROOM - 1), (31, 32), (127, 128), (1300, 5), (256, 255), (-1, 2**31 - 1)):
    own = data | {"lengths": np.array(ends, np.int32)}
    found = []
    for gpu, inputs, replay, outputs in made:
      inputs.become(own)
      replay()
      found.append(gpu.get(outputs[o.name], region.shape(o.source), np.dtype(np.float16)).copy())
    np.testing.assert_array_equal(found[0].view(np.uint16), found[1].view(np.uint16), str(ends))
    if min(ends) >= 0 and max(ends) < ROOM:
      assert Oracle.of(region, own).complaint_of({o.tensor.name: found[0]}) is None, ends
