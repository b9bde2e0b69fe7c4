"""Which tolerance an output has on which kind of input, and what counts of it."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

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
  nearer,
  only,
  typical_row,
  within_roundings,
)
from mirage_onnx.custom_op.edge_inputs import EDGES
from mirage_onnx.custom_op.model_nodes import Model
from mirage_onnx.custom_op.shaken import turned, undecided
from mirage_onnx.custom_op.widen import HALF

#: Of integers made of numbers at the edge, which cancel to anything and seldom twice to the same.
EDGE_SHARE = 0.01
#: The outputs of the original by name, in every one of several runs.
Runs = Callable[[], Iterator[Mapping[str, np.ndarray]]]


def _never() -> Iterator[Mapping[str, np.ndarray]]:
  return iter(())


@dataclass(frozen=True, slots=True)
class KnownOriginal:
  """What can be asked of the original on one input, of this ``kind``, where its outputs alone do not decide.

  ``whole``: outputs are a model's, not a custom node's. ``shaken``: its runs with errors; ``nearby``: with
  those of some roundings only; neither is asked where the user gives a tolerance. ``hangs``: whether
  a float is made of integers that are made of floats.
  """

  kind: str
  in_fp32: InFp32 = dict
  as_defined: InFp32 = dict
  whole: bool = False
  shaken: Runs = _never
  nearby: Runs = _never
  hangs: Callable[[str], bool] = lambda name: False

  def defined_first(self, name: str) -> Iterator[Mapping[str, np.ndarray]]:
    """What it is by its definition, then its runs with errors.

    onnxruntime's CPU provider keeps halves in fp32 between nodes, and so tells numbers apart that are equal
    by their type: of forty that are the type's largest a run with errors seldom picks the first.
    """
    if name in (defined := self.as_defined()):
      yield defined
    yield from self.shaken()


#: (name, reference, result, what else is known of the reference) -> how they differ.
Measure = Callable[[str, np.ndarray, np.ndarray, KnownOriginal], OutputDifference]


class Tolerances:
  """``difference`` with the tolerances of two models; rows are sized by the normal inputs so far.

  The first one may show nothing: a mask that hides nothing is zero.
  """

  def __init__(self, precision: float, rtol: float | None) -> None:
    self._precision, self._rtol = precision, rtol
    self._floors: dict[str, float] = {}

  @classmethod
  def of(cls, a: Model, b: Model, rtol: float | None) -> "Tolerances":
    return cls(max(_precision(a), _precision(b)), rtol)

  def __call__(self, name: str, want: np.ndarray, got: np.ndarray, known: KnownOriginal) -> OutputDifference:
    """How the outputs ``got`` differ from the original's, ``want``."""
    if name not in self._floors or known.kind.startswith("normal"):
      self._floors[name] = max(self._floors.get(name, 0.0), FLOOR * typical_row(want))
    if want.dtype.kind in "biu":
      return self._of_integers(name, want, got, known)
    if known.kind in EDGES:
      found = self._at_the_edge(name, want, got, known)
    else:
      found = self._of_floats(name, want, got, known)
    if found.passed or self._rtol is not None or not want.dtype.name == got.dtype.name in RTOL:
      return found
    return turned(found, want, got, name, known.shaken(), self._floors[name]) if known.hangs(name) else found

  def _limit(self, want: np.ndarray) -> float:
    return max(self._precision, RTOL.get(want.dtype.name, 0.0)) if self._rtol is None else self._rtol

  def _of_integers(
    self, name: str, want: np.ndarray, got: np.ndarray, known: KnownOriginal
  ) -> OutputDifference:
    found = difference(name, want, got, self._limit(want), self._floors[name], known.kind)
    if found.passed or self._rtol is not None:
      return found
    share = EDGE_SHARE if known.whole and known.kind in EDGES else 0.0
    return undecided(found, want, got, name, known.defined_first(name), share)

  def _of_floats(
    self, name: str, want: np.ndarray, got: np.ndarray, known: KnownOriginal
  ) -> OutputDifference:
    kind, floor, limit = known.kind, self._floors[name], self._limit(want)
    where = counts(want, None, limit) if kind in MASKED else np.ones(want.shape, bool)
    want, got = only(where, want), only(where, got)
    found = difference(name, want, got, limit, floor, kind)
    if found.passed or self._rtol is not None or found.dtype != got.dtype.name:
      return found
    if want.dtype not in HALF and want.dtype != np.float32:
      return found
    exact = known.in_fp32().get(name)
    if exact is None or exact.dtype.itemsize <= want.dtype.itemsize:
      return found
    if want.dtype not in HALF:
      exact = only(where, exact)
      found = nearer(found, want, got, exact, floor)
      if found.passed:
        return found
      runs = (only(where, run[name]) for run in known.nearby() if name in run)
      return within_roundings(found, want, got, exact, runs, floor)
    return self._of_halves(found, want, got, exact, known)

  def _of_halves(
    self, found: OutputDifference, want: np.ndarray, got: np.ndarray, exact: np.ndarray, known: KnownOriginal
  ) -> OutputDifference:
    """``found`` is too much: whether roundings of the original's own explain it. ``exact``: it in fp32."""
    name, kind, floor, limit = found.name, known.kind, self._floors[found.name], self._limit(want)
    defined = known.as_defined().get(name)
    if kind in (*MASKED, *HARD):
      where = counts(want, defined, limit)
      want, got, exact = only(where, want), only(where, got), only(where, exact)
      found = difference(name, want, got, limit, floor, kind)
    for original in (want, defined):
      if not found.passed and original is not None:
        found = excused(found, original, got, exact, floor)
    if not found.passed and known.whole and defined is not None:  # in a custom node no roundings add up
      found = nearer(found, defined, got, exact, floor, "its fp32 form")
    if found.passed or kind not in HARD or defined is None or not np.isfinite(got.astype(np.float64)).all():
      return found
    if not is_near_at_edge(want, got, exact, only(where, defined), limit):
      return found
    return replace(found, passed=True, reason="as near to its fp32 form as the original by its definition")

  def _at_the_edge(
    self, name: str, want: np.ndarray, got: np.ndarray, known: KnownOriginal
  ) -> OutputDifference:
    kind, limit = known.kind, self._limit(want)
    where = counts(want, None, limit)
    want, got = only(where, want), only(where, got)
    found = difference(name, want, got, limit, 0.0, kind)
    if found.passed or want.dtype.name not in RTOL:
      return finite(name, want, got, limit, kind, passed=found.passed)
    defined = known.as_defined().get(name)
    where = where & counts(want, defined, limit)
    want, got = only(where, want), only(where, got)
    found = finite(name, want, got, limit, kind)
    if not found.passed or known.whole or want.dtype not in HALF:
      return found
    exact = known.in_fp32().get(name)
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
