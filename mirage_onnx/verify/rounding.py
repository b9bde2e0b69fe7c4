"""A first-order bound of the rounding error of a candidate, against that of the region.

Forward mode (running error analysis, Wilkinson 1963; Higham, Accuracy and Stability of Numerical
Algorithms, section 3.3): next to every value runs its error, carried through the partial
derivatives of each operation at the computed values. Rounding to a type with unit roundoff u adds
an error of standard deviation u |x| / sqrt(3) (uniform in +-u |x|) to a value that the type does
not hold; a sum of n terms in fp32 adds another, u32 n^(1/4) (|terms|_2 + |sum|) / sqrt(3): sqrt(n)
partial sums of sqrt(n) terms, as threads and tensor cores make them.

Roundings are independent and of random sign (Higham and Mary 2019): the error of an output row is
the root mean square over ``DIRECTIONS`` random choices of all signs and over its elements.

Both programs are measured on the inputs of ``samples``. A row of a candidate may have ``FACTOR``
times the region's error plus the slack of ``check_numerics``: that of the same row or of its median
row, because a row in which it happens to be exact (8 x is) is no measure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import DType, KernelParams, Region, UGraph, round_to
from mirage_onnx.ir.functions import ELEMENTWISE
from mirage_onnx.verify.domain import Axes, Float64, real_power
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.numeric import FACTOR, SMALL_ROW, slack
from mirage_onnx.verify.program_lines import block_name
from mirage_onnx.verify.ranges import finfo
from mirage_onnx.verify.region_ugraph import region_graph
from mirage_onnx.verify.samples import Part, sample_extents, sample_params, stacked_inputs

#: Elements of a reduced axis and of any other: fewer than ``check_numerics`` takes, because the
#: errors of every value run along.
DEEP, FLAT = 64, 5
#: Elements of the largest input.
ELEMENTS = 4096
#: Relative errors do not depend on the scale, so of ``samples.CASES`` these tell something new.
CASES = ("normal", "outlier channels", "constant rows", "large offset", "positive")
#: So many that two programs of equal errors are seldom measured a factor of two apart, however few
#: roundings make the error of a row.
DIRECTIONS = 16


def deviation(dtype: DType) -> float:
  """The standard deviation of a relative rounding error that is uniform in +-u (u = eps / 2)."""
  return float(finfo(dtype).eps) / 2 / float(np.sqrt(3))


class RunningError(Float64):
  """Computed values and, in further rows, their first-order errors.

  Axis 0 is [values of all cases, then errors of all cases per direction]. Values are rounded, so
  one that its type holds already (a load, a cast of a cast) adds no error a second time.
  """

  def __init__(self, cases: int, rng: np.random.Generator) -> None:
    super().__init__(cases * (1 + DIRECTIONS))
    self._cases = cases
    self._rng = rng

  def exact(self, data: np.ndarray) -> np.ndarray:
    """An input [case, ...] without error."""
    return np.concatenate([data, *[np.zeros_like(data)] * DIRECTIONS])

  def values(self, x: np.ndarray) -> np.ndarray:
    return x[: self._cases]

  def errors(self, x: np.ndarray) -> np.ndarray:
    """[direction, case, ...]."""
    return x[self._cases :].reshape(DIRECTIONS, self._cases, *x.shape[1:])

  def _join(self, value: np.ndarray, errors: np.ndarray) -> np.ndarray:
    errors = np.broadcast_to(errors, (DIRECTIONS, *value.shape))
    return np.concatenate([value, errors.reshape(-1, *value.shape[1:])])

  def _constant(self, x: np.ndarray) -> np.ndarray:
    x[self._cases :] = 0.0
    return x

  def neutral(self, kind: str) -> np.ndarray:
    return self._constant(super().neutral(kind))

  def lowest(self) -> np.ndarray:
    return self._constant(super().lowest())

  def constant(self, value: Fraction | str) -> np.ndarray:
    return self._constant(super().constant(value))

  def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
    given = [self.values(a) for a in args]
    value = super().elementwise(op, *given)
    with np.errstate(all="ignore"):
      errors = np.zeros((1,) * (1 + value.ndim))
      for partial, a in zip(ELEMENTWISE[op].partials, args, strict=True):
        errors = errors + _carried(partial(value, *given), self.errors(a))
    return self._join(value, errors)

  def power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
    base = self.values(x)
    with np.errstate(all="ignore"):
      slope = float(e) * real_power(base, e - 1)
      return self._join(real_power(base, e), _carried(slope, self.errors(x)))

  def total(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    value, terms = super().total(self.values(x), axis), self.values(x)
    n = prod(x.shape[a] for a in axis)
    with np.errstate(all="ignore"):
      length = np.sqrt(super().total(np.square(terms), axis))
      errors = self.errors(x).sum(axis=tuple(a + 1 for a in axis))
      return self._join(value, errors + self._summation(n, length, value))

  def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    a, b = self.values(x), self.values(y)
    value = super().matmul(a, b)
    with np.errstate(all="ignore"):
      length = np.sqrt(super().matmul(np.square(a), np.square(b)))
      errors = np.matmul(a, self.errors(y)) + np.matmul(self.errors(x), b)
      return self._join(value, errors + self._summation(x.shape[-1], length, value))

  def highest(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    value = super().highest(self.values(x), axis)
    top = np.expand_dims(value, axis)
    attained = self.values(x) == top
    share = attained / np.maximum(attained.sum(axis=axis, keepdims=True), 1)
    errors = _carried(share, self.errors(x)).sum(axis=tuple(a + 1 for a in axis))
    return self._join(value, errors)

  def round(self, x: np.ndarray, dtype: DType) -> np.ndarray:
    value = self.values(x)
    # Drawn for every value: so programs that differ in a type differ in nothing else.
    signs = self._signs(value)
    if dtype is DType.F64 or not dtype.is_float:
      return x
    kept = round_to(value, dtype)
    least = float(finfo(dtype).tiny)
    size = np.where(kept == value, 0.0, np.maximum(np.abs(value), least))
    return self._join(kept, self.errors(x) + signs * deviation(dtype) * size)

  def _summation(self, n: int, length: np.ndarray, value: np.ndarray) -> np.ndarray:
    size = n**0.25 * deviation(DType.F32) * (length + np.abs(value))
    return self._signs(value) * (size if n > 1 else 0.0)

  def _signs(self, like: np.ndarray) -> np.ndarray:
    bits = self._rng.integers(0, 2, size=(DIRECTIONS, *like.shape), dtype=np.int8)
    return 2.0 * bits - 1.0


def _carried(slope: np.ndarray | float, errors: np.ndarray) -> np.ndarray:
  """Where there is no error, none is carried, however steep the function is."""
  return np.where(errors == 0, 0.0, slope * errors)


@dataclass(frozen=True, slots=True)
class RoundingRecord:
  """First-order relative errors of the output row of a candidate that comes nearest its limit.

  ``original``: the region's error in that row; ``allowed``: the limit; ``number``: of the case.
  """

  candidate: float
  original: float
  allowed: float
  case: str
  output: str
  row: int
  number: int = 0


#: Region output -> [case, row]: relative errors.
Errors = dict[str, np.ndarray]


class RoundingCheck:
  """The check of one region; its own errors are measured once for all candidates.

  ``others``, ``cases``: as of ``NumericCheck``.
  """

  def __init__(
    self,
    region: Region,
    weights: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    others: Sequence[Part] = (),
    cases: Sequence[str] = (),
  ) -> None:
    self.region = region
    self._seed = seed
    cases = tuple(cases) or CASES
    parts = ((region, weights or {}), *others)
    self._cases = cases * len(parts)
    rng = np.random.default_rng([seed, 0x726E64])
    self._extents = sample_extents(region, DEEP, FLAT, ELEMENTS, least_flat=DEEP + 1)
    self._inputs = stacked_inputs(parts, self._extents, rng, cases)
    original = region_graph(region)
    named = {i.name: original.named(i, self._inputs[i.name]) for i in region.inputs}
    extents = original.extents_at(self._extents)
    outputs = {o.name: original.ugraph.tensor(o.name).axes for o in region.outputs}
    self._original = self._measure(original.ugraph, (KernelParams(),), extents, named, outputs)
    self._slack = slack(region)

  def check(self, graph: UGraph, params: Sequence[KernelParams] | None = None) -> RoundingRecord | Rejection:
    """The record of a well-formed candidate that rounds as well as the region, or NUMERICS."""
    try:
      worst = self.measure(graph, params)
    except RejectionError as e:
      return e.rejection
    except ValueError as e:
      return Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")
    if worst.candidate <= worst.allowed:
      return worst
    reason = (
      f"{worst.case}: row {worst.row} of {worst.output} has a first-order error of "
      f"{worst.candidate:.1e}, the original {worst.original:.1e}; most of it comes from "
      f"{self._culprit(graph, params, worst)}"
    )
    return Rejection("NUMERICS", reason)

  def measure(self, graph: UGraph, params: Sequence[KernelParams] | None = None) -> RoundingRecord:
    """The errors of a candidate, whether it is refused for them or not.

    Raises:
        ValueError: it is ill-formed.
    """
    found = []
    for name, mine in self._candidate(graph, params).items():
      theirs = self._original[name]
      both = np.isfinite(mine) & np.isfinite(theirs)
      mine, theirs = np.where(both, mine, 0.0), np.where(both, theirs, 0.0)
      usual = np.median(theirs, axis=-1, keepdims=True)
      allowed = FACTOR * np.maximum(theirs, usual) + self._slack
      at = np.unravel_index(int((mine / allowed).argmax()), mine.shape)
      found.append(
        RoundingRecord(
          float(mine[at]), float(theirs[at]), float(allowed[at]),
          self._cases[int(at[0])], name, int(at[1]), int(at[0]),
        )
      )  # fmt: skip
    return max(found, key=lambda r: r.candidate / r.allowed)

  def _candidate(
    self, graph: UGraph, params: Sequence[KernelParams] | None, cases: slice = slice(None)
  ) -> Errors:
    given = params or tuple(KernelParams() for _ in graph.kernels)
    numbers = [sample_params(k, p, self._extents) for k, p in zip(graph.kernels, given, strict=True)]
    named = {i.name: NamedArray(self._inputs[i.name][cases], i.axes) for i in self.region.inputs}
    outputs = {o.name: o.axes for o in self.region.outputs}
    return self._measure(graph, numbers, self._extents, named, outputs)

  def _measure(
    self,
    graph: UGraph,
    params: Sequence[KernelParams],
    extents: Mapping[str, int],
    inputs: Mapping[str, NamedArray],
    outputs: Mapping[str, tuple[str, ...]],
  ) -> Errors:
    cases = len(next(iter(inputs.values())).data)
    domain = RunningError(cases, np.random.default_rng([self._seed, 1]))
    exact = {n: NamedArray(domain.exact(x.data), x.axes) for n, x in inputs.items()}
    got = interpret_ugraph(domain, graph, params, extents, exact)
    result = {}
    for name, axes in outputs.items():
      data = got[name].aligned(axes)
      width = data.shape[-1] if axes else 1
      value = domain.values(data).reshape(cases, -1, width)
      errors = domain.errors(data).reshape(DIRECTIONS, cases, -1, width)
      with np.errstate(all="ignore"):
        norms = np.linalg.norm(value, axis=-1)
        floor = SMALL_ROW * np.nanmax(np.where(np.isfinite(norms), norms, 0.0), axis=-1, keepdims=True)
        size = np.sqrt(np.square(errors).sum(axis=-1).mean(axis=0))
        result[name] = size / np.maximum(np.maximum(norms, floor), 1e-30)
    return result

  def _culprit(self, graph: UGraph, params: Sequence[KernelParams] | None, worst: RoundingRecord) -> str:
    """The block value whose rounding, taken away, lowers the error most."""
    case = worst.number
    left = {}
    for k, kernel in enumerate(graph.kernels):
      for n, op in enumerate(kernel.ops):
        if op.op in ("load", "const", "extent"):
          continue
        ops = (*kernel.ops[:n], replace(op, dtype=DType.F64), *kernel.ops[n + 1 :])
        kernels = (*graph.kernels[:k], replace(kernel, ops=ops), *graph.kernels[k + 1 :])
        exact = replace(graph, kernels=kernels)
        errors = self._candidate(exact, params, slice(case, case + 1))[worst.output]
        what = f"{block_name(n, kernel.name)} ({op.op} in {op.dtype})"
        left[what] = float(np.nan_to_num(errors[0, worst.row], nan=np.inf))
    return min(left, key=lambda what: left[what])
