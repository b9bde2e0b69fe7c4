"""Which tolerance an output has on which kind of input, and what counts of it."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from mirage_onnx.custom_op.compare_inputs import HARD, MASKED
from mirage_onnx.custom_op.difference import (
  FLOOR,
  RTOL,
  InFp32,
  OutputDifference,
  counts,
  difference,
  excused,
  finite,
  is_near_at_edge,
  near_constant,
  nearer,
  only,
  typical_row,
)
from mirage_onnx.custom_op.edge_inputs import EDGES
from mirage_onnx.custom_op.model_nodes import Model
from mirage_onnx.custom_op.shaken import turned, undecided
from mirage_onnx.custom_op.widen import HALF

#: Of integers made of numbers at the edge, which cancel to anything and seldom twice to the same.
EDGE_SHARE = 0.01
#: The outputs of the original by name, in every one of several runs with errors.
ShakenRuns = Callable[[], Iterator[Mapping[str, np.ndarray]]]


#: Rows of equal numbers.
CONSTANT = "constant_rows"


def _never() -> Iterator[Mapping[str, np.ndarray]]:
  return iter(())


def _defined_first(name: str, as_defined: InFp32, shaken: ShakenRuns) -> Iterator[Mapping[str, np.ndarray]]:
  """What the original is by its definition, then its runs with errors.

  onnxruntime's CPU provider keeps halves in fp32 between nodes, and so tells numbers apart that are equal by
  their type: of forty that are the type's largest a run with errors seldom picks the first.
  """
  if name in (defined := as_defined()):
    yield defined
  yield from shaken()


class Tolerances:
  """``difference`` with the tolerances of two models; rows are sized by the first input."""

  def __init__(self, precision: float, rtol: float | None) -> None:
    self._precision, self._rtol = precision, rtol
    self._floors: dict[str, float] = {}

  @classmethod
  def of(cls, a: Model, b: Model, rtol: float | None) -> "Tolerances":
    return cls(max(_precision(a), _precision(b)), rtol)

  def __call__(
    self,
    name: str,
    want: np.ndarray,
    got: np.ndarray,
    kind: str,
    in_fp32: InFp32,
    as_defined: InFp32,
    whole: bool = False,
    shaken: ShakenRuns = _never,
    nearby: ShakenRuns = _never,
    hangs: Callable[[str], bool] = lambda name: False,
  ) -> OutputDifference:
    """``shaken``: runs of the original with errors; where the user gives a tolerance they are not asked.

    ``nearby``: runs of it on inputs that are off by ``NEARBY``, likewise. ``hangs``: whether a float is made
    of integers that are made of floats.
    """
    found = self._difference(name, want, got, kind, in_fp32, as_defined, whole, shaken, nearby)
    if found.passed or self._rtol is not None or not want.dtype.name == got.dtype.name in RTOL:
      return found
    return turned(found, want, got, name, shaken(), self._floors[name]) if hangs(name) else found

  def _difference(
    self,
    name: str,
    want: np.ndarray,
    got: np.ndarray,
    kind: str,
    in_fp32: InFp32,
    as_defined: InFp32,
    whole: bool,
    shaken: ShakenRuns,
    nearby: ShakenRuns,
  ) -> OutputDifference:
    floor = self._floors.setdefault(name, FLOOR * typical_row(want))
    limit = max(self._precision, RTOL.get(want.dtype.name, 0.0)) if self._rtol is None else self._rtol
    if want.dtype.kind in "biu":
      found = difference(name, want, got, limit, floor, kind)
      if found.passed or self._rtol is not None:
        return found
      runs = _defined_first(name, as_defined, shaken)
      return undecided(found, want, got, name, runs, EDGE_SHARE if whole and kind in EDGES else 0.0)
    if kind in EDGES:
      return self._at_the_edge(name, want, got, limit, kind, in_fp32, as_defined, whole)
    if kind in MASKED:
      where = counts(want, None, limit)
      want, got = only(where, want), only(where, got)
    found = difference(name, want, got, limit, floor, kind)
    if found.passed or self._rtol is not None or found.dtype != got.dtype.name:
      return found
    if want.dtype not in HALF and want.dtype != np.float32:
      return found
    exact = in_fp32().get(name)
    if exact is None or exact.dtype.itemsize <= want.dtype.itemsize:
      return found
    if want.dtype not in HALF:
      exact = only(counts(want, None, limit), exact) if kind in MASKED else exact
      found = nearer(found, want, got, exact, floor)
      if found.passed or kind != CONSTANT:
        return found
      near = (run[name] for run in nearby() if name in run)
      return near_constant(found, want, got, exact, near, floor)
    defined = as_defined().get(name)
    if kind in (*MASKED, *HARD):
      where = counts(want, defined, limit)
      want, got, exact = only(where, want), only(where, got), only(where, exact)
      found = difference(name, want, got, limit, floor, kind)
    for original in (want, defined):
      if not found.passed and original is not None:
        found = excused(found, original, got, exact, floor)
    if not found.passed and whole and defined is not None:  # in a custom node no roundings add up
      found = nearer(found, defined, got, exact, floor, "its fp32 form")
    if found.passed or kind not in HARD or defined is None or not np.isfinite(got.astype(np.float64)).all():
      return found
    if not is_near_at_edge(want, got, exact, only(where, defined), limit):
      return found
    return replace(found, passed=True, reason="as near to its fp32 form as the original by its definition")

  def _at_the_edge(
    self,
    name: str,
    want: np.ndarray,
    got: np.ndarray,
    limit: float,
    kind: str,
    in_fp32: InFp32,
    as_defined: InFp32,
    whole: bool,
  ) -> OutputDifference:
    where = counts(want, None, limit)
    want, got = only(where, want), only(where, got)
    found = difference(name, want, got, limit, 0.0, kind)
    if found.passed or want.dtype.name not in RTOL:
      return finite(name, want, got, limit, kind, passed=found.passed)
    defined = as_defined().get(name)
    where = where & counts(want, defined, limit)
    want, got = only(where, want), only(where, got)
    found = finite(name, want, got, limit, kind)
    if not found.passed or whole or want.dtype not in HALF:
      return found
    exact = in_fp32().get(name)
    if exact is None or defined is None:
      return found
    if is_near_at_edge(want, got, only(where, exact), only(where, defined), limit):
      return found
    return difference(name, want, got, limit, 0.0, kind)


def _precision(model: Model) -> float:
  """The default tolerance of the least precise float type of a model."""
  try:
    if isinstance(model, bytes):
      graph = onnx.load_from_string(model).graph
    else:
      graph = onnx.load(os.fspath(model), load_external_data=False).graph
  except DecodeError:  # ORT's own format: known by its outputs only
    return 0.0
  kinds = {t.data_type for t in graph.initializer}
  kinds |= {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
  found = {onnx.TensorProto.DataType.Name(kind).lower() for kind in kinds}
  names = {"float": "float32", "double": "float64"}
  return max((RTOL.get(names.get(name, name), 0.0) for name in found), default=0.0)
