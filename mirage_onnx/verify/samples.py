"""Inputs on which rounding shows: scales, outliers, offsets, constant rows, masks, real weights.

Reduced axes keep up to ``DEEP`` elements, so that sums and loops are real ones; other axes keep a
few. Real weights are sampled with their largest channels.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, prod

import numpy as np

from mirage_onnx.ir import DType, Kernel, KernelParams, Region, RegionTensor, as_input, round_to
from mirage_onnx.ir import term as t
from mirage_onnx.verify.adversarial import mask_inputs
from mirage_onnx.verify.interpret_steps import by_axes
from mirage_onnx.verify.ranges import finfo, largest

DEEP, FLAT = 192, 10
MOST_TILES, MOST_ITERATIONS = 3, 8
#: Elements of a weight that are looked at together.
PEAK_ELEMENTS = 1 << 23
#: 2 GiB in float64.
MOST_ELEMENTS = 1 << 28
#: An axis that is not reduced keeps half as many at least, while there are others.
LEAST_FLAT = 8
#: Of an axis of so many elements some are drawn; of others all are shuffled.
MANY = 1 << 24

CASES = (
  "normal", "scale 2^-8", "scale 2^-4", "scale 2^4", "scale 2^8",
  "outlier channels", "constant rows", "large offset", "positive",
)  # fmt: skip
#: Further cases of regions with additive masks, whose masked elements are the type's least value, as
#: exporters write them. Added to it a finite logit is lost: a row that is masked throughout is
#: uniform, whatever its logits are, and (mask - max(mask + logit)) + logit is another program.
MASKED = ("masked", "masked throughout")

#: Of the largest fp32: whether a sum of more overflows on its way hangs on its order, in originals as well.
IN_SUMS = 2.0**-20
#: Further cases where real weights are given, on which values only have to be finite where those of the
#: original are: of the ends of types, of which interval analysis knows little where some inputs overflow.
EDGES = ("edge of the type", "outlier at the edge", "constant rows at the edge")


def sample_extents(
  region: Region, deep: int = DEEP, flat: int = FLAT, elements: int = 1 << 18, least_flat: int = LEAST_FLAT
) -> dict[str, int]:
  """Axis -> at most ``deep`` elements where it is reduced, else at most ``flat``.

  Axes are halved until no input has more than ``elements``, and no value of any program, which may be over
  all axes, more than ``MOST_ELEMENTS``: while one of the largest input that is not reduced has ``least_flat``
  the longest of those, whose elements are alike (batch and heads of attention), then the longest of all.
  """
  reduced = {
    a
    for node in t.walk(region.terms)
    if node.op in t.REDUCTIONS
    for a in node.attr  # type: ignore[union-attr]
  }
  extents = {a: min(n, deep if a in reduced else flat) for a, n in region.extents.items()}

  def size(axes: Iterable[str]) -> int:
    return prod(extents[a] for a in axes)

  while True:
    large = max((i.axes for i in region.inputs), key=size)
    if size(large) <= elements and size(extents) <= MOST_ELEMENTS:
      return extents
    many = size(large) > elements
    alike = [a for a in large if many and a not in reduced and extents[a] >= least_flat]
    extents[max(alike or extents, key=extents.__getitem__)] //= 2


def sample_params(kernel: Kernel, given: KernelParams, extents: Mapping[str, int]) -> KernelParams:
  """Tiles and ranks as given, but few tiles and iterations: the grid does not round."""
  tiles = given.tile or tuple(extents[a] for a in kernel.grid)
  tile = tuple(
    max(1, min(n, extents[a]), ceil(extents[a] / MOST_TILES)) for n, a in zip(tiles, kernel.grid, strict=True)
  )
  if kernel.loop is None:
    return KernelParams(tile=tile, cluster=given.cluster)
  size = extents[kernel.loop]
  step = max(1, min(given.loop_tile or size, size), ceil(size / MOST_ITERATIONS))
  return KernelParams(tile=tile, cluster=given.cluster, loop_tile=step)


def sample_inputs(
  region: Region,
  extents: Mapping[str, int],
  weights: Mapping[str, np.ndarray],
  rng: np.random.Generator,
  cases: Sequence[str] = CASES,
) -> dict[str, np.ndarray]:
  """Region input -> [case, *axes], exact in the input's element type."""
  picked = _pick(region, extents, weights, rng)
  masks, result = mask_inputs(region), {}
  for i in region.inputs:
    shape = tuple(extents[a] for a in i.axes)
    if i.is_weight and i.tensor.name in weights:
      real = by_axes(i, weights[i.tensor.name], region.extents)
      one = real[np.ix_(*(picked[a] for a in i.axes))].astype(np.float64)
      data = np.broadcast_to(one, (len(cases), *shape))
    elif i.is_weight:
      deep = max(shape, default=1) if len(shape) > 1 else 1
      one = rng.standard_normal(shape) / np.sqrt(deep) + (len(shape) <= 1)
      data = np.broadcast_to(as_input(one, i.dtype), (len(cases), *shape))
    else:
      edge = largest(i.dtype) * (IN_SUMS if i.dtype is DType.F32 else 1.0)
      drawn = [hard_case(case, shape, rng, edge) for case in cases]
      data = as_input(np.stack(drawn), i.dtype)
      if i.name in masks:
        least = float(finfo(i.dtype).min)
        for number, case in enumerate(cases):
          if case in MASKED:
            hidden = (drawn[number] < 0) | (case == MASKED[1])
            data[number] = np.where(hidden, least, 0.0)
    result[i.name] = round_to(np.ascontiguousarray(data), i.dtype)
  return result


