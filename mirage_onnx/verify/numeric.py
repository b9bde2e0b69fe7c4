"""How a candidate rounds, against how the original rounds: docs/verification.md, "Both programs".

The original may overflow where the candidate need not, and is then no measure: only elements where
the reference fits the output type and the original is finite are compared.

Few roundings may make a row's error: where logits are large, those of two or three of them. Of two
programs that round alike, one then has more than twice the other's error in many rows. So where a
row is over its limit, many draws of roundings decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import KernelParams, Region, UGraph, round_to
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.verify.adversarial import mask_inputs
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.ranges import finfo
from mirage_onnx.verify.samples import (
  CASES,
  EDGES,
  MASKED,
  Part,
  sample_extents,
  sample_params,
  stacked_inputs,
)

#: The candidate's relative error may be ``FACTOR`` times the original's, plus a slack, which is
#: smaller where the original has no 16-bit value.
FACTOR = 2.0
SLACK, SLACK_WIDE = 1e-3, 1e-5
#: Draws where one is not enough, how many at once, and by how much they scale the activations:
#: enough for other roundings in 16 bits, too little for another problem.
DRAWS, BATCH, SPREAD = 32, 8, 2.0**-4
#: Relative error of a row of the original at the edge of a type, up to which it did not overflow inside.
RIGHT = 0.1
#: Rows smaller than this, relative to the largest row, are measured against this.
SMALL_ROW = 1e-3


@dataclass(frozen=True, slots=True)
class NumericRecord:
  """The worst relative L2 error of an output row, and the original's at that row."""

  candidate: float
  original: float
  case: str
  rows: int


def check_numerics(
  region: Region,
  graph: UGraph,
  params: Sequence[KernelParams] | None,
  weights: Mapping[str, np.ndarray] | None = None,
  seed: int = 0,
) -> NumericRecord | Rejection:
  """The record of a candidate that rounds no worse than the original, or a rejection.

  ``weights``: ONNX tensor name -> its real values; weights that are not given are drawn.
  """
  return NumericCheck(region, weights, seed).check(graph, params)


def slack(region: Region) -> float:
  """What a row's relative error may be beside its multiple of the original's."""
  types = [s.output.dtype for s in region.steps]
  return SLACK if any(d is not None and d.is_half for d in types) else SLACK_WIDE


