"""The mutation corpus: kinds of small mistakes, each of which makes *every* wrong (or, now and
then, equivalent) program that differs from a golden µGraph by one such mistake.
"""

from dataclasses import replace
from functools import cache

import loop_mutations as loop
import map_mutations as maps
import value_mutations as value
from draft import replaced


def _in_each_kernel(fn):
  def mutants(graph):
    for at, kernel in enumerate(graph.kernels):
      for new in fn(kernel):
        yield replace(graph, kernels=replaced(graph.kernels, at, new))

  return mutants


_OF_KERNELS = (
  # time
  loop.drop_accumulator, loop.duplicate_accumulator, loop.loop_off_by_one,
  loop.missing_rescale, loop.merge_unscaled, loop.stale_value, loop.wrong_maximum,
  loop.into_the_loop, loop.accumulate_first, loop.offset_every_tile,
  # place
  maps.imap, maps.fmap, maps.cmap, maps.omap, maps.loop_axis, maps.grid, maps.cluster,
  maps.phase, maps.saved_value,
  # values
  value.epsilon, value.literal_for_extent, value.extent_of_other_axis, value.constant,
  value.exponent, value.sum_or_max, value.reduced_axes, value.contraction, value.place,
  value.drop_operation, value.duplicate_operation, value.drop_operand,
  value.duplicate_summand, value.operand_order, value.other_argument,
  value.broadcast_argument, value.cast, value.other_function,
)  # fmt: skip
_OF_GRAPHS = (
  maps.loaded_tensor, maps.broadcast_axis, maps.memory_order, maps.kernels,
)  # fmt: skip

#: Kind -> all mutants of a graph; a mutant belongs to the first kind that makes it.
KINDS = {
  **{fn.__name__: _in_each_kernel(fn) for fn in _OF_KERNELS},
  **{fn.__name__: fn for fn in _OF_GRAPHS},
}


@cache
def mutants(graph):
  found = {}
  for kind, make in KINDS.items():
    for mutant in make(graph):
      if mutant != graph:
        found.setdefault(mutant, kind)
  return tuple((kind, mutant) for mutant, kind in found.items())
