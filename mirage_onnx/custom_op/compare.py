"""Compare two models in onnxruntime: same inputs, output by output, and which path each node ran.

Inputs: given ones, or ``draws`` standard normal ones and one of each kind of
``compare_inputs.KINDS``. When an output passes is told in ``difference``. Where kernels ran, each
custom node is also checked by itself (``model_check``): on the first input, or on all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from mirage_onnx.custom_op.boundary import boundaries
from mirage_onnx.custom_op.compare_inputs import check_inputs, draw_inputs
from mirage_onnx.custom_op.comparison import ALONE, ERRORS_ADD_UP, NO_KERNEL, Comparison, NodePath
from mirage_onnx.custom_op.difference import (
  FLOOR,
  RTOL,
  InFp32,
  OutputDifference,
  difference,
  excused,
  typical_row,
  worse,
)
from mirage_onnx.custom_op.model_check import RegionCheck
from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.custom_op.model_run import How, check_signatures, open_session, run_session
from mirage_onnx.custom_op.session import launches
from mirage_onnx.custom_op.wide_check import Input, WideCheck
from mirage_onnx.custom_op.widen import HALF, run_widened
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort


def compare_models(
  a: Model,
  b: Model,
  *,
  seed: int = 0,
  provider: str = "cpu",
  draws: int = 4,
  dims: Mapping[str, int | Sequence[int]] | None = None,
  int_limits: Mapping[str, int] | None = None,
  rtol: float | None = None,
  ep: str | None = None,
  driver: str | None = None,
  emulate: bool = False,
  inputs: Mapping[str, np.ndarray] | None = None,
  bisect: bool = False,
) -> Comparison:
  """Run ``a`` (the reference) and ``b`` on the same inputs.

  Emulated, an ``a`` that onnxruntime's CPU provider does not run is compared custom node by custom
  node with its form in fp32 (``wide_check``); there are no outputs then.

  Args:
      a: the original model, a path or bytes.
      b: the optimized model.
      seed: of the inputs.
      provider: ``cpu`` or ``cuda``, for both.
      draws: how many standard normal inputs.
      dims: sizes of dynamic dimensions by name (default: ``compare_inputs.DEFAULT_DIM``); of
          several, all combinations.
      int_limits: exclusive upper ends of integer inputs by name (``DEFAULT_INT_LIMIT``).
      rtol: tolerance of every float output, instead of the default of its type.
      ep: for ``b``, as in ``mirage_onnx.InferenceSession``.
      driver: likewise; with ``ep="host"`` a stand-in.
      emulate: run the kernels of ``b`` in the CPU emulator.
      inputs: arrays by name, the only input then.
      bisect: check the custom nodes on every input, not only on the first.

  Raises:
      MirageError: FILE_MISSING, SHAPES_DIFFER, INPUTS_INVALID, SESSION_FAILED,
          EMULATION_FAILED, OPTION_INVALID, and those of ``InferenceSession``.
  """
  if provider not in ("cpu", "cuda") or draws < 1 or (emulate and provider != "cpu"):
    wrong = f"provider={provider!r}, draws={draws}, emulate={emulate}"
    raise MirageError("OPTION_INVALID", wrong)
  reference, candidate = How(provider, ep="none"), How(provider, emulate, ep, driver)

  def drawn(arguments: Sequence[ort.NodeArg | Input]) -> Iterable[tuple[str, dict[str, np.ndarray]]]:
    if inputs is not None:
      return [("given", check_inputs(arguments, inputs))]
    return draw_inputs(arguments, seed, draws, dims or {}, int_limits or {})

  try:
    left = open_session(a, reference)
  except MirageError as error:
    wide = _wide_check(a, b) if emulate and error.code == "SESSION_FAILED" else None
    if wide is None:
      raise
    return _alone(wide, drawn(wide.inputs), _Measure.of(a, b, rtol))
  right = open_session(b, candidate)
  check_signatures(left, right)
  measure = _Measure.of(a, b, rtol)
  worst: dict[str, OutputDifference] = {}
  kinds: list[str] = []
  regions: RegionCheck | None = None
  for kind, feeds in drawn(left.get_inputs()):
    wanted, found = run_session(left, feeds), run_session(right, feeds)
    in_fp32 = cache(partial(_in_fp32, a, feeds))
    for name, want in wanted.items():
      one = measure(name, want, found[name], kind, in_fp32)
      worst[name] = worse(worst[name], one) if name in worst else one
    if not kinds:
      regions = _region_check(a, b, right, reference, candidate)
    if regions and (bisect or not kinds):
      regions.run(feeds, kind, measure)
    kinds.append(kind)
  return _result(tuple(worst.values()), _paths(right, provider), tuple(kinds), regions)


def _wide_check(a: Model, b: Model) -> WideCheck | None:
  """None where the original does not run in fp32 either, or no custom node is left."""
  try:
    check = WideCheck(ModelFile.read(a), ModelFile.read(b))
  except MirageError as error:
    if error.code != "SESSION_FAILED":
      raise
    return None
  return check if check.nodes else None


def _alone(
  check: WideCheck, feeds_of: Iterable[tuple[str, dict[str, np.ndarray]]], measure: _Measure
) -> Comparison:
  kinds: list[str] = []
  for kind, feeds in feeds_of:
    check.run(feeds, kind, measure)
    kinds.append(kind)
  paths = tuple(NodePath(n, "emulated" if k else "body", k) for n, k in check.launches.items())
  passed = all(r.output.passed for r in check.differences)
  note = ALONE if any(check.launches.values()) else NO_KERNEL
  return Comparison(passed, (), paths, tuple(kinds), note, check.differences)


def _in_fp32(model: Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  file = ModelFile.read(model)
  return run_widened(file.proto, file.folder, feeds)


class _Measure:
  """``difference`` with the tolerances of two models; rows are sized by the first input."""

  def __init__(self, precision: float, rtol: float | None) -> None:
    self._precision, self._rtol = precision, rtol
    self._floors: dict[str, float] = {}

  @classmethod
  def of(cls, a: Model, b: Model, rtol: float | None) -> _Measure:
    return cls(max(_precision(a), _precision(b)), rtol)

  def __call__(
    self, name: str, want: np.ndarray, got: np.ndarray, kind: str, in_fp32: InFp32
  ) -> OutputDifference:
    floor = self._floors.setdefault(name, FLOOR * typical_row(want))
    limit = max(self._precision, RTOL.get(want.dtype.name, 0.0)) if self._rtol is None else self._rtol
    found = difference(name, want, got, limit, floor, kind)
    if found.passed or self._rtol is not None or want.dtype not in HALF or found.dtype != got.dtype.name:
      return found
    exact = in_fp32().get(name)
    return found if exact is None else excused(found, want, got, exact, floor)


def _region_check(
  a: Model, b: Model, right: ort.InferenceSession, reference: How, candidate: How
) -> RegionCheck | None:
  """None where no kernel ran.

  The reference is the CPU provider, which computes fp16 in fp32: the CUDA provider rounds every
  intermediate, and on hard inputs its error would be laid to a better kernel. Where the CPU
  provider lacks an operator (bfloat16), it is the CUDA provider after all.
  """
  ran = {name for name, count in launches(right).items() if count}
  if not ran:
    return None
  rewritten = ModelFile.read(b)
  cuts = tuple(c for c in boundaries(rewritten) if c.node in ran)
  if not cuts:
    return None
  original = ModelFile.read(a)
  try:
    exact = replace(reference, provider="cpu")
    return RegionCheck(original, rewritten, cuts, exact, candidate)
  except MirageError as error:
    if error.code != "SESSION_FAILED" or reference.provider == "cpu":
      raise
    return RegionCheck(original, rewritten, cuts, reference, candidate)


def _paths(right: ort.InferenceSession, provider: str) -> tuple[NodePath, ...]:
  ran = "kernel" if provider == "cuda" else "emulated"
  return tuple(NodePath(name, ran if count else "body", count) for name, count in launches(right).items())


def _result(
  outputs: tuple[OutputDifference, ...],
  nodes: tuple[NodePath, ...],
  kinds: tuple[str, ...],
  check: RegionCheck | None,
) -> Comparison:
  regions = check.differences if check else ()
  good, alone = all(o.passed for o in outputs), all(r.output.passed for r in regions)
  note = "" if any(node.launches for node in nodes) else NO_KERNEL
  if regions and alone and not good:
    note = ERRORS_ADD_UP
  return Comparison(good and alone, outputs, nodes, kinds, note, regions)


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