#: A region with the real weights of one of its instances.
Part = tuple[Region, Mapping[str, np.ndarray]]


def stacked_inputs(
  parts: Sequence[Part], extents: Mapping[str, int], rng: np.random.Generator, cases: Sequence[str]
) -> dict[str, np.ndarray]:
  """``sample_inputs`` of several instances of one region: all cases of the first, then of the next."""
  found = [sample_inputs(region, extents, weights, rng, cases) for region, weights in parts]
  return {name: np.concatenate([f[name] for f in found]) for name in found[0]}


def hard_case(case: str, shape: tuple[int, ...], rng: np.random.Generator, edge: float = 1.0) -> np.ndarray:
  """``edge``: the largest number of the type."""
  x = rng.standard_normal(shape)
  if case == "edge of the type":
    return np.asarray(np.clip(x / 4, -1, 1) * edge)
  if case.startswith("scale"):
    return np.asarray(x * 2.0 ** int(case.split("^")[1]))
  if case == "positive":
    return np.asarray(abs(x) + 0.5)
  if case == "large offset":
    return np.asarray(x + 64.0)
  if not shape:
    return np.asarray(x)
  if case == "outlier channels":
    x[..., rng.integers(shape[-1], size=1 + shape[-1] // 100)] *= 100.0
  if case == "constant rows":
    rows = x.reshape(-1, shape[-1])
    rows[0], rows[-1] = 0.0, 1.5
  if case == "outlier at the edge":
    x[..., rng.integers(shape[-1])] = edge
  if case == "constant rows at the edge":
    rows = x.reshape(-1, shape[-1])
    rows[0], rows[-1] = edge, -edge
  return x


def _pick(
  region: Region,
  extents: Mapping[str, int],
  weights: Mapping[str, np.ndarray],
  rng: np.random.Generator,
) -> dict[str, np.ndarray]:
  """Axis -> the indices of real weights to use: a quarter has the largest of a sample."""
  picked = {}
  for axis, size in extents.items():
    n = region.extents[axis]
    pool = rng.permutation(n)[: 4 * size] if n < MANY else np.unique(rng.integers(0, n, 4 * size))
    peak = np.zeros(len(pool))
    for i in region.inputs:
      if i.is_weight and axis in i.axes and i.tensor.name in weights:
        real = by_axes(i, weights[i.tensor.name], region.extents)
        peak = np.maximum(peak, _peaks(i, real, axis, pool))
    order = np.argsort(-peak, kind="stable")
    large = order[: size // 4]
    rest = rng.permutation(order[size // 4 :])[: size - large.size]
    picked[axis] = np.sort(pool[np.concatenate([large, rest])])
  return picked


def _peaks(i: RegionTensor, data: np.ndarray, axis: str, pool: np.ndarray) -> np.ndarray:
  others = tuple(n for n, a in enumerate(i.axes) if a != axis)
  step = max(1, PEAK_ELEMENTS * data.shape[i.axes.index(axis)] // max(1, data.size))
  found = np.zeros(len(pool))
  for start in range(0, len(pool), step):  # a vocabulary by a hidden size is half a gigabyte
    part = data.take(pool[start : start + step], axis=i.axes.index(axis)).astype(np.float32)
    found[start : start + step] = np.abs(part).max(axis=others)
  return found
