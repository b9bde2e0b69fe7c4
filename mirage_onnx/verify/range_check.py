"""Can a candidate overflow where the region cannot, and which maxima may be left out?

A program is *safe* on inputs up to a magnitude if no output can be infinite or NaN there
(``ranges``). The question is that of docs/verification.md, "Ranges". A region that is not proven
safe at any magnitude is no measure; then only the empirical checks speak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf, prod

import numpy as np

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import DType, Region, RegionTensor, UGraph
from mirage_onnx.ir import interval as iv
from mirage_onnx.ir import term as t
from mirage_onnx.ir.interval import Interval
from mirage_onnx.verify.program_lines import Line, ugraph_lines
from mirage_onnx.verify.ranges import Reach, follow, largest
from mirage_onnx.verify.region_ugraph import region_graph
from mirage_onnx.verify.symbolic import block_values
from mirage_onnx.verify.term_bounds import Bounds, Fact, fact_of, measured
from mirage_onnx.verify.term_patterns import find_shift
from mirage_onnx.verify.weights import Weights

#: Powers of two between which the inputs of a region that is not safe on all of its types' numbers end.
MOST_EXPONENT, LEAST_EXPONENT = 128, -8
#: The largest inputs of fp32 of a region that subtracts a row's maximum: with products of two larger ones
#: what is below the least fp32, of a mask, is no number, and no interval says that its exponential is 0.
BESIDE_MASKS = 2.0**38
#: The name, among those of activations, of what all of them may be where an overflow is hidden.
_HIDDEN = "hidden overflow"
#: The smallest normal fp32 number: an exponential below it loses precision, and its row with it.
SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class RangeRecord:
  """``magnitude``: inputs up to which region and candidate are safe (None: the region never is).

  ``halves``: 16-bit block value -> its interval; ``exponents``: exp -> that of its argument.
  """

  magnitude: float | None
  halves: Mapping[str, Interval]
  exponents: Mapping[str, Interval]


#: Activation -> the largest magnitude of its elements.
Box = Mapping[str, float]


class RangeCheck:
  """The check of one region; its facts are gathered once for all candidates.

  ``boxes``: inputs on which the region is safe, and a candidate has to be. First the largest common
  magnitude (that of its type where it is safe on every number), then, with the others there, the
  largest of each activation; then those up to which it is finite, though wrong where it hides an overflow
  (``ranges``), for a candidate's NaN would spoil rows to come. None: no measure.

  ``like``: of a region whose steps do the same (``match/twins.py``), with other weights; the search for the
  boxes begins at its own.
  """

  def __init__(
    self,
    region: Region,
    weights: Mapping[str, np.ndarray] | None = None,
    like: RangeCheck | None = None,
  ) -> None:
    self.region, self._like = region, like
    given = weights or {}
    if like is None:
      original = region_graph(region)
      self._lines = tuple(map(_as_computed, ugraph_lines(original.ugraph)))
      self._step_extents = original.extents_at(region.extents)
      self._step_axes = {i.name: original.ugraph.tensor(i.name).axes for i in region.inputs}
    else:
      self._lines, self._step_extents, self._step_axes = like._lines, like._step_extents, like._step_axes
    held, sizes = region.weights, self._step_extents
    self._weights = {i.name: _weight(region.extents, i, i.axes, given) for i in held}
    self._step_weights = {i.name: _weight(sizes, i, self._step_axes[i.name], given) for i in held}
    numbers = [i for i in region.inputs if not i.is_weight and not _is_bounded(i.dtype)]
    most = BESIDE_MASKS if any(x.op == t.MAXR for x in t.walk(region.terms)) else inf
    self._tops = {i.name: min(largest(i.dtype), most) for i in numbers}
    self._exponents: dict[str, int | None] = {}
    same = like is not None and self._step_weights == like._step_weights
    self.boxes: tuple[Box, ...] = like.boxes if like and same else tuple(self._safe_boxes())

  @property
  def magnitude(self) -> float | None:
    """Inputs up to which the region is safe, in all activations at once; None: it never is."""
    return max(self.boxes[0].values(), default=0.0) if self.boxes else None

  def _activations(self, box: Box) -> dict[str, Fact]:
    return {
      i.name: Fact(_range(i, iv.symmetric(box.get(i.name, 1.0))))
      for i in self.region.inputs
      if not i.is_weight
    }

  def _safe_boxes(self) -> Iterator[Box]:
    """By bisection: a program that is safe at a magnitude is safe below it."""

    def common(exponent: int) -> Box:
      return {name: min(2.0**exponent, top) for name, top in self._tops.items()}

    exponent = self._largest("", common, LEAST_EXPONENT)
    if exponent is None:
      return
    yield (box := common(exponent))
    for name, top in self._tops.items():
      if box[name] < top and len(box) > 1:
        at = partial(_widened, box, name, top)
        further = self._largest(name, at, exponent)
        if further is not None and further > exponent:
          yield at(further)
    if any(box[name] < top for name, top in self._tops.items()):
      hidden = self._largest(_HIDDEN, common, exponent)
      if hidden is not None and hidden > exponent:
        yield common(hidden)

  def _largest(self, name: str, box: Callable[[int], Box], low: int) -> int | None:
    """The largest exponent whose box is safe; None where that of ``low`` is not."""

    @cache
    def safe(exponent: int) -> bool:
      return self._is_safe(box(exponent), hides=name == _HIDDEN)

    near = self._like._exponents.get(name) if self._like else None
    high = MOST_EXPONENT
    found = high if safe(high) else low if safe(low) else None
    if near is not None and found == low and low < near < high:
      if safe(near):
        found, high = near, high if safe(near + 1) else near + 1
      else:
        high = near
    while found is not None and high - found > 1:
      middle = (found + high) // 2
      found, high = (middle, high) if safe(middle) else (found, middle)
    self._exponents[name] = found
    return found

  def _is_safe(self, box: Box, *, hides: bool = False) -> bool:
    facts = {**self._activations(box), **self._step_weights}
    reach = follow(self._lines, Bounds(self._step_extents, facts), hides=hides)
    return all(reach[o.name].finite for o in self.region.outputs)

  def any_inputs(self) -> Bounds:
    """What holds of the region's terms whatever its activations are."""
    inputs = [i for i in self.region.inputs if not i.is_weight]
    free = {i.name: Fact(_range(i, iv.REALS)) for i in inputs}
    return Bounds(self.region.extents, {**free, **self._weights})

  def check(self, graph: UGraph, lines: Sequence[Line] = ()) -> RangeRecord | Rejection:
    """The record of a candidate that is safe where the region is.

    Else RANGE with the names of the kernel and of the value in it that begins to be unsafe.
    ``lines``: of ``graph``, where they are known.
    """
    lines, found = lines or ugraph_lines(graph), list[dict[str, Reach]]()
    for box, reach in zip(self.boxes or (self._tops,), self.reaches(lines), strict=True):
      for output in self.region.outputs:
        at = reach[output.name]
        if self.boxes and not at.finite:
          line = next((x for x in lines if x.name == at.origin), lines[-1])
          reason = self._reason(output.name, line, reach, box)
          return Rejection("RANGE", reason, (line.kernel, line.name))
      found.append(reach)
    names = {line.name: line for line in lines}
    stored = {n: x for n, x in names.items() if x.dtype.is_half and x.op != "load"}
    return RangeRecord(
      self.magnitude,
      {n: found[0][n].interval for n in stored},
      {n: found[0][x.args[0]].interval for n, x in names.items() if x.op == "exp"},
    )

  def reaches(self, lines: Sequence[Line]) -> Iterator[dict[str, Reach]]:
    """What the lines of a candidate can be, in each of ``boxes``."""
    for box in self.boxes or (self._tops,):
      facts = {**self._activations(box), **self._weights}
      yield follow(lines, Bounds(self.region.extents, facts))

  def _reason(self, output: str, line: Line, reach: Mapping[str, Reach], box: Box) -> str:
    args = ", ".join(f"{a} in {_text(reach[a].interval)}" for a in line.args)
    sizes = sorted(set(box.values()))
    up_to = f"{sizes[0]:g}"
    if len(sizes) > 1:
      up_to = ", ".join(f"{x:g} ({name})" for name, x in box.items())
    return (
      f"{line.name} ({line.op} of {args or 'inputs'}) can exceed the largest {line.dtype}, "
      f"{largest(line.dtype):.4g}, and makes {output} infinite or NaN on inputs up to "
      f"{up_to}, on which the region is safe"
    )


