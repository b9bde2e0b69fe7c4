"""Running on numpy arrays: what the µGraph says, whole or a part of the grid after the other."""

import numpy as np
import pytest
from goldens import GOLDENS

from mirage_onnx.graphs import host
from mirage_onnx.graphs.host import run_on_host
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.verify.interpret_steps import interpret_steps


def inputs(golden, rng):
  found = {}
  for i in golden.region.inputs:
    shape = tuple(int(d) for d in i.tensor.shape or ())
    found[i.tensor.name] = (rng.standard_normal(shape) / 4).astype(i.dtype.numpy)
  return found


@pytest.mark.parametrize("golden_graph", GOLDENS, ids=lambda g: g.name)
def test_parts_of_the_grid_make_the_whole(golden_graph, rng):
  region = golden_graph.region
  program = Candidate(golden_graph.ugraph, golden_graph.params)
  data = inputs(golden_graph, rng)
  whole, parts = (run_on_host(region, program, region.extents, data, most_elements=n) for n in (1 << 62, 512))
  want = interpret_steps(region, {n: x.astype(float) for n, x in data.items()}, rounded=False)
  for o in region.outputs:
    name = o.tensor.name
    assert whole[name].dtype == o.dtype.numpy
    assert np.array_equal(whole[name], parts[name])
    exact = want[name].reshape(whole[name].shape)
    error = np.linalg.norm(whole[name] - exact) / np.linalg.norm(exact)
    assert 0 < error < 2e-3


def test_a_large_kernel_is_run_in_parts(rng, monkeypatch):
  """The check above would hold if nothing were ever cut."""
  sizes = []
  real = host.interpret_ugraph

  def watched(domain, graph, params, extents, values):
    sizes.append(dict(extents))
    return real(domain, graph, params, extents, values)

  monkeypatch.setattr(host, "interpret_ugraph", watched)
  golden_graph = next(g for g in GOLDENS if g.name == "norm_linear")
  region = golden_graph.region
  program = Candidate(golden_graph.ugraph, golden_graph.params)
  data = inputs(golden_graph, rng)
  run_on_host(region, program, region.extents, data, most_elements=1 << 62)
  assert len(sizes) == 1
  run_on_host(region, program, region.extents, data, most_elements=1024)
  # 256 columns in tiles of 64: one tile at a time.
  assert [s["a1"] for s in sizes[1:]] == [64] * 4
