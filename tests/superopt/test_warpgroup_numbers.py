"""Numbers with wgmma: the code generator takes all of them; who has none."""

from dataclasses import replace

import numpy as np
import pytest

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.emulator import run_kernel
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate, parse_ugraph, ugraph_extents
from mirage_onnx.superopt.solved import AT_RUN_TIME, kernel_times
from mirage_onnx.superopt.warpgroup_numbers import OTHER_REGISTERS, warpgroup_points
from mirage_onnx.target import H100

#: As the search finds it: operand A is the weight, the layouts are those of a streaming kernel.
LINEAR = """ugraph 1
tensor i1 f16[a2,a0] input
tensor i0 f16[a1,a0] weight
tensor i2 f16[a1] weight
tensor o0 f16[a2,a1] output
kernel k0 grid=a1,a2 cluster=a0 loop=a0
  %0 = load i0 imap=a1,- cmap=a0 fmap=a0 : f16[a1,a0] loop A_frag
  %1 = load i1 imap=-,a2 cmap=a0 fmap=a0 : f16[a2,a0] loop B_frag
  %2 = matmul[a0] %0 %1 : f32[a1,a2] loop C_frag
  %3 = acc_sum %2 : f32[a1,a2] post C_frag
  %4 = red_sum %3 : f32[a1,a2] post shared
  %5 = load i2 imap=a1,- cmap=- fmap=- : f16[a1] post element
  %6 = cast %5 : f32[a1] post element
  %7 = add %4 %6 : f32[a1,a2] post element
  %8 = relu %7 : f32[a1,a2] post element
  %9 = cast %8 : f16[a1,a2] post element
  save o0 = %9 omap=a1,a2
"""
SIZES = {"a0": 768, "a1": 3072, "a2": 512}


def points(text=LINEAR, target=H100, keep=1000, **sizes):
  graph = parse_ugraph(text)
  tensors = {t.name: t for t in graph.tensors}
  return graph, warpgroup_points(graph.kernels[0], tensors, {**SIZES, **sizes}, target, keep)


@pytest.mark.parametrize("sizes", [{}, {"a2": 77}, {"a2": 197, "a0": 1000}, {"a1": 768, "a2": 128}])
def test_the_code_generator_takes_them(sizes):
  graph, found = points(**sizes)
  assert len(found) > 40
  times = [us for us, _ in found]
  assert times == sorted(times) and times[0] > 1.0
  refused = []
  for _, params in found[::7]:
    extents = ugraph_extents(graph, (params,), {**SIZES, **sizes})
    try:
      source = emit_kernel(graph, graph.kernels[0], params, extents, H100)
      assert "wgmma(F16{}" in source.text and "ptx::st_v4" in source.text
    except RejectionError as error:
      refused.append(error.rejection)
  assert refused == []


def test_accumulators_leave_registers_for_what_follows():
  """A thread of 16 warps has 128: with 96 accumulators the error function of results spills."""
  for _, p in points(a2=4096)[1]:
    accumulators = p.tile[0] * p.tile[1] // (32 * p.warps)
    assert accumulators + OTHER_REGISTERS <= min(255, H100.registers_per_sm // (32 * p.warps))


def test_the_best_few():
  every, few = points()[1], points(keep=5)[1]
  assert few == every[:5]


def test_the_one_formula_says_what_they_take():
  """Not that of streaming kernels, whose layouts the graph has; with rows that a run counts whole tiles."""
  graph, ((_, params), *_) = points()
  candidate = Candidate(graph, (params,), 0.0)

  def time_us(formula, runtime=()):
    ((_, us),) = kernel_times(candidate, SIZES, H100, formula, runtime)
    return us

  assert time_us(lambda *_: 5.0) == 5.0
  assert time_us(lowered_us) == lowered_us(graph, graph.kernels[0], SIZES, params, H100)
  assert time_us(lowered_us, ("a2",)) == pytest.approx(AT_RUN_TIME * time_us(lowered_us))


#: Rows of images: each has the same summands.
IMAGES = LINEAR
for old, new in (
  ("[a2,a0] input", "[a3,a2,a0] input"), ("o0 f16[a2,a1]", "o0 f16[a3,a2,a1]"),
  ("grid=a1,a2", "grid=a1,a2,a3"),
  ("imap=a1,- ", "imap=a1,-,- "), ("imap=-,a2 ", "imap=-,a2,a3 "), ("omap=a1,a2", "omap=a1,a2,a3"),
  ("f16[a2,a0] loop", "f16[a3,a2,a0] loop"), ("f32[a1,a2]", "f32[a1,a2,a3]"),
  ("f16[a1,a2] post", "f16[a1,a2,a3] post"),
):  # fmt: skip
  IMAGES = IMAGES.replace(old, new)


def test_rows_of_several_axes(rng):
  """A block has rows of one image; what they make of them is right, whose rows are no whole tiles."""
  sizes = {**SIZES, "a0": 128, "a1": 64, "a2": 72, "a3": 3}
  graph, found = points(IMAGES, **sizes)
  assert found and all(p.tile[2] == 1 and p.tile[1] >= 64 for _, p in found)
  assert points(IMAGES, **{**sizes, "a2": 3, "a3": 72})[1]  # whichever is the longest
  params = found[0][1]
  source = emit_kernel(graph, graph.kernels[0], params, ugraph_extents(graph, (params,), sizes), H100)
  assert "wgmma(F16{}" in source.text
  x, w, b = (rng.standard_normal(s).astype(np.float16) for s in ((3, 72, 128), (64, 128), (64,)))
  y = np.zeros((3, 72, 64), np.float16)
  at = {"i0": w, "i1": x, "i2": b, "o0": y}
  run_kernel(source, {a: at[a].view(np.uint8).reshape(-1) for a in source.args})
  want = np.maximum(x.astype(float) @ w.astype(float).T + b, 0)
  np.testing.assert_allclose(y.astype(float), want, rtol=2e-3, atol=2e-3)


NONE = {
  "few rows": {"a2": 63},
  "no chunks of 16 bytes": {"a0": 772},
}


@pytest.mark.parametrize("name", NONE)
def test_sizes_without_any(name):
  assert points(**NONE[name])[1] == ()


@pytest.mark.parametrize(
  ("old", "new"),
  [("f16", "f32"), ("i0 f16[a1,a0]", "i0 f16[a0,a1]"), ("i1 f16[a2,a0]", "i1 f16[a0,a2]")],
)
def test_kernels_without_any(old, new):
  assert points(LINEAR.replace(old, new))[1] == ()


def test_a_gpu_without_it():
  assert points(target=replace(H100, instructions=()))[1] == ()
