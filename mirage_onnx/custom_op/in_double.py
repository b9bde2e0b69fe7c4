"""A model of fp32 in float64: what says whether it or its optimized form is nearer to what it means.

A norm of a channel whose values are large and nearly equal loses every digit in fp32, in one order of a
sum as in another; two models that both are lost differ, and only float64 tells which of them is at fault.
Where onnxruntime has no kernels for it, onnx's own evaluator computes it. Neither is trusted without a
look: on standard normal inputs of the same shapes it has to give what the model gives in fp32, but for what
roundings explain where numbers cancel.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from mirage_onnx.custom_op.difference import RTOL, difference, within_roundings
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.shaken import NARROW, Shaken
from mirage_onnx.custom_op.widen import Kinds, has_halves, widened
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import weight_bytes

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]

#: Most numbers of inputs and weights: onnx's evaluator is numpy, and partly Python.
MOST_NUMBERS = 1 << 26
#: At least this part of every output has to be finite for a look to say anything.
FINITE = 0.5
_DOUBLE: Kinds = {TensorProto.FLOAT: TensorProto.DOUBLE}


@dataclass(frozen=True, slots=True)
class _Found:
  """How ``model`` runs in float64 on inputs of these shapes; ``run``: None where nothing does so."""

  model: onnx.ModelProto
  folder: Path | None
  shapes: Mapping[str, tuple[int, ...]]
  run: Run | None


#: Of the last model: outputs on several kinds of input are looked at, and the way is found by a whole run.
_last: list[_Found] = []


def run_in_double(
  model: onnx.ModelProto, folder: Path | None, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """The float outputs in float64; empty where nothing runs it so, or not as the model does in fp32."""
  shapes = {n: x.shape for n, x in feeds.items()}
  known = next((k for k in _last if k.model is model and (k.folder, k.shapes) == (folder, shapes)), None)
  if known is None:
    known = _Found(model, folder, shapes, _way(model, folder, feeds))
    _last[:] = [known]
  if known.run is None:
    return {}
  try:
    return {n: x for n, x in known.run(feeds).items() if x.dtype == np.float64}
  except Exception:  # as in ``_way``
    return {}


def _way(model: onnx.ModelProto, folder: Path | None, feeds: Mapping[str, np.ndarray]) -> Run | None:
  """What runs the model in float64, and has shown that it does as the model in fp32."""
  stored = weight_bytes(model) // 4
  if has_halves(model) or stored + sum(x.size for x in feeds.values()) > MOST_NUMBERS:
    return None
  where = str(folder) if folder else None
  drawn = _drawn(feeds)
  try:
    double = widened(model, folder, _DOUBLE)
    want = run_session(open_session(model.SerializeToString(), How("cpu", ep="none"), where), drawn)
  except MirageError as error:
    if error.code != "SESSION_FAILED":
      raise
    return None
  near = partial(Shaken(model, folder, NARROW).runs, drawn)
  for make in (_in_onnxruntime, _in_numpy):
    try:
      run = make(double, where)
      if _agree(want, run(drawn), near):
        return run
    except Exception:  # an operator that one of them lacks, each in words of its own
      continue
  return None


def _in_onnxruntime(double: onnx.ModelProto, folder: str | None) -> Run:
  session = open_session(double.SerializeToString(), How("cpu", ep="none"), folder)
  return lambda feeds: run_session(session, _doubles(feeds))


def _in_numpy(double: onnx.ModelProto, folder: str | None) -> Run:
  from onnx.reference import ReferenceEvaluator

  from mirage_onnx.custom_op.evaluated_norm import BatchNormalization

  if folder is not None:  # else what is not widened may lie in files
    double = onnx.load_from_string(double.SerializeToString())
    onnx.load_external_data_for_model(double, folder)
  evaluator = ReferenceEvaluator(double, new_ops=[BatchNormalization])
  names = [o.name for o in double.graph.output]

  def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
      return dict(zip(names, evaluator.run(None, _doubles(feeds)), strict=True))

  return run


def _doubles(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  return {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in feeds.items()}


def _drawn(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """``feeds`` with standard normal numbers for those of fp32."""
  rng = np.random.default_rng(0)
  return {
    n: rng.standard_normal(x.shape).astype(np.float32) if x.dtype == np.float32 else x
    for n, x in feeds.items()
  }


def _agree(
  want: Mapping[str, np.ndarray],
  got: Mapping[str, np.ndarray],
  near: Callable[[], Iterable[Mapping[str, np.ndarray]]],
) -> bool:
  for name, x in want.items():
    if x.dtype != np.float32:
      continue
    y = got[name]
    if y.dtype != np.float64 or y.shape != x.shape or np.isfinite(y).sum() < FINITE * y.size:
      return False
    with np.errstate(over="ignore"):
      now = y.astype(np.float32)
    found = difference(name, x, now, RTOL["float32"], 0.0, "drawn")
    if not found.passed:
      runs = (run[name] for run in near() if name in run)
      found = within_roundings(found, x, x, y, runs, 0.0)
    if not found.passed:
      return False
  return True
