"""What a kernel is checked on before it is timed: the inputs of DESIGN 4, row beside row.

Rows of one tensor are of several kinds: normal, small, large, with outlier channels, constant, far
from zero, masked. A row is what one element of the *free* axes has (those of every output, and over
which nothing is reduced), so that rows of one kind meet in the outputs too, and one run of a tensor
with many rows covers all kinds. Where there are fewer rows than kinds, there are further draws.
"""

from collections.abc import Mapping
from math import ceil, prod

import numpy as np

from mirage_onnx.ir import DType, Region, RegionTensor, as_input
from mirage_onnx.ir import term as t
from mirage_onnx.superopt.reach import places_of
from mirage_onnx.verify.adversarial import mask_inputs
from mirage_onnx.verify.interpret_steps import positional
from mirage_onnx.verify.ranges import finfo

#: Numbers that are drawn of one tensor (a prime, so no two of its rows are the same); the rest repeats them.
MOST_DRAWN = 8388593
#: Kinds of rows, each with the size of its elements: what is small beside that counts as zero.
KINDS = (
  ("normal", 1.0), ("scale 2^-8", 2.0**-8), ("outlier channels", 1.0), ("scale 2^8", 2.0**8),
  ("constant", 1.0), ("large offset", 1.0),
)  # fmt: skip
#: One channel of so many is an outlier, and by how much; how far an offset is; what is constant.
CHANNELS, OUTLIER, OFFSET, CONSTANT = 100, 100.0, 64.0, 1.5
#: Numbers of classes are smaller, so that none overflows.
PRIME = (1 << 31) - 1
#: Rows of a mask that are left alone, have every second element masked, and are masked throughout.
MASKS = 3


def free_axes(region: Region) -> dict[str, int]:
  """The axes along which rows differ in kind, and how many of their elements are of one row.

  An axis may go on from a row to the next one: an elementwise region has one axis only.
  """
  reduced = {a for n in t.walk(region.terms) if n.op in t.REDUCTIONS for a in n.attr}  # type: ignore[union-attr]
  shared = set.intersection(*(set(o.axes) for o in region.outputs)) - reduced
  found = dict.fromkeys(shared, 1)
  for o in region.outputs:
    shape = [d for d in region.shape(o.tensor) if d != 1]
    held = [h for h in o.dims if h] or [(a,) for a in o.axes]
    for a in shape and held and held[-1]:
      if a in found:
        found[a] = max(found[a], min(region.extents[a], shape[-1]))
  return found


def draws(region: Region) -> int:
  """How many draws cover all kinds in every row."""
  rows = 1 + sum(ceil(region.extents[a] / n) - 1 for a, n in free_axes(region).items())
  return ceil(len(KINDS) / rows)


def kinds_of(region: Region, x: RegionTensor, number: int) -> np.ndarray:
  """What row each element of ``x`` belongs to, in the memory order of ONNX, counted from ``number``."""
  free = free_axes(region)
  count = np.full([region.extents[a] for a in x.axes], number, np.int32)
  for n, a in enumerate(x.axes):
    if a in free:
      own = np.arange(region.extents[a], dtype=np.int32) // free[a]
      count += own.reshape([-1 if m == n else 1 for m in range(count.ndim)])
  return positional(x, count)