def _widened(box: Box, name: str, top: float, exponent: int) -> Box:
  """``box`` with another magnitude of one activation."""
  return {**box, name: min(2.0**exponent, top)}


def _as_computed(line: Line) -> Line:
  """A line of the original in the type that ONNX Runtime has inside of an operator: fp32, not exact.

  Its mean of fp32 is a sum that is divided, and overflows where that of a kernel does.
  """
  exact = line.dtype is DType.F64 and line.op in ("sum", "mul", "matmul")
  return replace(line, dtype=DType.F32) if exact else line


def _is_bounded(dtype: DType) -> bool:
  """Whether every number of the type is small."""
  return dtype is DType.BOOL or dtype.is_byte


def _range(i: RegionTensor, numbers: Interval) -> Interval:
  if i.dtype.is_byte:
    return Interval(*map(float, i.dtype.integers))
  return iv.UNIT if i.dtype is DType.BOOL else numbers


def _text(x: Interval) -> str:
  return f"[{x.lo:.3g}, {x.hi:.3g}]"


def _weight(
  extents: Mapping[str, int],
  i: RegionTensor,
  axes: tuple[str, ...],
  given: Mapping[str, np.ndarray],
) -> Fact:
  """The measured fact of a weight over ``axes``; one that is not given is taken to be normalised.

  That is: the scales of channels are at most 1, the rows and columns of a matrix have norm 1. Packed
  integers are what their bits allow.
  """
  name, shape = i.tensor.name, tuple(extents[a] for a in axes)
  if name not in given and i.dtype.is_packed:
    return Fact(Interval(*map(float, i.dtype.integers)), {})
  if name not in given:
    return Fact(iv.SIGNED_UNIT, dict.fromkeys(axes, 1.0) if len(axes) > 1 else {})
  if isinstance(given, Weights):
    return fact_of(given.extremes(name, shape), axes)
  return measured(given[name].reshape(shape), axes)


