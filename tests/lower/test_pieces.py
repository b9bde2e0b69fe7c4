"""Pieces of axes against the verifier's enumeration of what blocks, ranks and steps have."""

import re
from itertools import product

import numpy as np
import pytest

from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.lower.grid import Grid
from mirage_onnx.lower.pieces import GRID, RANK, STEP, Pieces
from mirage_onnx.target import H200
from mirage_onnx.verify.tiles import Tiling

EXTENTS = (1, 5, 16, 20, 33)
LEVELS = [lv for n in range(8) if (lv := "".join(c for b, c in enumerate("brs") if n >> b & 1))]


def _kernel(levels, other=""):
  """A kernel that cuts a0 at these levels; ``other``: those of a second load."""
  used = levels + other
  grid, cluster, loop = ("a0" if c in used else "-" for c in (GRID, RANK, STEP))
  lines = [
    f"  %{n} = load i{n} imap={'a0' if GRID in lv else '-'} cmap={'a0' if RANK in lv else '-'}"
    f" fmap={'a0' if STEP in lv else '-'} : f16[a0] loop element"
    for n, lv in enumerate((levels, other) if other else (levels,))
  ]
  last = "mul %0 %1" if other else "square %0"
  return parse_ugraph(
    "ugraph 1\ntensor i0 f16[a0] input\ntensor i1 f16[a0] input\ntensor o0 f32[a0] output\n"
    f"kernel k0 grid={grid if grid != '-' else 'a1'} cluster={cluster} loop={loop}\n"
    + "\n".join(lines)
    + f"\n  %{len(lines)} = {last} : f32[a0] loop element\n  save o0 = %{len(lines)} omap=-\n"
  ).kernels[0]


def _declared(writer, known):
  """What the declarations come to for one block, rank and step."""
  names = {**known, "at_most": min}
  for line in writer.text.splitlines():
    if found := re.fullmatch(r"\s*const int (\w+) = (.*);", line):
      names[found[1]] = eval(_python(found[2]), {}, names)
  return names


def _python(text):
  text = text.replace("static_cast<int>(ptx::cluster_rank())", "rank").replace("/", "//")
  return text.replace("ptx::block_x()", "block")


@pytest.mark.parametrize("levels", LEVELS)
def test_pieces_are_what_the_verifier_says(levels):
  kernel, checked = _kernel(levels), 0
  for extent, tile, ranks, step in product(EXTENTS, (1, 8, 12, 64), (1, 2, 3), (4, 5, 16)):
    if (GRID not in levels and tile > 1) or (RANK not in levels and ranks > 1):
      continue
    if STEP not in levels and step > 4:
      continue
    extents = {"a0": extent, "a1": 1}
    params = KernelParams((tile,), cluster=ranks, loop_tile=step if STEP in levels else 0)
    pieces = Pieces.of(kernel, params, extents, Grid.of(kernel, params, extents, H200))
    text = PiecesText(pieces, pieces.grid)
    tiling = Tiling(kernel, params, extents, np)
    piece, cut = pieces.of_value[0]["a0"], tiling.cuts[0]["a0"]
    sizes, steps = [], set()
    starts, stops = tiling._pieces(cut)
    starts, stops = np.atleast_1d(starts), np.atleast_1d(stops)
    for place in np.ndindex(starts.shape):
      rank = place[0] if RANK in levels else 0
      block = (place[-1] if GRID in levels else 0) * ranks + rank
      for number in range(tiling.iterations):
        begin = int(starts[place]) + (number * step if STEP in levels else 0)
        end = int(min(stops[place], begin + step) if STEP in levels else stops[place])
        if STEP in levels and begin >= stops[place]:
          continue
        writer = Writer()
        text.declare(writer)
        text.declare_step(writer, str(number))
        names = _declared(writer, {"block": block, "rank": rank})
        size = eval(_python(text.size(piece)), {}, names)
        assert size == end - begin
        if size:
          first = eval(_python(text.first(piece)), {}, names)
          assert first == begin
          assert first % piece.aligned == 0
        sizes.append(size)
        steps.add(eval(_python(text.steps), {}, names))
    assert max(sizes) == piece.length
    assert set(sizes) == {piece.length} or not piece.exact
    if STEP in levels:
      assert max(steps) == pieces.most_steps == tiling.iterations
    checked += 1
  assert checked >= 5


def test_whole_tiles_are_exact_and_aligned():
  """What copies in chunks and matrix loads need is seen."""
  kernel = _kernel("brs")
  extents, params = {"a0": 256, "a1": 1}, KernelParams((128,), cluster=2, loop_tile=16)
  pieces = Pieces.of(kernel, params, extents, Grid.of(kernel, params, extents, H200))
  piece = pieces.of_value[0]["a0"]
  assert (piece.length, piece.exact, piece.aligned) == (16, True, 16)
  assert piece.name == "a0_brs"


def test_two_cuts_that_meet():
  kernel = _kernel("b", "bs")
  extents, params = {"a0": 64, "a1": 1}, KernelParams((32,), loop_tile=8)
  with pytest.raises(RejectionError, match="two cuts of a0") as caught:
    Pieces.of(kernel, params, extents, Grid.of(kernel, params, extents, H200))
  assert caught.value.rejection.code == "LAYOUT"
