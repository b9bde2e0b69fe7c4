"""Wrong regions: what the rewriter and the plans are told of what a kernel is for.

Two instances of a region with other weights are merged, kernels belong to another region, a view
begins elsewhere, a size is counted from another dimension, a node or a cast is forgotten.
"""

from dataclasses import replace
from functools import partial
from itertools import combinations

from mirage_onnx.ir.runtime_extent import Monomial
from mutants.harness import Fault
from mutants.hooks import patched, production
from mutants.survey import APPLY, survey


def faults(bench, subject):
  """Every wrong list of regions of a subject."""
  chosen = survey(bench, subject).chosen
  for name, change in _changes(chosen):
    yield Fault("region", subject, name, partial(_applied, change))


def _applied(change):
  apply = production(APPLY)
  return patched(lambda loaded, pairs, *a, **k: apply(loaded, change(list(pairs)), *a, **k), APPLY)


def _changes(chosen):
  for i, j in combinations(range(len(chosen)), 2):
    yield f"kernels of {i} and {j} change places", partial(_swap_kernels, i, j)
    weights = [[x for x in chosen[n][0].inputs if x.is_weight] for n in (i, j)]
    for a, b in zip(*weights, strict=False):
      if a.tensor.shape == b.tensor.shape and a.source != b.source:
        yield f"weights {a.name} of {i} and {j} change places", partial(_swap_inputs, i, j, a.name, b.name)
        yield f"{j} has the weight {a.name} of {i}", partial(_give_input, i, j, a.name, b.name)
    outs = zip(chosen[i][0].outputs, chosen[j][0].outputs, strict=False)
    for a, b in outs:
      if a.tensor.shape == b.tensor.shape:
        yield f"outputs {a.name} of {i} and {j} change places", partial(_swap_outputs, i, j, a.name, b.name)
  for i, (region, _) in enumerate(chosen):
    for x, y in combinations(region.inputs, 2):
      if x.source != y.source:
        yield f"{i}: inputs {x.name} and {y.name} change places", partial(_swap_own, i, x.name, y.name)
    if len(region.nodes) > 1:
      yield f"{i}: a node is forgotten", partial(_edit, i, _without_node)
    for x in (*region.inputs, *region.outputs):
      if x.view is not None:
        yield f"{i}: the view {x.name} begins at 0", partial(_edit, i, partial(_moved, x.name))
    for axis in region.runtime:
      for name, change in _sizes(region.runtime[axis]):
        yield f"{i}: {axis} is {name}", partial(_edit, i, partial(_resized, axis, change))
    for k, dims in enumerate(region.output_dims):
      for d, size in enumerate(dims):
        for name, change in _sizes(size):
          yield f"{i}: output {k}, dimension {d} is {name}", partial(_edit, i, partial(_remade, k, d, change))


def _sizes(size):
  yield "twice as large", replace(size, coefficient=2 * size.coefficient)
  yield "a constant", Monomial(4)
  if size.dims:
    (first, d), *rest = size.dims
    yield "of another dimension", replace(size, dims=((first, d + 1), *rest))
    yield "of another input", replace(size, dims=((first + 1, 0), *rest))


def _swap_kernels(i, j, pairs):
  (a, x), (b, y) = pairs[i], pairs[j]
  pairs[i], pairs[j] = (a, y), (b, x)
  return pairs


def _edit(i, change, pairs):
  region, compiled = pairs[i]
  pairs[i] = (change(region), compiled)
  return pairs


def _named(region, side, name):
  return next(x for x in getattr(region, side) if x.name == name)


def _put(region, side, name, other):
  """With the tensor of the model, and the view, of another."""
  items = [
    replace(x, tensor=other.tensor, view=other.view, picks=other.picks) if x.name == name else x
    for x in getattr(region, side)
  ]
  return replace(region, **{side: tuple(items)})


def _swap_inputs(i, j, a, b, pairs):
  first, second = _named(pairs[i][0], "inputs", a), _named(pairs[j][0], "inputs", b)
  _edit(i, lambda r: _put(r, "inputs", a, second), pairs)
  return _edit(j, lambda r: _put(r, "inputs", b, first), pairs)


def _give_input(i, j, a, b, pairs):
  first = _named(pairs[i][0], "inputs", a)
  return _edit(j, lambda r: _put(r, "inputs", b, first), pairs)


def _swap_outputs(i, j, a, b, pairs):
  first, second = _named(pairs[i][0], "outputs", a), _named(pairs[j][0], "outputs", b)
  _edit(i, lambda r: _put(r, "outputs", a, second), pairs)
  return _edit(j, lambda r: _put(r, "outputs", b, first), pairs)


def _swap_own(i, a, b, pairs):
  x, y = (_named(pairs[i][0], "inputs", n) for n in (a, b))
  return _edit(i, lambda r: _put(_put(r, "inputs", a, y), "inputs", b, x), pairs)


def _without_node(region):
  return replace(region, nodes=region.nodes[1:])


def _moved(name, region):
  def moved(x):
    return replace(x, view=replace(x.view, starts=tuple(0 for _ in x.view.starts))) if x.name == name else x

  return replace(region, inputs=tuple(map(moved, region.inputs)), outputs=tuple(map(moved, region.outputs)))


def _resized(axis, size, region):
  return replace(region, runtime={**region.runtime, axis: size})


def _remade(k, d, size, region):
  dims = list(map(list, region.output_dims))
  dims[k][d] = size
  return replace(region, output_dims=tuple(map(tuple, dims)))