@dataclass(frozen=True, slots=True)
class Maximum:
  """A softmax of the region: the interval of what its maximum is taken of, on any inputs.

  ``droppable``: exp of it, and the sum over the row, fit fp32, so that the maximum may be left
  out; ``fits_half``: exp of it fits the 16-bit type of the region's inputs as well.
  """

  logits: Interval
  count: int
  droppable: bool
  fits_half: bool

  @property
  def reason(self) -> str:
    """The verdict in words."""
    span = f"the logits lie in {_text(self.logits)} whatever the inputs are"
    if not self.droppable:
      return f"the maximum is needed: {span}, so their exponentials can overflow fp32 or vanish"
    half = "fits" if self.fits_half else "does not fit"
    return (
      f"the maximum may be dropped: {span}, the sum of {self.count} exponentials fits fp32; "
      f"one of them {half} 16 bits"
    )


def softmax_maxima(check: RangeCheck) -> tuple[Maximum, ...]:
  """What the interval analysis says of every maximum that shifts an exp of the region."""
  region, bounds = check.region, check.any_inputs()
  halves = [largest(i.dtype) for i in region.inputs if i.dtype.is_half]
  found = []
  for node in t.walk(region.terms):
    shift = find_shift(node.args[0], frozenset()) if node.op == "exp" else None
    if shift is None:
      continue
    maximum = next(n for n in t.walk(node.args) if n.op == t.MAXR and n.attr == shift.axes)
    logits = bounds.interval(maximum.args[0])
    count = prod(region.extents[a] for a in shift.axes)
    top = iv.exponential(logits)
    found.append(
      Maximum(
        logits,
        count,
        top.hi * count <= largest(DType.F32) and top.lo >= SMALLEST,
        top.hi <= min(halves, default=inf),
      )
    )
  return tuple(found)


def proven_exponents(
  graph: UGraph, extents: Mapping[str, int], facts: Mapping[str, Fact]
) -> dict[tuple[str, int], float]:
  """exp op (kernel, index) -> the upper bound of its argument, where there is one."""
  values = block_values(graph)
  bounds = Bounds(extents, facts)
  found = {}
  for kernel in graph.kernels:
    for n, op in enumerate(kernel.ops):
      value = values[kernel.name, op.args[0]] if op.op == "exp" else None
      if value is not None and value.term is not None:
        found[kernel.name, n] = bounds.within(value.marks).interval(value.term).hi
  return found
