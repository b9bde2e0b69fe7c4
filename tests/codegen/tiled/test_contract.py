"""Contractions of every depth and shape, run in the emulator against the interpreter."""

import pytest
from tiled_kernels import case, near, product, tiled_source

from mirage_onnx.lower.steps import Contract, Multiply
from mirage_onnx.target import H200


@pytest.mark.parametrize("layout", ["shared", "A_frag"])
def test_every_depth(layout):
  text = product(loop=False, layouts=(layout, layout))
  near([case(text, 9, 17, warps=2, a0=17, a1=k, a2=9) for k in (8, *range(1, 41, 3))])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_single_rows_and_columns(dtype):
  text = product("a1,a0", "a1,a2", dtype=dtype)
  sizes = [(1, 1), (1, 9), (9, 1), (8, 16), (33, 3)]
  near([case(text, n, m, warps=2, loop_tile=16, stages=2, a0=m, a1=40, a2=n) for m, n in sizes])


def test_splits_of_the_warps():
  """Warps share out rows, columns or the depth."""
  text = product(loop=False)
  near(
    [
      case(text, n, m, warps=8, a0=m, a1=k, a2=n)
      for m, n, k in ((128, 8, 16), (8, 128, 16), (8, 8, 256), (32, 32, 64))
    ]
  )


def test_types_that_differ_are_multiplied():
  """Tensor cores take one type; others meet as fp32."""
  mixed = case(product(loop=False, second="f32"), 8, 8, warps=1, a0=8, a1=24, a2=8)
  kinds = [type(s) for s in mixed.threads().steps.after]
  assert Multiply in kinds
  assert Contract not in kinds
  near([mixed, case(product(second="bf16"), 8, 8, loop_tile=8, a0=8, a1=24, a2=8)])


@pytest.mark.parametrize(("axes", "call"), [("a2,a1", "ldmatrix_x2("), ("a1,a2", "ldmatrix_x2_trans(")])
def test_whole_tiles_are_read_by_matrices(axes, call):
  def text(depth):
    c = case(product("a0,a1", axes, loop=False), 16, 16, warps=1, a0=16, a1=depth, a2=16)
    return tiled_source(c.graph, c.graph.kernels[0], c.params[0], c.extents, H200).text

  assert call in text(32)
  assert "ldmatrix" not in text(40)
