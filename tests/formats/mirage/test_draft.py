"""Primitives of drafts: the shapes and phases that they refuse."""

import pytest

from mirage_onnx.errors import RejectionError
from mirage_onnx.formats.mirage.draft import DraftKernel
from mirage_onnx.formats.mirage.factors import AxisFactors


class Tiles:
  def __init__(self):
    self.factors = AxisFactors()
    self.kernel = DraftKernel("k0", self.factors)

  def tile(self, *shape, post=False):
    dims = tuple(map(self.factors.new, shape))
    return self.kernel.load("i0", dims, post=post, looped=False)

  def shape(self, value):
    return tuple(map(self.factors.size, self.kernel.values[value].dims))


@pytest.fixture
def tiles():
  return Tiles()


def test_shapes(tiles):
  k = tiles.kernel
  x = tiles.tile(1, 4, 8)
  assert tiles.shape(k.matmul(x, tiles.tile(1, 8, 2))) == (1, 4, 2)
  assert tiles.shape(k.fn("add", x, tiles.tile(3, 1, 8))) == (3, 4, 8)
  assert tiles.shape(k.fn("mul", k.const(2, x), x)) == (1, 4, 8)
  assert tiles.shape(k.sum(x, 2)) == (1, 4, 1)
  assert tiles.shape(k.sum(x, 2, left=2)) == (1, 4, 2)
  assert tiles.shape(k.sum(x, 2, left=8)) == (1, 4, 8)
  assert tiles.shape(k.acc(x)) == (1, 4, 8) and k.values[-1].post


@pytest.mark.parametrize("pair", [((4, 8), (4, 8)), ((2, 4, 8), (1, 8, 4)), ((4, 8), (1, 8, 4))])
def test_matmul_refuses(pair, tiles):
  a, b = (tiles.tile(*shape) for shape in pair)
  with pytest.raises(RejectionError, match="matmul of"):
    tiles.kernel.matmul(a, b)


@pytest.mark.parametrize("other", [(8,), (4, 4), (2, 8)])
def test_elementwise_refuses(other, tiles):
  a, b = tiles.tile(4, 8), tiles.tile(*other)
  with pytest.raises(RejectionError, match="add of"):
    tiles.kernel.fn("add", a, b)


def test_sum_refuses(tiles):
  x = tiles.tile(4, 8)
  with pytest.raises(RejectionError, match="along dimension 2 of 2"):
    tiles.kernel.sum(x, 2)
  with pytest.raises(RejectionError, match="a reduction of 8 elements to 3"):
    tiles.kernel.sum(x, 1, left=3)


def test_the_end_of_the_loop_lies_between(tiles):
  x, y = tiles.tile(4, 8), tiles.tile(4, 8, post=True)
  for make in (lambda: tiles.kernel.fn("add", x, y), lambda: tiles.kernel.acc(y)):
    with pytest.raises(RejectionError, match="after") as e:
      make()
    assert e.value.rejection.code == "SAVED_INVALID"
