"""Index arrays and masks against the words of ``ir/ugraph.py``, one block and rank at a time."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_onnx.ir import BlockOp, DType, Kernel, KernelParams, Layout, Phase
from mirage_onnx.verify.tiles import AxisCut, Tiling, tiling


def kernel(cut):
  grid = () if cut.grid is None else ("b", "a")
  load = BlockOp(
    "load", (), ("a",), DType.F32, Phase.LOOP, Layout.SHARED, tensor="i0",
    imap=tuple("a" if g == "a" else None for g in grid),
    cmap="a" if cut.cluster else None, fmap="a" if cut.loop else None,
  )  # fmt: skip
  return Kernel("k0", grid, "a" if cut.cluster else None, "a" if cut.loop else None, (load,), ())


def pieces(cut, extent, tile, ranks, step):
  result = {}
  for block, rank in product(range(-(-extent // tile)), range(ranks)):
    elements = list(range(extent))[block * tile : (block + 1) * tile]
    size = -(-len(elements) // ranks)
    elements = elements[rank * size : (rank + 1) * size]
    walk = [elements[i : i + step] for i in range(0, len(elements), step)]
    result[rank, block] = walk if cut.loop else [elements]
  return result


cuts = st.builds(AxisCut, st.just("a"), st.sampled_from([None, 1]), st.booleans(), st.booleans())
small = st.integers(1, 9)


@given(cuts, st.integers(1, 14), small, st.integers(1, 5), small)
def test_every_block_and_rank_has_its_elements(cut, extent, tile, ranks, step):
  tile, ranks = tile if cut.grid else extent, ranks if cut.cluster else 1
  params = KernelParams((1, tile) if cut.grid else (), ranks if cut.cluster else 1, step if cut.loop else 0)
  tiles = Tiling(kernel(cut), params, {"a": extent, "b": 1}, np)
  (found,) = tiles.cuts
  assert found == {"a": cut}
  want = pieces(cut, extent, tile, ranks, step)
  assert tiles.iterations == max(map(len, want.values())) or not cut.loop
  for iteration in range(tiles.iterations):
    at, active = tiles.tile(cut, iteration), tiles.active(iteration)
    for (rank, block), walk in want.items():
      where = tuple(n for n, has in ((rank, cut.cluster), (block, cut.grid)) if has)
      makes = iteration < len(walk) or not cut.loop
      assert (active is None or bool(active.data[(0, *where)])) == makes
      if not makes:
        continue
      index, elements = at.index[where], walk[iteration]
      valid = np.ones(index.shape, bool) if at.valid is None else at.valid.data[(0, *where)]
      assert index[valid].tolist() == elements
      # Padding repeats an element of the piece.
      assert not elements or set(index.tolist()) == set(elements)


def test_what_varies_is_known():
  moving, still = kernel(AxisCut("a", loop=True)).ops[0], kernel(AxisCut("a")).ops[0]
  of = {"dtype": DType.F32, "phase": Phase.LOOP, "layout": Layout.SHARED}
  ops = (
    moving,
    BlockOp("sum", (0,), (), reduced=("a",), **of),
    still,
    BlockOp("neg", (2,), ("a",), **of),
    BlockOp("run_max", (3,), ("a",), **of),
    BlockOp("acc_sum", (1,), (), DType.F32, Phase.POST, Layout.SHARED),
  )
  params = KernelParams(loop_tile=2)
  tiles = tiling(Kernel("k0", (), None, "a", ops, ()), params, (("a", 5),), np)
  assert tiles.varies == (True, True, False, False, True, False)


def test_cuts_are_said_in_words():
  assert str(AxisCut("a", 1, cluster=True, loop=True)) == "a cut by grid y, cluster, loop"
  assert str(AxisCut("a")) == "all of a"


def test_a_map_that_is_not_the_kernel_s_is_refused():
  wrong = kernel(AxisCut("a", loop=True))
  with pytest.raises(ValueError, match="i0 over .* is cut over a, not b"):
    Tiling(
      Kernel("k0", (), None, "b", wrong.ops, ()), KernelParams(loop_tile=1),
      {"a": 3, "b": 3}, np,
    )  # fmt: skip
