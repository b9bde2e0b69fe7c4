"""Folds visit the same nodes that interpretations do, with the counts of the numbers given."""

from goldens import GOLDENS
from raw_programs import C, X, to_term, total

from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.verify.fold import fold_terms, fold_ugraph, repeats

GOLDEN = {g.name: g for g in GOLDENS}


class Products:
  """How many input elements are read for one element, if nothing is shared."""

  def input(self, name, axes):
    return 1

  def constant(self, value):
    return 0

  def extent(self, axes):
    return 0

  def elementwise(self, op, args):
    return sum(args)

  def power(self, x, e):
    return x

  def total(self, x, axes):
    for n in axes.values():
      x *= n
    return x

  highest = total

  def repeated(self, op, x, times):
    return x * times

  def rescaled(self, x, f, times):
    return (x + f) * times


def test_terms_are_folded_with_extents():
  root = to_term(total(X * C + 1) * C)
  values = fold_terms(Products(), [root], {"i": 3, "j": 5})
  assert values[root] == 5 * 2 + 1


def test_kernels_are_folded_with_the_sizes_of_tiles():
  golden = GOLDEN["norm_linear_cluster"]
  extents = {"a0": 60, "a1": 7, "a2": 9}
  loop = golden.ugraph.kernels[0].loop
  assert loop is not None
  extents = dict.fromkeys(golden.region.extents, 7) | {loop: 60}
  numbers = KernelParams(tile=(2, 2), cluster=3, loop_tile=6)
  tensors, (kernel,) = fold_ugraph(Products(), golden.ugraph, [numbers], extents)
  # 60 elements, 20 per rank, 4 iterations of at most 6
  assert (kernel.iterations, kernel.ranks) == (4, 3)
  ops = kernel.kernel.ops
  matmul = next(i for i, o in enumerate(ops) if o.op == "matmul")
  inputs = kernel.values[ops[matmul].args[0]] + kernel.values[ops[matmul].args[1]]
  assert kernel.values[matmul] == 6 * inputs
  accumulated = next(i for i, o in enumerate(ops) if o.op == "acc_sum" and o.args == (matmul,))
  assert kernel.values[accumulated] == 4 * 6 * inputs
  assert tensors[kernel.kernel.saves[0].tensor] == kernel.values[kernel.kernel.saves[0].arg]


def test_values_stand_for_all_iterations_and_ranks_they_are_made_in():
  golden = GOLDEN["norm_linear_cluster"]
  kernel = golden.ugraph.kernels[0]
  extents = dict.fromkeys(golden.region.extents, 7) | {str(kernel.loop): 60}
  numbers = KernelParams(tile=(2, 2), cluster=3, loop_tile=6)
  _, (folded,) = fold_ugraph(Products(), golden.ugraph, [numbers], extents)
  matmul = next(i for i, o in enumerate(kernel.ops) if o.op == "matmul")
  load = next(i for i, o in enumerate(kernel.ops) if o.op == "load" and o.fmap is not None)
  last = len(kernel.ops) - 1
  assert [repeats(folded, i) for i in (matmul, load, last)] == [12, 1, 3]


def test_part_axes_have_extents():
  golden = GOLDEN["attention_split_kv"]
  tensors, kernels = fold_ugraph(Products(), golden.ugraph, golden.params, golden.region.extents)
  assert len(kernels) == 2 and set(tensors) == {x.name for x in golden.ugraph.tensors}
