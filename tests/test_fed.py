"""A product whose copies a warp of its own makes, to the end: plan, library, an emulated run."""

from dataclasses import replace

import pytest
from altered_models import bundle_of, with_bundle
from small_models import Net, check_kernels, feeds

import mirage_onnx
from mirage_onnx import judging
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import KernelParams
from mirage_onnx.superopt import timed_numbers


@pytest.fixture(params=[(1, 1), (2, 2)], ids=["one team", "two teams that share"])
def fed(monkeypatch, request):
  """Programs with such numbers turn out the fastest."""
  found, (teams, sharing) = [], request.param

  def points(kernel, tensors, extents, target, count, counted):
    if len(kernel.grid) != 2 or kernel.loop is None:
      return ()
    own = {a: 128 if a == tensors[kernel.saves[0].tensor].axes[-1] else 64 for a in kernel.grid}
    tile = tuple(min(own[a], extents[a]) for a in kernel.grid)
    return ((1.0, KernelParams(tile, 1, 64, 4, 3, WGMMA.name, teams=teams, sharing=sharing)),)

  def timed(region, result, target):
    every = timed_numbers.with_warpgroups(region, result, target).candidates
    own = [v for v in every if any(p.teams for p in v.candidate.params)]
    found.extend(own)
    return replace(result, candidates=tuple(own) or result.candidates)

  monkeypatch.setattr(timed_numbers, "product_points", points)
  monkeypatch.setattr(judging, "as_expected", timed)
  return found


def test_linear_with_an_epilogue(fed, rng, tmp_path):
  net = Net(seed=3)
  x, w, b = net.input(256, 192), net.weight(192, 256), net.weight(256)
  model = net.model(net.Add(net.Tanh(net.Add(net.MatMul(x, w), b)), net.input(256, 256)))
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert fed
  check_kernels(model, result, feeds(model, rng))
  (plan,) = bundle_of(result.model, tmp_path).plans
  assert " t:0:256:192:192:64:i" in plan and plan.count(" t:0:") == 2
  # One row more than there is: the run is refused before anything is launched.
  with pytest.raises(Exception, match="tensor map has 98688 bytes, there are 98304"):
    check_kernels(model, replace(result, model=_with_more_rows(result.model, tmp_path)), feeds(model, rng))


def _with_more_rows(model, folder):
  bundle = bundle_of(model, folder)
  plans = (bundle.plans[0].replace("t:0:256:", "t:0:257:"),)
  return with_bundle(model, replace(bundle, plans=plans))
