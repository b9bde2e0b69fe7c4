"""Bundles: instances whose kernels and bodies agree share a plan, equal kernels an image."""

from dataclasses import replace

import pytest
from small_models import Net, region_of, search_region

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.custom_op.assemble import OWN_POOL, BundleBuilder
from mirage_onnx.custom_op.launch_plan import plan_candidate
from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.target import H200


def added(builder, region, kernels, key, target=None):
  """The number of the plan."""
  planned = plan_candidate(region, kernels.candidate, kernels.sources)
  return builder.add(region, kernels, planned, key, target=target)


def compiled(*widths):
  found = []
  for n in widths:
    net = Net()
    region = region_of(net.model(net.Relu(net.MatMul(net.input(8, 64), net.weight(64, n)))))
    candidates = [v.candidate for v in search_region(region).candidates]
    done, refused = compile_candidates(region, candidates, H200, keep=1)
    assert not refused
    found.append((region, done[0]))
  return found


@pytest.fixture(scope="module")
def pair():
  return compiled(32, 48)


def test_equal_regions_share_everything(pair):
  builder = BundleBuilder(H200)
  region, kernels = pair[0]
  assert [added(builder, region, kernels, "body") for _ in range(3)] == [0, 0, 0]
  bundle = builder.bundle()
  assert (len(bundle.cubins), len(bundle.plans)) == (1, 1)


def test_another_body_is_another_plan_over_the_same_image(pair):
  builder = BundleBuilder(H200)
  region, kernels = pair[0]
  assert [added(builder, region, kernels, key) for key in ("a", "b", "a")] == [0, 1, 0]
  bundle = builder.bundle()
  assert (len(bundle.cubins), len(bundle.plans)) == (1, 2)
  assert bundle.plans[0] == bundle.plans[1]


def test_another_region_is_another_image(pair):
  builder = BundleBuilder(H200)
  numbers = [added(builder, region, kernels, "") for region, kernels in pair]
  assert numbers == [0, 1]
  bundle = builder.bundle()
  assert len(bundle.cubins) == len(bundle.plans) == 2
  assert all(c[:4] == b"\x7fELF" for c in bundle.cubins)


def test_provenance_rebuilds_the_kernels(pair):
  builder = BundleBuilder(H200)
  region, kernels = pair[1]
  added(builder, region, kernels, "")
  (record,) = builder.bundle().provenance
  assert record["region"] == region.text
  assert record["target"] == "h200"
  assert parse_ugraph(str(record["ugraph"])) == kernels.candidate.ugraph
  assert record["params"] == [p.to_text() for p in kernels.candidate.params]
  assert [k["name"] for k in record["kernels"]] == [s.name for s in kernels.sources]


def test_kernels_are_named_by_their_region(pair):
  names = [s.name for region, k in pair for s in k.sources]
  assert names == [f"mugraph_{region.key}_k0" for region, _ in pair]


def test_compiling_again_gives_the_same_bytes(pair):
  (_, again), (_, first) = compiled(32)[0], pair[0]
  assert [c.image for c in again.cubins] == [c.image for c in first.cubins]


def test_refused_candidates_are_passed_over(pair):
  region, kernels = pair[0]
  good = kernels.candidate
  bad = replace(good, params=tuple(replace(p, warps=64) for p in good.params))
  done, refused = compile_candidates(region, [bad, good, good], H200, keep=1)
  assert [d.candidate for d in done] == [good]
  assert [r.code for r in refused] in (["EMIT_UNSUPPORTED"], ["SMEM"], ["LAYOUT"], ["SPILLS"])
  assert compile_candidates(region, [], H200, keep=1) == ([], [])


def test_plans_for_one_gpu_have_the_first_numbers(pair):
  """In a second builder to which the same is added; there are only so many of them."""
  own = replace(H200, suffix="sm90a_h200")
  instances = [
    (pair[0], "a", H200),
    (pair[0], "b", own),
    (pair[1], "a", H200),
    (pair[1], "b", own),
    (pair[0], "b", own),
  ]

  def numbers(builder):
    return [added(builder, *kernels, key, target) for kernels, key, target in instances]

  first = BundleBuilder(H200)
  assert numbers(first) == [0, 1, 2, 3, 1]
  second = BundleBuilder(H200, numbers=first.own_first())
  assert numbers(second) == [2, 0, 3, 1, 0]
  made, again = first.bundle(), second.bundle()
  assert again.plans == tuple(made.plans[k] for k in (1, 3, 0, 2))
  assert [p["region"] for p in again.provenance] == [made.provenance[k]["region"] for k in (1, 3, 0, 2)]
  most = [added(second, *pair[0], f"more {k}", own) for k in range(OWN_POOL)]
  assert [m is None for m in most] == [False] * (OWN_POOL - 2) + [True] * 2
  assert added(second, *pair[0], "more", H200)
