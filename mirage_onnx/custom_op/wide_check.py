"""Two models that onnxruntime cannot run, but their forms in fp32; custom nodes by themselves.

Its CPU provider has no bfloat16 kernels, so neither model runs there. Outputs are those of both in fp32
(``widen``), where the function bodies stand for custom nodes: to the last bits they are the same, or the
models differ outside of kernels. The original in fp32 gives what regions read, too, rounded to its type; each
custom node, cut out and emulated, is compared with its region in fp32 on the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from mirage_onnx.custom_op.boundary import (
  Boundary,
  boundaries,
  detached_nodes,
  detached_original,
  exposed,
  fed,
)
from mirage_onnx.custom_op.difference import OutputDifference, worse
from mirage_onnx.custom_op.measure import KnownOriginal, Measure, Tolerances
from mirage_onnx.custom_op.model_check import RegionDifference, Worst
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.session import launches
from mirage_onnx.custom_op.widen import HALF, is_too_wide, run_rounded, value_kinds, widened, widened_values
from mirage_onnx.errors import MirageError

if TYPE_CHECKING:
  import onnxruntime as ort


@dataclass(frozen=True, slots=True)
class Input:
  """As onnxruntime's ``NodeArg``."""

  name: str
  type: str
  shape: Sequence[int | str | None]


class WideCheck:
  """``inputs``: of the original. ``nodes``: the custom ones. ``launches``: of their kernels.

  ``compares_outputs``: else the rewritten model does not run in fp32, and only nodes are compared.
  """

  def __init__(self, original: ModelFile, rewritten: ModelFile) -> None:
    """Open the original in fp32.

    Raises:
        MirageError: SESSION_FAILED where it does not run so either; SHAPES_DIFFER.
    """
    self._cuts = boundaries(rewritten)
    self.nodes = tuple(cut.node for cut in self._cuts)
    self._original, self._rewritten = original, rewritten
    whole = onnx.load_from_string(exposed(original, self._cuts))
    declared = {
      v.name: v.type.tensor_type.elem_type
      for graph in (whole.graph, rewritten.proto.graph)
      for v in (*graph.input, *graph.output, *graph.value_info)
    }
    kinds = {**value_kinds(original.proto), **{n: k for n, k in declared.items() if k}}
    self._types = {n: helper.tensor_dtype_to_np_dtype(k) for n, k in kinds.items() if k}
    self._whole = self._open(whole)
    self._bodies = self._opened_bodies()
    self.compares_outputs = self._bodies is not None
    self._tolerances = Tolerances(0.0, None)
    self._outputs: dict[str, OutputDifference] = {}
    self.inputs = tuple(Input(i.name, self._type(i), i.shape) for i in self._whole.get_inputs())
    self._nodes: ort.InferenceSession | None = None
    self._regions: ort.InferenceSession | None = None
    self._worst = Worst()

  def run(self, feeds: Mapping[str, np.ndarray], kind: str, measure: Measure) -> None:
    """Check the outputs, and every node, on one input of the model."""
    computed = run_session(self._whole, widened_values(feeds))
    if self._bodies is not None:
      ours = run_session(self._bodies, widened_values(feeds))
      for output in self._bodies.get_outputs():
        name = output.name
        found = self._tolerances(name, computed[name], ours[name], KnownOriginal(kind, whole=True))
        self._outputs[name] = worse(self._outputs[name], found) if name in self._outputs else found
    if not self._cuts:
      return
    values = {**feeds, **{name: self._rounded(name, x) for name, x in computed.items()}}
    if self._nodes is None or self._regions is None:
      nodes = detached_nodes(self._rewritten, self._cuts, values)
      self._nodes = open_session(nodes, How("cpu", emulate=True), self._rewritten.external_folder)
      regions = detached_original(self._original, self._cuts, values)
      self._regions = self._open(onnx.load_from_string(regions))
    got = run_session(self._nodes, fed(self._nodes.get_inputs(), values))
    want = run_session(self._regions, widened_values(fed(self._regions.get_inputs(), values)))
    for cut in self._cuts:
      known = KnownOriginal(kind, as_defined=partial(self._as_defined, cut, values))
      for name in cut.makes:
        exact = want[name].astype(got[name].dtype)
        self._worst.add(cut.node, measure(name, exact, got[name], known))

  @property
  def outputs(self) -> tuple[OutputDifference, ...]:
    """Of the models in fp32; empty where they were not compared."""
    return tuple(self._outputs.values())

  @property
  def launches(self) -> dict[str, int]:
    return launches(self._nodes) if self._nodes else {}

  @property
  def differences(self) -> tuple[RegionDifference, ...]:
    """In topological order of the nodes."""
    return self._worst.differences

  def _as_defined(self, cut: Boundary, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    region = onnx.load_from_string(detached_original(self._original, (cut,), values))
    return run_rounded(region, self._original.folder, fed(region.graph.input, values))

  def _open(self, model: onnx.ModelProto) -> ort.InferenceSession:
    wide = widened(model, self._original.folder).SerializeToString()
    return open_session(wide, How("cpu", ep="none"), self._original.external_folder)

  def _opened_bodies(self) -> ort.InferenceSession | None:
    if is_too_wide(self._rewritten.proto):
      return None
    wide = widened(self._rewritten.proto, self._rewritten.folder).SerializeToString()
    try:
      session = open_session(wide, How("cpu", ep="none"), self._rewritten.external_folder)
    except MirageError as error:
      if error.code != "SESSION_FAILED":
        raise
      return None
    known = {o.name for o in self._whole.get_outputs()}
    return session if known.issuperset(o.name for o in session.get_outputs()) else None

  def _type(self, value: ort.NodeArg) -> str:
    dtype = self._types.get(value.name)
    return f"tensor({dtype})" if dtype in HALF else str(value.type)

  def _rounded(self, name: str, x: np.ndarray) -> np.ndarray:
    dtype = self._types.get(name)
    return x.astype(dtype) if dtype in HALF else x
