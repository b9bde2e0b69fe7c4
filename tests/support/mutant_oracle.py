"""Does a µGraph differ from its region in float64? The judge of the verifier, independent of it.

The plain interpreter runs at extents that the verifier does not use, on inputs where numbers can go
wrong: small and large ones, logits of +-1e4, masks, offsets.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from plain_interpreter import interpret_plainly

from mirage_onnx.ir import term as t
from mirage_onnx.ir.ugraph import KernelParams, UGraph, ugraph_extents
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray

#: Relative L2 of one output on one case (issue 4, point 6).
TOLERANCE = 1e-6
LARGE = 1e4


@dataclass(frozen=True)
class Sizes:
  """Extents to take for the axes that a loop walks, that the grid or the cluster splits, and
  for the others; into how many parts each of grid, cluster and loop splits an axis.
  """

  extents: tuple[tuple[int, ...], ...]
  tiles: int
  ranks: int
  iterations: int


#: All different, with short tails; all equal, in equal parts.
UNEVEN = Sizes(((13, 15, 17), (5, 7, 9, 11), (3, 4, 6, 8)), tiles=2, ranks=2, iterations=3)
EVEN = Sizes(((12,) * 3, (12,) * 4, (4,) * 4), tiles=3, ranks=4, iterations=4)


@dataclass(frozen=True)
class Scene:
  """Inputs of all cases at certain extents, and what the region makes of them."""

  sizes: Sizes
  extents: Mapping[str, int]
  cases: tuple[str, ...]
  inputs: Mapping[str, NamedArray]
  want: Mapping[str, np.ndarray]


def scenes(golden, seed=0):
  return tuple(scene(golden.region, s, _extents(golden, s), seed) for s in (UNEVEN, EVEN))


def _extents(golden, sizes):
  kernels = golden.ugraph.kernels
  loops = {k.loop for k in kernels}
  split = {a for k in kernels for a in (*k.grid, k.cluster)}
  left = [list(s) for s in sizes.extents]
  return {a: left[0 if a in loops else 1 if a in split else 2].pop(0) for a in sorted(golden.region.extents)}


def scene(region, sizes, extents, seed=0, cases=()):
  cases = cases or case_names(region)
  inputs = _inputs(region, extents, cases, np.random.default_rng(seed))
  named = {i.name: NamedArray(inputs[i.name], i.axes) for i in region.inputs}
  terms = interpret_terms(Float64(len(cases)), region.terms, named, extents)
  want = {
    o.name: np.broadcast_to(
      v.aligned(o.axes), (len(cases), *(extents[a] for a in o.axes))
    )
    for o, v in zip(region.outputs, terms, strict=True)
  }  # fmt: skip
  return Scene(sizes, extents, cases, named, want)


def logit_inputs(region):
  """Inputs that are added to what a maximum is taken of, or are it: masks and rows."""
  found = set()
  for node in t.walk(region.terms):
    if node.op == t.MAXR:
      stack = list(node.args)
      while stack:
        x = stack.pop()
        scaled = x.op == t.MUL and len(x.args) == 2 and t.rational(x.args[0]) is not None
        if x.op == t.INPUT:
          found.add(str(x.attr))
        elif x.op == t.ADD or scaled:
          stack += x.args
  return frozenset(found)


def case_names(region):
  """Hard inputs of a region: by the activations it has, and by those that can mask."""
  moving = [i.name for i in region.inputs if not i.is_weight]
  names = ["normal", "small", "all large", "offset", "constant offset"]
  names += [f"large {name}" for name in moving]
  return (*names, *(f"{m} {name}" for name in sorted(_logits(region)) for m in MASKS))


def _logits(region):
  return logit_inputs(region) & {i.name for i in region.inputs if not i.is_weight}


def _inputs(region, extents, cases, rng):
  """Input -> [case, *axes]; weights are the same in every case."""
  logits = _logits(region)
  result = {}
  for i in region.inputs:
    shape = tuple(extents[a] for a in i.axes)
    if i.is_weight:
      one = rng.standard_normal(shape) / np.sqrt(shape[0] if len(shape) > 1 else 1)
      result[i.name] = np.broadcast_to(one + (len(shape) == 1), (len(cases), *shape)).copy()
    else:
      rows = [_case(case, i.name, i.name in logits, shape, rng) for case in cases]
      result[i.name] = np.stack(rows)
  return result


#: Masks of -1e4 or -inf: half of the elements, the first part of every row, one row as a whole.
MASKS = ("half -1e4", "half -inf", "first -inf", "row -1e4", "row -inf")


def _case(case, name, is_logit, shape, rng):
  x = rng.standard_normal(shape)
  kind, _, which = case.rpartition(" ")
  if case == "small":
    return np.asarray(x / 256)
  if case == "all large":
    return np.asarray(x * np.sqrt(LARGE))
  if case == "offset":
    return np.asarray(x + (LARGE if is_logit else 10.0))
  if case == "constant offset":
    return np.asarray(x - (LARGE if is_logit else 10.0))
  if which != name:
    return np.asarray(x)
  if kind == "large":
    return np.asarray(x * LARGE)
  low = -LARGE if kind.endswith("-1e4") else -np.inf
  hidden = np.zeros(shape, bool)
  if kind.startswith("half"):
    hidden = rng.random(shape) < 0.5
  elif kind.startswith("first"):
    hidden[..., : -(-shape[-1] // 2)] = True
  elif shape[1:]:
    hidden[0] = True
  return np.where(hidden, low, x)


def instantiated(graph, extents, sizes):
  """Numbers of kernels that split every axis into so many parts, as far as it has elements."""
  params = []
  for kernel in graph.kernels:
    done = UGraph(graph.tensors, graph.kernels[: len(params)])
    params.append(_numbers(kernel, ugraph_extents(done, params, extents), sizes))
  return tuple(params)


def _numbers(kernel, extents, sizes):
  tile = tuple(-(-extents[a] // sizes.tiles) for a in kernel.grid)
  ranks = sizes.ranks if kernel.cluster else 1
  if kernel.loop is None:
    return KernelParams(tile=tile, cluster=ranks)
  piece = tile[kernel.grid.index(kernel.loop)] if kernel.loop in kernel.grid else None
  piece = piece or extents[kernel.loop]
  piece = -(-piece // ranks) if kernel.loop == kernel.cluster else piece
  return KernelParams(tile=tile, cluster=ranks, loop_tile=-(-piece // sizes.iterations))


def outputs(graph, scene, params=None):
  """Output -> [case, *axes], in the axis order of the region.

  Raises:
      ValueError: the well-formed graph cannot be run with these numbers.
  """
  params = params or instantiated(graph, scene.extents, scene.sizes)
  got = interpret_plainly(Float64(len(scene.cases)), graph, params, scene.extents, scene.inputs)
  axes = {tensor.name: tensor.axes for tensor in graph.tensors}
  return {name: np.broadcast_to(got[name].aligned(axes[name]), x.shape) for name, x in scene.want.items()}


def difference(graph, scene, params=None):
  try:
    got = outputs(graph, scene, params)
  except (ValueError, KeyError) as e:
    return f"cannot be run: {e}"
  for name, x in scene.want.items():
    y = got[name]
    for n, case in enumerate(scene.cases):
      finite = np.isfinite(x[n])
      if (finite != np.isfinite(y[n])).any():
        return f"{case}: {name} is finite at other elements"
      a, b = x[n][finite], y[n][finite]
      norm = float(np.linalg.norm(a))
      if not float(np.linalg.norm(a - b)) <= TOLERANCE * norm:
        return f"{case}: {name} differs"
  return None
