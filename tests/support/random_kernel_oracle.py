"""What a random program means in float64, and how far from it a right kernel can be.

Besides the exact run there are runs in which every value is rounded to its element type after a
random error of the size that fp32 arithmetic has (tensor cores cut off what lies below the
accumulator's last bit). In half of them 16-bit values are rounded up or down at random, as a kernel
whose sum is a bit larger rounds some. Only what is ill-conditioned spreads these runs apart.

A kernel is right if in every row (of ``WIDTH`` elements at least), and in every element, its error
is at most ``FACTOR`` times the largest of these runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mirage_onnx.ir.dtype import DType
from mirage_onnx.verify.domain import Float64, Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray

#: Runs that round as a kernel does, the first without errors; and that round at random.
NEAREST, RANDOM = 4, 4
FACTOR, WIDTH = 2.0, 16
#: Of an operation that fp32 has, of a function that the GPU approximates, of one step of a sum.
OPERATION, FUNCTION, STEP = 2.0**-22, 2.0**-20, 2.0**-22
#: Added for every element: fp32's smallest numbers may be flushed to zero.
TINY = 1e-30
_EXACT = frozenset(("neg", "abs", "relu", "max", "min"))
_ROUNDED = frozenset(("add", "sub", "mul", "square"))


class Disturbed(Rounded):
  """Rounded after random errors of fp32 arithmetic; run 0 is rounded and nothing else."""

  def __init__(self, rng):
    super().__init__(NEAREST + RANDOM)
    self._rng = rng

  def round(self, x, dtype):
    result = super().round(x, dtype)
    if dtype.is_half and len(x) > NEAREST:
      some = x[NEAREST:]
      unit = _unit(some, dtype)
      with np.errstate(all="ignore"):
        either = np.floor(some / unit + self._rng.random(some.shape)) * unit
      either = np.where(np.isfinite(some), either, some)
      result = np.concatenate([result[:NEAREST], super().round(either, dtype)])
    return result

  def _noise(self, x, scale):
    with np.errstate(all="ignore"):
      noise = self._rng.uniform(-1.0, 1.0, x.shape)
      noise[:1] = 0.0
      moved = x + noise * scale
    return np.where(np.isfinite(x), moved, x)

  def elementwise(self, op, *args):
    result = super().elementwise(op, *args)
    if op in _EXACT:
      return result
    size = OPERATION if op in _ROUNDED else FUNCTION
    return self._noise(result, size * np.abs(result))

  def power(self, x, e):
    result = super().power(x, e)
    return self._noise(result, 2 * FUNCTION * np.abs(result))

  def total(self, x, axis):
    length = np.prod([x.shape[a] for a in axis])
    return self._noise(super().total(x, axis), _steps(length) * np.abs(x).sum(axis))

  def matmul(self, x, y):
    most = np.abs(x) @ np.abs(y)
    return self._noise(super().matmul(x, y), _steps(x.shape[-1]) * most)


def _steps(length):
  return STEP * (2 + length / 8)


@dataclass(frozen=True)
class Want:
  """A saved tensor: its exact values, and the errors of the disturbed runs [run, *axes]."""

  exact: np.ndarray
  errors: np.ndarray
  dtype: DType


@dataclass(frozen=True)
class Oracle:
  """``inputs`` in their own types; ``wants``: every saved tensor."""

  inputs: Mapping[str, np.ndarray]
  wants: Mapping[str, Want]


def drawn(graph, kinds, extents, rng):
  found = {}
  for t in graph.tensors:
    if t.name in kinds:
      shape = tuple(extents[a] for a in t.axes)
      values = np.clip(rng.standard_normal(shape), -3.5, 3.5)
      kind, _, axis = kinds[t.name].partition(":")
      if kind == "mask":
        values = _mask(shape, t.axes.index(axis), rng)
      elif kind == "coarse":
        values = np.round(values * 2) / 2
      found[t.name] = np.asarray(values).astype(t.dtype.numpy)
  return found


def _mask(shape, along, rng):
  """0 and -inf; along the axis at least one element is 0, and often the first ones are not."""
  masked = rng.random(shape) < 0.3
  rows = np.moveaxis(masked, along, -1)
  if rng.random() < 0.5:
    rows[..., : int(rng.integers(rows.shape[-1]))] = True
  rows[..., -1] &= ~rows.all(axis=-1)
  return np.where(masked, -np.inf, 0.0)


def oracle(graph, params, kinds, extents, seed):
  rng = np.random.default_rng(seed)
  return oracle_of(graph, params, drawn(graph, kinds, extents, rng), extents, rng)


def oracle_of(graph, params, inputs, extents, rng):
  exact = interpreted(Float64(), graph, params, extents, inputs)
  runs = interpreted(Disturbed(rng), graph, params, extents, inputs)
  wants = {}
  for t in graph.tensors:
    if t.role in ("output", "temp"):
      with np.errstate(all="ignore"):
        errors = runs[t.name] - exact[t.name]
      errors = np.where(runs[t.name] == exact[t.name], 0.0, errors)  # infinities
      wants[t.name] = Want(exact[t.name][0], errors, t.dtype)
  return Oracle(inputs, wants)


def interpreted(domain, graph, params, extents, inputs):
  axes = {t.name: t.axes for t in graph.tensors}
  named = {}
  for name, x in inputs.items():
    wide = np.broadcast_to(x.astype(np.float64), (domain.rows, *x.shape))
    named[name] = NamedArray(wide, axes[name])
  values = interpret_ugraph(domain, graph, params, extents, named)
  found = {}
  for t in graph.tensors:
    if t.name not in inputs:
      data = values[t.name].data
      found[t.name] = np.broadcast_to(data, (domain.rows, *data.shape[1:]))
  return found


def difference(want, got):
  got = got.astype(np.float64)
  exact, errors = want.exact, np.abs(want.errors).max(axis=0)
  with np.errstate(all="ignore"):
    off = np.where(got == exact, 0.0, np.abs(got - exact))
  width, axis = 1, exact.ndim
  while axis and width < WIDTH:
    axis -= 1
    width *= exact.shape[axis]
  rows = [np.reshape(x, (-1, width)) for x in (off, errors, exact)]
  row_off, row_allowed = (np.sqrt((x * x).mean(axis=-1)) for x in rows[:2])
  last = _unit(rows[2], want.dtype)
  row_last = np.sqrt((last * last).mean(axis=-1))
  limit = FACTOR * row_allowed + 0.1 * row_last + TINY
  # One element may be off by more than the largest of its few runs, hardly more than its row.
  each = FACTOR * rows[1] + 4 * row_allowed[:, None] + 0.6 * last + TINY
  bad = ~(row_off <= limit)
  if bad.any():
    row = int(np.argmax(np.where(bad, np.nan_to_num(row_off / limit, nan=np.inf), 0)))
    return f"row {row}: error {row_off[row]:.3e}, allowed {limit[row]:.3e}"
  bad = ~(rows[0] <= each)
  if bad.any():
    row, at = (int(n) for n in np.argwhere(bad)[0])
    return f"row {row} element {at}: error {rows[0][row, at]:.3e}, allowed {each[row, at]:.3e}"
  return ""


def _unit(x, dtype):
  bits = {DType.F16: 10, DType.BF16: 7}.get(dtype, 23)
  lowest = {DType.F16: -24.0}.get(dtype, -149.0)
  with np.errstate(all="ignore"):
    exponent = np.floor(np.log2(np.abs(x))) - bits
  return 2.0 ** np.maximum(np.where(np.isfinite(exponent), exponent, lowest), lowest)


def telling(want):
  """Whether errors would be seen: no NaN, nothing lost to rounding, not the same everywhere."""
  if not np.isfinite(want.errors).all() or np.isnan(want.exact).any():
    return False
  exact = np.where(np.isfinite(want.exact), want.exact, 0.0)
  error = np.sqrt(np.square(want.errors).mean())
  scale = np.sqrt(np.square(exact).mean())
  return bool(error <= 0.03 * scale and (exact.size < 4 or exact.std() > 20 * error))