class NumericCheck:
  """The check of one region; inputs are drawn, and the original run on them, once.

  ``others``: more instances whose steps do the same, with their weights. ``cases``: of the inputs of
  each instance; all that fit the region unless given.
  """

  def __init__(
    self,
    region: Region,
    weights: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    others: Sequence[Part] = (),
    cases: Sequence[str] = (),
  ) -> None:
    self.region, self._seed = region, seed
    self._parts = ((region, weights or {}), *others)
    self._extents = sample_extents(region)
    real = all(i.tensor.name in self._parts[0][1] for i in region.inputs if i.is_weight)
    own = tuple(cases) or CASES + (MASKED if mask_inputs(region) else ())
    self._own = own + (EDGES if real else ())
    self._cases = self._own * len(self._parts)
    self._known: dict[tuple[int, ...], tuple[list[_Draws], np.random.Generator]] = {}
    self._slack = slack(region)

  @cached_property
  def _drawn(self) -> tuple[dict[str, np.ndarray], np.random.Generator]:
    """The inputs of all cases, and the generator as it is after them."""
    rng = np.random.default_rng(self._seed)
    return stacked_inputs(self._parts, self._extents, rng, self._own), rng

  @cached_property
  def _originals(self) -> list[_Original]:
    inputs, _ = self._drawn
    return [_original(self.region, self._extents, inputs, n) for n in range(len(self._cases))]

  def _redrawn(self, cases: tuple[int, ...]) -> list[_Draws]:
    """``DRAWS`` draws of the inputs of the last of these cases, after those of the others."""
    if cases not in self._known:
      inputs, rng = self._drawn
      rng = deepcopy(self._known[cases[:-1]][1] if cases[:-1] else rng)
      alone = {name: x[cases[-1]] for name, x in inputs.items()}
      found = list[_Draws]()
      for _ in range(0, DRAWS, BATCH):
        some = redrawn(self.region, alone, BATCH, rng)
        every = [_original(self.region, self._extents, some, n) for n in range(BATCH)]
        found.append((some, every))
      self._known[cases] = found, rng
    return self._known[cases][0]

  def check(self, graph: UGraph, params: Sequence[KernelParams] | None) -> NumericRecord | Rejection:
    """The record of a candidate that rounds no worse than the original, or a rejection."""
    refused = check_ugraph(graph) or check_interface(self.region, graph)
    if refused:
      return refused
    try:
      return self._check(graph, params)
    except RejectionError as e:
      return e.rejection
    except (ValueError, KeyError) as e:
      return Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")

  def _check(self, graph: UGraph, params: Sequence[KernelParams] | None) -> NumericRecord | Rejection:
    given = params or tuple(KernelParams() for _ in graph.kernels)
    pairs = zip(graph.kernels, given, strict=True)
    numbers = tuple(sample_params(k, p, self._extents) for k, p in pairs)
    pair = _Pair(self.region, graph, numbers, self._extents)
    inputs, _ = self._drawn
    cases = self._cases
    worst, again = NumericRecord(0.0, 0.0, cases[0], 0), tuple[int, ...]()
    every = pair.errors(inputs, cases, self._originals)
    for number, (case, found) in enumerate(zip(cases, every, strict=True)):
      if case in EDGES:
        continue
      if any(rows.excess(self._slack).max() > 0 for rows in found.values()):
        again = (*again, number)
        draws = (pair.errors(x, [case] * BATCH, o) for x, o in self._redrawn(again))
        found = _root_mean_squares(chain.from_iterable(draws))
      for output, rows in found.items():
        if (excess := rows.excess(self._slack)).max() > 0:
          row = int(excess.argmax())
          reason = (
            f"{case}: row {row} of {output} has relative error "
            f"{rows.candidate[row]:.2e}, the original {rows.original[row]:.2e}"
          )
          return Rejection("NUMERICS", reason)
        worst = _worse(worst, rows, case)
    if worst.rows == 0:
      reason = "the original is not finite on any input of the check"
      return Rejection("INCONCLUSIVE", reason)
    return worst


#: Region output -> what it is exactly, and what the original makes of it, over its axes.
_Original = dict[str, tuple[np.ndarray, np.ndarray]]
#: ``BATCH`` draws of the inputs, and what the original makes of each.
_Draws = tuple[dict[str, np.ndarray], list[_Original]]


def _original(
  region: Region, extents: Mapping[str, int], inputs: Mapping[str, np.ndarray], number: int
) -> _Original:
  """The outputs on the inputs of one case."""
  feed = {i.tensor.name: positional(i, inputs[i.name][number]) for i in region.inputs}
  exact, rounded = (interpret_steps(region, feed, rounded=r, extents=extents) for r in (False, True))
  found = {}
  for o in region.outputs:
    name = o.tensor.name
    found[o.name] = by_axes(o, exact[name], extents), by_axes(o, rounded[name], extents)
  return found


@dataclass(frozen=True, slots=True)
class _Rows:
  """Relative L2 errors of the rows of an output, and which of them have a measured element."""

  candidate: np.ndarray
  original: np.ndarray
  measured: np.ndarray

  def excess(self, slack: float) -> np.ndarray:
    return self.candidate - (FACTOR * self.original + slack)


