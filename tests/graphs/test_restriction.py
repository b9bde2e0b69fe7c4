"""What the original's parameters allow: its positional maps against kernels over named axes."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from goldens import GOLDENS, golden
from readme_graphs import ONE_KERNEL, ONE_KERNEL_NUMBERS, SPLIT, SPLIT_NUMBERS, attention
from refused import refused

from mirage_onnx.errors import MirageError
from mirage_onnx.graphs.kernel_check import KernelFilter, keeps_to
from mirage_onnx.graphs.preset import PRESETS, with_preset
from mirage_onnx.graphs.restriction import Restriction, read_restriction
from mirage_onnx.ir import Candidate, KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.tiles import Tiling

REGION = whole_region(attention().program())


def candidate(text, numbers):
  return Candidate(parse_ugraph(text), tuple(KernelParams.from_text(n) for n in numbers))


def alone(restriction, kernel, params):
  """As in a search, where the other kernels are not known yet."""
  allow = pickle.loads(pickle.dumps(KernelFilter(restriction, REGION)))
  return bool(allow(kernel, params)) and bool(allow(kernel, params))


#: 16 blocks of 16 rows, times 2 heads; 64 iterations over 4096 positions.
ONE = candidate(ONE_KERNEL, ONE_KERNEL_NUMBERS)
#: 16 blocks of 256 positions, 4 of 64 rows, 2 heads, 4 iterations; then 16 of 4 columns, 2 heads.
TWO = candidate(SPLIT, SPLIT_NUMBERS)

ALLOWED = {
  "the grid": (ONE, {"griddims": [(16, 2, 1)]}),
  "the grid in another order": (ONE, {"griddims": [(2, 16, 1)]}),
  "a short grid": (ONE, {"griddims": [(4,), (2, 16)]}),
  "threads": (ONE, {"blockdims": [(128, 1, 1)]}),
  "iterations": (ONE, {"franges": [1, 64]}),
  "loops": (ONE, {"fmaps": [-1, 1, 2]}),
  "maps of inputs": (ONE, {"imaps": [(0, 1, -1), (0, -1, -1)]}),
  "maps in another order": (ONE, {"imaps": [(-1, 1, 0), (-1, -1, 0)]}),
  "grid and maps in one order": (
    ONE, {"griddims": [(16, 2)], "imaps": [(1, 0), (-1, 0)], "omaps": [(1, 0)]}
  ),
  "maps of outputs": (ONE, {"omaps": [(0, 1, -1)]}),
  "grids of both kernels": (TWO, {"griddims": [(2, 16, 4), (2, 16, 1)]}),
  "iterations of both kernels": (TWO, {"franges": [1, 4]}),
  "maps of both kernels": (
    TWO, {"imaps": [(0, -1, 1), (0, 2, -1), (0, 1, -1)], "omaps": [(0, 2, -1)]}
  ),
}  # fmt: skip
REFUSED = {
  "another grid": (ONE, {"griddims": [(2, 16, 4), (16, 4, 1)]}),
  "no grid": (ONE, {"griddims": []}),
  "threads": (ONE, {"blockdims": [(64,), (128, 2)]}),
  "iterations": (ONE, {"franges": [1, 4, 8, 16]}),
  "a loop over the values": (ONE, {"fmaps": [-1, 2]}),
  "an input that is not looped": (ONE, {"fmaps": [1, 2]}),
  "an input that is replicated": (ONE, {"imaps": [(0, 1, -1), (0, 2, -1)]}),
  "another dimension": (ONE, {"imaps": [(0, 2, -1), (0, -1, -1)]}),
  "a dimension that is not there": (ONE, {"imaps": [(0, 3, -1), (0, -1, -1)]}),
  "grid and maps in different orders": (
    ONE, {"griddims": [(2, 16)], "imaps": [(1, 0), (-1, 0)]}
  ),
  "maps of in- and outputs in different orders": (
    ONE, {"imaps": [(0, 1, -1), (0, -1, -1)], "omaps": [(1, 0, -1)]}
  ),
  "an output dimension": (ONE, {"omaps": [(0, 2, -1)]}),
  "the grid of the second kernel": (TWO, {"griddims": [(2, 16, 4)]}),
  "the grid of the first kernel": (TWO, {"griddims": [(2, 16, 1)]}),
  "iterations of the second kernel": (TWO, {"franges": [4]}),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
  program, parameters = ALLOWED[name]
  restriction = read_restriction(**parameters)
  assert restriction
  assert keeps_to(restriction, REGION, program)
  for kernel, params in zip(program.ugraph.kernels, program.params, strict=True):
    assert alone(restriction, kernel, params)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  program, parameters = REFUSED[name]
  restriction = read_restriction(**parameters)
  assert not keeps_to(restriction, REGION, program)
  pairs = zip(program.ugraph.kernels, program.params, strict=True)
  assert not all(alone(restriction, k, p) for k, p in pairs)


def test_nothing_given_restricts_nothing():
  assert not read_restriction()
  assert all(keeps_to(Restriction(), g.region, Candidate(g.ugraph, g.params)) for g in GOLDENS)


def test_a_dimension_with_one_block_splits_nothing():
  params = (replace(ONE.params[0], tile=(256, 1)),)
  whole_rows = replace(ONE, params=params)
  for maps in ([(0, -1, -1)], [(0, 1, -1), (0, -1, -1)], [(-1, 0, -1)]):
    restriction = read_restriction(griddims=[(2,), (1, 2)], imaps=maps)
    assert keeps_to(restriction, REGION, whole_rows)
  assert not keeps_to(read_restriction(imaps=[(1, -1, -1)]), REGION, whole_rows)


def test_one_iteration_walks_nothing():
  at_once = replace(ONE, params=(replace(ONE.params[0], loop_tile=4096),))
  assert keeps_to(read_restriction(fmaps=[-1], franges=[1]), REGION, at_once)


def test_ranks_of_a_cluster_are_a_grid_dimension():
  """Of 4 heads, 2 tiles of 32 rows and 2 ranks, which share the positions out."""
  g = golden("attention_cluster")
  program = Candidate(g.ugraph, g.params)
  assert keeps_to(read_restriction(griddims=[(4, 2, 2)], franges=[4]), g.region, program)
  assert not keeps_to(read_restriction(griddims=[(4, 2, 1)]), g.region, program)
  # Queries are split by heads and rows; keys, values and mask also by the ranks.
  maps = [(0, 1, -1), (0, -1, 1), (-1, 0, 1)]
  assert keeps_to(read_restriction(imaps=maps, omaps=[(0, 1, -1)]), g.region, program)
  assert not keeps_to(read_restriction(imaps=maps, omaps=[(0, 1, 2)]), g.region, program)
  replicated = [(0, 1, -1), (0, -1, -1), (-1, 0, -1)]
  assert not keeps_to(read_restriction(imaps=replicated), g.region, program)


def test_tiles_of_an_earlier_kernel_are_unknown_until_the_program_is_whole():
  text = SPLIT.replace("grid=a2,a0", "grid=a4,a0").replace("imap=-,a0", "imap=a4,a0")
  text = text.replace("imap=a2,a0", "imap=a4,a0").replace("omap=a2,a0", "omap=a4,a0")
  text = text.replace("kernel k1 grid=a4,a0 cluster=- loop=-", "kernel k1 grid=a4,a0 cluster=- loop=a1/k0")
  text = text.replace("cmap=- fmap=- : f32", "cmap=- fmap=a1/k0 : f32")
  last = "tile=4,1 cluster=1 loop_tile=2 warps=4 stages=1"
  program = candidate(text, [SPLIT_NUMBERS[0], last])
  second, params = program.ugraph.kernels[1], program.params[1]
  # 16 tiles of positions, two at a time.
  for franges, known in (([4, 8], True), ([4, 7], False)):
    restriction = read_restriction(franges=franges)
    assert alone(restriction, second, params)
    assert keeps_to(restriction, REGION, program) is known


@pytest.mark.parametrize("of", GOLDENS, ids=lambda g: g.name)
def test_counts_are_those_of_the_interpreter(of):
  extents = ugraph_extents(of.ugraph, of.params, of.region.extents)
  program = Candidate(of.ugraph, of.params)
  grids, iterations = [], []
  for kernel, params in zip(of.ugraph.kernels, of.params, strict=True):
    tiles = Tiling(kernel, params, extents, np)
    grids.append([*tiles.blocks, tiles.ranks])
    iterations.append(tiles.iterations)
  assert keeps_to(read_restriction(franges=iterations), of.region, program)
  for i in range(len(iterations)):
    fewer = [n + 1 if j == i else n for j, n in enumerate(iterations)]
    if iterations[i] not in fewer:
      assert not keeps_to(read_restriction(franges=fewer), of.region, program)
  split = [[n for n in grid if n > 1] for grid in grids]
  assert max(map(len, split)) <= 3
  griddims = [g or [1] for g in split]
  assert keeps_to(read_restriction(griddims=griddims), of.region, program)
  wrong = [[n + 1 for n in g] for g in griddims]
  assert not keeps_to(read_restriction(griddims=wrong), of.region, program)


INVALID = {
  "a number": ({"griddims": 3}, "griddims: 3 is no list"),
  "a list of numbers": ({"griddims": [2, 16, 1]}, "griddims: 2 is no list of whole numbers >= 1"),
  "four dimensions": ({"griddims": [(1, 2, 3, 4)]}, r"\(1, 2, 3, 4\) is not 1 to 3 numbers"),
  "no blocks": ({"griddims": [(0, 1)]}, r"griddims: \(0, 1\) is no list of whole numbers >= 1"),
  "a fraction": ({"franges": [1.5]}, r"franges: \[1.5\] is no list of whole numbers >= 1"),
  "a word": ({"fmaps": "12"}, "fmaps: '12' is no list of whole numbers >= -1"),
  "a map": ({"imaps": [(0, -2)]}, r"imaps: \(0, -2\) is no list of whole numbers >= -1"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name):
  parameters, line = INVALID[name]
  with refused("OPTION_INVALID", line):
    read_restriction(**parameters)


def test_text():
  restriction = read_restriction(griddims=[(2, 16)], fmaps=[-1, 1])
  assert str(restriction) == "griddims=[(2, 16, 1)], fmaps=[-1, 1]"


def test_attention_allows_both_programs():
  restriction = with_preset("attention", Restriction())
  assert keeps_to(restriction, REGION, ONE)
  assert keeps_to(restriction, REGION, TWO)


def test_attention_wants_heads_in_every_input():
  """The mask of this one has rows and positions only."""
  g = golden("attention_online")
  assert not keeps_to(PRESETS["attention"], g.region, Candidate(g.ugraph, g.params))


def test_what_is_given_comes_first():
  restriction = with_preset("attention", read_restriction(fmaps=[-1], franges=[4]))
  assert (restriction.fmaps, restriction.franges) == ((-1,), (4,))
  assert restriction.imaps == PRESETS["attention"].imaps


def test_others_restrict_nothing():
  assert not any(with_preset(name, Restriction()) for name in (None, "mlp", "lora"))


def test_unknown():
  with pytest.raises(MirageError, match="config='moe': known are attention, lora, mlp"):
    with_preset("moe", Restriction())
