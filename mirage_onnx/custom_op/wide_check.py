"""Custom nodes by themselves where onnxruntime cannot run the original, but its form in fp32.

Its CPU provider has no bfloat16 kernels, so neither model runs there. The original in fp32
(``widen``) gives what regions read, rounded to its type; each custom node, cut out and emulated, is
compared with its region in fp32 on the same bits.
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
from mirage_onnx.custom_op.loose_rows import Measure
from mirage_onnx.custom_op.model_check import RegionDifference, Worst
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.custom_op.session import launches
from mirage_onnx.custom_op.widen import HALF, run_rounded, widened, widened_values

if TYPE_CHECKING:
  import onnxruntime as ort


@dataclass(frozen=True, slots=True)
class Input:
  """As onnxruntime's ``NodeArg``."""

  name: str
  type: str
  shape: Sequence[int | str | None]


class WideCheck:
  """``inputs``: of the original. ``nodes``: the custom ones. ``launches``: of their kernels."""

  def __init__(self, original: ModelFile, rewritten: ModelFile) -> None:
    """Open the original in fp32.

    Raises:
        MirageError: SESSION_FAILED where it does not run so either; SHAPES_DIFFER.
    """
    self._cuts = boundaries(rewritten)
    self.nodes = tuple(cut.node for cut in self._cuts)
    self._original, self._rewritten = original, rewritten
    whole = onnx.load_from_string(exposed(original, self._cuts))
    self._types = {
      v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
      for graph in (whole.graph, rewritten.proto.graph)
      for v in (*graph.input, *graph.output, *graph.value_info)
      if v.type.tensor_type.elem_type
    }
    self._whole = self._open(whole)
    self.inputs = tuple(Input(i.name, self._type(i), i.shape) for i in self._whole.get_inputs())
    self._nodes: ort.InferenceSession | None = None
    self._regions: ort.InferenceSession | None = None
    self._worst = Worst()

  def run(self, feeds: Mapping[str, np.ndarray], kind: str, measure: Measure) -> None:
    """Check every node on one input of the model."""
    computed = run_session(self._whole, widened_values(feeds))
    values = {**feeds, **{name: self._rounded(name, x) for name, x in computed.items()}}
    if self._nodes is None or self._regions is None:
      nodes = detached_nodes(self._rewritten, self._cuts, values)
      self._nodes = open_session(nodes, How("cpu", emulate=True), self._rewritten.external_folder)
      regions = detached_original(self._original, self._cuts, values)
      self._regions = self._open(onnx.load_from_string(regions))
    got = run_session(self._nodes, fed(self._nodes.get_inputs(), values))
    want = run_session(self._regions, widened_values(fed(self._regions.get_inputs(), values)))
    for cut in self._cuts:
      for name in cut.makes:
        exact = want[name].astype(got[name].dtype)
        defined = partial(self._as_defined, cut, values)
        self._worst.add(cut.node, measure(name, exact, got[name], kind, dict, defined))

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

  def _type(self, value: ort.NodeArg) -> str:
    dtype = self._types.get(value.name)
    return f"tensor({dtype})" if dtype in HALF else str(value.type)

  def _rounded(self, name: str, x: np.ndarray) -> np.ndarray:
    dtype = self._types.get(name)
    return x.astype(dtype) if dtype in HALF else x
