"""Numbers with wgmma for packed weights: the code generator takes them; who has none."""

import pytest
from packed_models import norm, product
from small_models import region_of, search_region

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.errors import RejectionError
from mirage_onnx.superopt.widened_numbers import widened_points
from mirage_onnx.target import H100
from mirage_onnx.targets import get_target


def points(model, keep=1000, target=H100):
  region = region_of(model)
  found = (c.candidate.ugraph for c in search_region(region).candidates)
  graph = next(g for g in found if len(g.kernels) == 1)
  tensors = {t.name: t for t in graph.tensors}
  return region, graph, widened_points(graph.kernels[0], tensors, region.extents, target, keep)


@pytest.mark.parametrize("how", [{}, {"rows": 77, "n": 192}, {"rows": 256, "bits": 8, "block": 128}])
def test_the_code_generator_takes_them(how):
  region, graph, found = points(product(**{"rows": 128, "k": 512, "n": 256, **how}))
  times = [us for us, _ in found]
  assert len(found) > 5 and times == sorted(times) and times[0] > 1.0
  refused = []
  for _, params in found[::3]:
    try:
      source = emit_kernel(graph, graph.kernels[0], params, region.extents, H100)
      assert "widen_tile" in source.text and source.smem_bytes <= H100.smem_bytes
    except RejectionError as error:
      refused.append(error.rejection)
  assert refused == []


def test_the_best_few():
  every, few = (points(product(rows=128, k=512, n=256), keep)[2] for keep in (1000, 3))
  assert few == every[:3]


@pytest.mark.parametrize(
  "model",
  [
    lambda: product(rows=16, k=512, n=256),  # few rows stream
    lambda: norm(64, 512, 256),  # operand B is computed
    lambda: product(rows=64, k=480, n=256),  # a depth that no step divides
  ],
)
def test_who_has_none(model):
  assert points(model())[2] == ()


def test_a_gpu_without_wgmma():
  assert points(product(rows=128, k=512, n=256), target=get_target("a100"))[2] == ()
