"""Inputs on which a wrong softmax shift shows: large logits, masks, offsets, outliers, ramps.

The extents are small and divide evenly, so every split of a µGraph has several equal parts: two
tiles of the grid, two ranks, three iterations. (Short tails are the subject of ``reduced``.)
"""

from collections.abc import Iterable, Mapping

import numpy as np

from mirage_onnx.ir import KernelParams, Region, UGraph, as_input
from mirage_onnx.ir import term as t
from mirage_onnx.verify.reduced import Instantiation

#: Logits reach this magnitude in either sign (DESIGN section 4, shift check).
LARGE = 1e4
TILES, RANKS, ITERATIONS = 2, 2, 3
#: Elements of an axis in the smallest part, and of an axis that nothing splits.
PART, WHOLE = 2, 5

CASES = (
  "normal", "large", "huge", "tiny", "offset", "opposite offsets", "large offset",
  "one outlier", "outlier rows", "ascending", "descending", "masked", "masked by -inf",
  "first half masked", "large and masked", "a row masked", "constant",
)  # fmt: skip


def even_instantiation(graph: UGraph, region: Region) -> Instantiation:
  """Extents at which every split of ``graph`` makes equal parts, and its kernels' numbers."""
  extents = dict.fromkeys(region.extents, WHOLE)
  for axis in extents:
    tiles = any(axis in k.grid for k in graph.kernels)
    ranks = any(k.cluster == axis for k in graph.kernels)
    loops = any(k.loop == axis for k in graph.kernels)
    if tiles or ranks or loops:
      parts = (TILES if tiles else 1) * (RANKS if ranks else 1)
      extents[axis] = PART * parts * (ITERATIONS if loops else 1)
  params = []
  for kernel in graph.kernels:
    # A kernel may split a part axis of an earlier one, which has as many elements as tiles.
    tile = tuple(extents.get(a, TILES) // TILES for a in kernel.grid)
    ranks_here = RANKS if kernel.cluster else 1
    step = 0
    if kernel.loop is not None:
      step = extents.get(kernel.loop, TILES)
      step //= TILES if kernel.loop in kernel.grid else 1
      step //= ranks_here if kernel.loop == kernel.cluster else 1
      step = max(1, step // ITERATIONS)
    params.append(KernelParams(tile=tile, cluster=ranks_here, loop_tile=step))
  return Instantiation(extents, tuple(params))


def adversarial_inputs(
  region: Region, extents: Mapping[str, int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
  """Region input -> float64 [case of ``CASES``, *axes]; weights are the same in all cases."""
  masks = additive_inputs(region)
  result = {}
  for number, i in enumerate(region.inputs):
    shape = tuple(extents[a] for a in i.axes)
    if i.is_weight:
      deep = shape[0] if len(shape) > 1 else 1
      one = rng.standard_normal(shape) / np.sqrt(deep) + (len(shape) <= 1)
      one = as_input(one, i.dtype)
      result[i.name] = np.ascontiguousarray(np.broadcast_to(one, (len(CASES), *shape)))
      continue
    cases = [_hard(case, shape, number, i.name in masks, rng) for case in CASES]
    result[i.name] = as_input(np.stack(cases), i.dtype)
  return result


def additive_inputs(region: Region) -> frozenset[str]:
  """Inputs that are added as they are, in an exponent or a maximum: where a mask can be."""
  return _added(t.walk(_shifted(region)))


def mask_inputs(region: Region) -> frozenset[str]:
  """Additive inputs that no sum is over: logits are sums of products, a mask is added to them.

  An activation that a layer norm in front of the logits is taken of is none.
  """
  todo = _shifted(region)
  outside = dict.fromkeys(todo)
  while todo:
    node = todo.pop()
    more = [a for a in node.args if a not in outside and node.op != t.SUM]
    outside |= dict.fromkeys(more)
    todo.extend(more)
  return _added(outside)


def _shifted(region: Region) -> list[t.Term]:
  """What is exponentiated, or of what a maximum is taken."""
  return [a for n in t.walk(region.terms) if n.op in ("exp", t.MAXR) for a in n.args]


def _added(terms: Iterable[t.Term]) -> frozenset[str]:
  """The inputs that sums of two and more among ``terms`` add as they are."""
  return frozenset(str(a.attr) for n in terms if n.op == t.ADD for a in n.args if a.op == t.INPUT)


def _hard(case: str, shape: tuple[int, ...], number: int, mask: bool, rng: np.random.Generator) -> np.ndarray:
  """One activation; a product of two of them reaches LARGE where each reaches its root."""
  x: np.ndarray = np.asarray(rng.standard_normal(shape))
  root = float(np.sqrt(LARGE))
  keep = rng.random(shape) < 0.5
  spike = rng.integers(0, x.size)
  match case:
    case "large":
      return np.asarray(x * root)
    case "huge":
      return np.asarray(x * LARGE)
    case "tiny":
      return np.asarray(x * 1e-3)
    case "offset":
      return np.asarray(x + root)
    case "opposite offsets":
      return np.asarray(x + (root if number % 2 else -root))
    case "large offset":
      return np.asarray(x + LARGE * (-1) ** (number // 2))
    case "one outlier":
      x.reshape(-1)[spike] = LARGE
      return x
    case "outlier rows":
      flat = x.reshape(-1, shape[-1]) if shape else x.reshape(1, 1)
      flat[spike % len(flat)] += LARGE
      flat[(spike + 1) % len(flat)] -= LARGE
      return x
    case "ascending" | "descending":
      ramp = np.zeros(shape)
      for n, size in enumerate(shape):
        ramp += np.arange(size).reshape([-1 if m == n else 1 for m in range(len(shape))])
      ramp *= root / max(1.0, float(ramp.max(initial=0.0)))
      return np.asarray(x + (ramp if case == "ascending" else root - ramp))
    case "masked":
      return np.where(keep, x, -LARGE) if mask else x
    case "masked by -inf":
      return np.where(keep, x, -np.inf) if mask else x
    case "first half masked" if mask and shape:
      at = np.arange(shape[-1]) < shape[-1] // 2
      return np.where(at, -np.inf, x)
    case "large and masked":
      return np.where(keep, 0.0, -np.inf) if mask else np.asarray(x * root)
    case "a row masked" if mask and shape[1:]:
      at = np.arange(shape[0]) == spike % shape[0]
      return np.where(at.reshape(-1, *[1] * (len(shape) - 1)), -np.inf, x)
    case "constant":
      return np.full(shape, 1.5)
  return x
