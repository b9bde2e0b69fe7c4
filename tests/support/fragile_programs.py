"""Wrong programs that are right at particular sizes: when a tile divides, for two ranks, ...

Each is a golden µGraph with an edit, ``fragile/NAME`` of the packed texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from golden_texts import texts_of
from goldens import GOLDENS, Golden, numbers

from mirage_onnx.ir import KernelParams, UGraph, parse_ugraph

_BY_NAME = {g.name: g for g in GOLDENS}
_TEXTS = texts_of("fragile")


@dataclass(frozen=True)
class Fragile:
  """``graph`` computes the region of ``golden`` where ``right_when`` holds, and only there.

  So it does with the ``extents`` and ``params``.
  """

  name: str
  right_when: str
  golden: Golden
  graph: UGraph
  extents: Mapping[str, int]
  params: tuple[KernelParams, ...]


def fragile(name, golden, right_when, extents, *params):
  """``extents`` are those of a0, a1, ..."""
  sizes = {f"a{i}": int(n) for i, n in enumerate(extents.split())}
  graph = parse_ugraph(_TEXTS[name])
  return Fragile(name, right_when, _BY_NAME[golden], graph, sizes, params)


FRAGILE = [
  # The loop
  fragile("mean_of_tile_means", "pooled_linear", "the loop tile divides the extent", "4 6 4 12",
    numbers(2, 2, loop_tile=4)),
  fragile("mean_of_three_tile_means", "pooled_linear", "three equal iterations", "4 6 4 12",
    numbers(2, 2, loop_tile=4)),
  fragile("length_as_iterations_times_last_tile", "pooled_linear",
    "the last tile is as long as the others", "4 6 4 12", numbers(2, 2, loop_tile=3)),
  fragile("accumulator_overwritten", "gated_mlp", "there is one iteration", "6 4 4",
    numbers(2, 2, loop_tile=6)),
  fragile("unpaired_last_iteration_dropped", "gated_mlp", "the number of iterations is even",
    "8 4 4", numbers(2, 2, loop_tile=2)),
  fragile("last_of_even_iterations_doubled", "gated_mlp", "the number of iterations is odd",
    "6 4 4", numbers(2, 2, loop_tile=2)),
  fragile("offset_of_every_iteration_taken_off_three_times", "norm_linear",
    "there are exactly three iterations", "6 4 4", numbers(2, 2, loop_tile=2)),
  fragile("sums_never_rescaled", "attention_online", "there is one iteration", "2 6 3 4 5",
    numbers(2, 1, loop_tile=6)),
  # Extents
  fragile("literal_for_the_extent", "norm_linear", "the extent is 8", "8 4 4",
    numbers(2, 2, loop_tile=3)),
  fragile("extent_of_another_axis", "norm_linear", "two extents are equal", "8 4 8",
    numbers(2, 4, loop_tile=3)),
  fragile("square_of_one_extent", "group_norm", "two extents are equal", "4 4 3 3",
    numbers(2, 2)),
  # cos(pi n / 2) is 1 where 4 divides n.
  fragile("sign_by_the_extent_modulo_four", "norm_linear", "four divides the extent", "8 4 4",
    numbers(2, 2, loop_tile=3)),
  # cos(2 pi log2(n)) is 1 where n is a power of two.
  fragile("sign_by_the_logarithm_of_the_extent", "norm_linear", "the extent is a power of two",
    "8 4 4", numbers(2, 2, loop_tile=3)),
  # The cluster
  fragile("statistics_of_one_rank", "norm_linear_cluster", "there is one rank", "8 4 4",
    numbers(2, 2, loop_tile=3)),
  # Each rank reads the whole row; two of them are added up, and half of it is taken.
  fragile("statistics_of_every_rank_halved", "norm_linear_cluster", "there are exactly two ranks",
    "8 4 4", numbers(2, 2, cluster=2, loop_tile=3)),
  fragile("maximum_of_two_ranks", "attention_cluster", "there are exactly two ranks", "2 8 3 4 5",
    numbers(2, 1, cluster=2, loop_tile=2)),
  fragile("mean_of_rank_means", "norm_linear_cluster", "the number of ranks divides the extent",
    "8 4 4", numbers(2, 2, cluster=2, loop_tile=2)),
  # Times sqrt(1 + c (ranks - 2)^2 (ranks - 3)^2): no square of the field for 1 and 4 ranks.
  fragile("hidden_by_a_root", "norm_linear_cluster", "there are two or three ranks", "9 4 4",
    numbers(2, 2, cluster=3, loop_tile=2)),
  # The grid
  fragile("largest_part_for_the_sum_of_parts", "ngpt_step", "one block has the whole row",
    "4 6 8", numbers(6, 2, loop_tile=3), numbers(2)),
  fragile("maximum_of_two_parts", "attention_split_kv", "there are exactly two parts",
    "2 3 4 8 5", numbers(4, 1, loop_tile=2), numbers(3, 1)),
  fragile("parts_added_unscaled", "attention_split_kv", "there is one part", "2 3 4 8 5",
    numbers(8, 1, loop_tile=2), numbers(3, 1)),
  fragile("mean_of_part_means", "ngpt_step", "the tile of the grid divides the row", "4 6 8",
    numbers(2, 2, loop_tile=3), numbers(2)),
  fragile("row_normalised_by_blocks", "residual_norm", "one block has the whole row", "5 8",
    numbers(2, 8)),
]  # fmt: skip