@dataclass(frozen=True, slots=True)
class _Pair:
  """A candidate and its original at the extents of the check."""

  region: Region
  graph: UGraph
  numbers: tuple[KernelParams, ...]
  extents: Mapping[str, int]

  def errors(
    self,
    inputs: Mapping[str, np.ndarray],
    cases: Sequence[str],
    originals: Sequence[_Original],
  ) -> Iterator[dict[str, _Rows]]:
    """Region output -> the errors of its rows, for each of ``cases`` of the inputs.

    ``originals``: those of these cases.

    Raises:
        RejectionError: RANGE.
    """
    region, extents = self.region, self.extents
    named = {i.name: NamedArray(inputs[i.name], i.axes) for i in region.inputs}
    got = interpret_ugraph(Rounded(len(cases)), self.graph, self.numbers, extents, named)
    for number, case in enumerate(cases):
      original, found = originals[number], {}
      for output in region.outputs:
        x, b = original[output.name]
        y = got[output.name].aligned(output.axes)[number]
        measured = np.isfinite(round_to(x, output.dtype)) & np.isfinite(b)
        width = x.shape[-1] if x.ndim else 1
        if case in EDGES:
          # Where the original overflows inside, and hides it (x / inf = 0), it is no measure.
          right = _errors(x, b, measured, width) < RIGHT
          measured &= np.repeat(right, width).reshape(measured.shape)
        if (bad := measured & ~np.isfinite(y)).any():
          at = tuple(int(i) for i in np.argwhere(bad)[0])
          what = f"{output.name}{list(at)} is {y[at]}, exactly it is {x[at]:.4g}"
          raise RejectionError("RANGE", f"{case}: {what}")
        mine, theirs = _errors(x, y, measured, width), _errors(x, b, measured, width)
        seen = np.asarray(measured.reshape(-1, width).any(axis=-1))
        found[output.name] = _Rows(mine, theirs, seen)
      yield found


def redrawn(
  region: Region, inputs: Mapping[str, np.ndarray], count: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
  """The inputs of one case ``count`` times, with activations scaled by up to ``SPREAD``.

  That draws roundings anew, but those of what does not depend on the scale, and leaves zeros,
  constant rows, offsets and masks what they are.
  """
  found = {}
  for i in region.inputs:
    x = np.repeat(inputs[i.name][None], count, axis=0)
    if not i.is_weight and i.dtype.is_float:
      scale = 1 + SPREAD * rng.random(count).reshape(-1, *[1] * (x.ndim - 1))
      least = float(finfo(i.dtype).min)
      x = np.where(x <= least, x, round_to(x * scale, i.dtype))
    found[i.name] = x
  return found


def _root_mean_squares(draws: Iterable[dict[str, _Rows]]) -> dict[str, _Rows]:
  """The errors of each row over the draws in which it is measured (0 in the others)."""
  every, found = list(draws), {}
  for output in every[0]:
    rows = [d[output] for d in every]
    measured = np.array([r.measured for r in rows])
    count = np.maximum(measured.sum(axis=0), 1)
    mine = np.sqrt(sum(np.square(r.candidate) for r in rows) / count)
    theirs = np.sqrt(sum(np.square(r.original) for r in rows) / count)
    found[output] = _Rows(mine, theirs, np.asarray(measured.any(axis=0)))
  return found


def _worse(worst: NumericRecord, rows: _Rows, case: str) -> NumericRecord:
  count = worst.rows + int(rows.measured.sum())
  if rows.measured.any() and rows.candidate.max() >= worst.candidate:
    row = int(rows.candidate.argmax())
    return NumericRecord(float(rows.candidate[row]), float(rows.original[row]), case, count)
  return NumericRecord(worst.candidate, worst.original, worst.case, count)


#: The squares of more, added, may be infinite in float64; no number of fp32 is as large.
_SQUARED = 2.0**480
#: What numbers of fp64 are divided by then.
_PART = 2.0**600


def _errors(x: np.ndarray, y: np.ndarray, measured: np.ndarray, width: int) -> np.ndarray:
  """Relative L2 error of the measured elements of every row of ``width`` elements."""
  mask = measured.reshape(-1, width)
  clean = np.where(mask, x.reshape(-1, width), 0.0)
  difference = np.where(mask, y.reshape(-1, width), 0.0) - clean
  if np.abs(clean).max(initial=0.0) > _SQUARED:  # of fp64
    clean, difference = clean / _PART, difference / _PART
  norms = np.linalg.norm(clean, axis=-1)
  floor = max(SMALL_ROW * float(norms.max(initial=0.0)), 1e-30)
  errors: np.ndarray = np.linalg.norm(difference, axis=-1) / np.maximum(norms, floor)
  return errors