def classes_of(region: Region, x: RegionTensor, number: int) -> np.ndarray:
  """Elements of an output with equal numbers have comparable roundings.

  The rows of all inputs that meet there are of equal kinds, and they differ in their place along the
  longest axis of rows only: other heads have other outlier channels.
  """
  free = free_axes(region)
  rows = {a: ceil(region.extents[a] / free[a]) for a in x.axes if a in free}
  longest = max(rows, key=lambda a: rows[a], default="")
  shape = [region.extents[a] for a in x.axes]

  def along(a: str) -> np.ndarray:
    places = np.arange(region.extents[a])
    return (places // free[a] if a in free else places).reshape([-1 if b == a else 1 for b in x.axes])

  found = np.zeros(shape, np.int64)
  for i in region.inputs:
    if not i.is_weight and i.view is None:
      own = sum((along(a) for a in rows if a in i.axes), np.full(1, number))
      found = (found * len(KINDS) + own % len(KINDS)) % PRIME
  for a in rows:
    if a != longest:
      found = (found * rows[a] + along(a)) % PRIME
  return positional(x, found)


def drawn(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
  """Normal numbers; of a large tensor ``MOST_DRAWN`` repeat."""
  return np.resize(rng.standard_normal(min(prod(shape), MOST_DRAWN)), shape)


def _drawn_as(shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> np.ndarray:
  """``drawn`` in a type: cast before it repeats, for a table of embeddings is half a billion numbers."""
  few = drawn((min(prod(shape), MOST_DRAWN),), rng)
  return np.resize(as_input(few, dtype).astype(dtype.numpy), shape)


def hard_inputs(
  region: Region,
  weights: Mapping[str, np.ndarray],
  rng: np.random.Generator,
  number: int,
  before: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
  """Draw ``number`` of the inputs: ONNX name -> values in their type and shape.

  They are the tensors that the region's inputs are parts of. Weights are the real ones. What has
  no kinds of rows (tables, what inputs are parts of) is as in an earlier draw ``before``.
  """
  data: dict[str, np.ndarray] = {}
  masks = mask_inputs(region)
  for i in region.inputs:
    name, shape, stored = i.source.name, region.shape(i.source), i.source.dtype or i.dtype
    if name in data:
      continue
    if name in weights:
      data[name] = np.asarray(weights[name]).astype(stored.numpy, copy=False).reshape(shape)
      continue
    if i.is_weight or i.view is not None:
      data[name] = before[name] if before else _drawn_as(shape, i.dtype, rng)
      continue
    x = drawn(shape, rng)
    rows = kinds_of(region, i, number).reshape(shape)
    if i.dtype.is_float and i.name in masks:
      x = _masked(x, rows, float(finfo(i.dtype).min))
    elif i.dtype.is_float:
      x = _of_kinds(x, rows % len(KINDS), rng)
    with np.errstate(over="ignore"):
      data[name] = as_input(x, stored).astype(stored.numpy)
  for p in region.picks:
    data[p.source.name] = rng.integers(0, region.count_of(p), region.shape(p.source))
  return data | drawn_lengths(region, rng, number)


def drawn_lengths(region: Region, rng: np.random.Generator, number: int) -> dict[str, np.ndarray]:
  """What names a place: the last one in draw 0, any in others: ONNX Runtime writes where it says."""
  found = {}
  ends = places_of(region)
  for i in region.inputs:
    if i.name in ends and not i.is_weight:
      shape, most = region.shape(i.source), ends[i.name]
      lengths = rng.integers(0, most, shape) if number else np.full(shape, most - 1)
      found[i.source.name] = lengths.astype((i.source.dtype or i.dtype).numpy)
  return found


def half_full(region: Region, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """``data`` with caches as in the middle of a text: so all is timed, as nodes are (``node_models.py``)."""
  found, ends = dict(data), places_of(region)
  for i in region.inputs:
    if i.name in ends and not i.is_weight:
      found[i.source.name] = np.full_like(data[i.source.name], max(1, ends[i.name] // 2) - 1)
  return found


def _of_kinds(x: np.ndarray, kinds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  scale = np.array([size for _, size in KINDS])
  offset = np.zeros(len(KINDS))
  names = [name for name, _ in KINDS]
  offset[names.index("large offset")] = OFFSET
  offset[names.index("constant")] = CONSTANT
  scale[names.index("constant")] = 0.0
  x = x * scale[kinds] + offset[kinds]
  if x.ndim:
    width = x.shape[-1]
    columns = np.zeros(width, bool)
    columns[rng.integers(width, size=1 + width // CHANNELS)] = True
    np.multiply(x, OUTLIER, out=x, where=columns & (kinds == names.index("outlier channels")))
  return x


def _masked(x: np.ndarray, rows: np.ndarray, least: float) -> np.ndarray:
  """A mask that is added: zero, or the type's least number, as exporters write it."""
  hidden = ((rows % MASKS == 1) & (x < 0)) | (rows % MASKS == 2)
  return np.where(hidden, least, 0.0)
