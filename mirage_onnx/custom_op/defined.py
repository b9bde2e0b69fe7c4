"""A model as its types define it: rounded after every node, which onnxruntime's CPU provider is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto

from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.custom_op.model_run import open_plain, run_session
from mirage_onnx.custom_op.widen import has_halves, is_too_wide, rounded, widened_values

if TYPE_CHECKING:
  import onnxruntime as ort


#: Operators that divide by the root of a mean of squares, which none of their outputs shows: how many of
#: their first inputs are summed before.
_NORMS = {
  "LayerNormalization": 1, "RMSNormalization": 1, "SimplifiedLayerNormalization": 1,
  "SkipLayerNormalization": 2, "SkipSimplifiedLayerNormalization": 2, "GroupNormalization": 1,
  "GroupNorm": 1, "SkipGroupNorm": 1, "InstanceNormalization": 1, "MeanVarianceNormalization": 1,
  "LpNormalization": 1,
}  # fmt: skip


class Defined:
  """The original as its types define it, in fp32 (``widen.rounded``), opened when it is first run.

  Where that cannot be run, the original in onnxruntime stands for it.
  """

  def __init__(self, model: Model, left: ort.InferenceSession | None = None) -> None:
    self._model, self._left = model, left
    self._session: ort.InferenceSession | None = None
    self._inner: ort.InferenceSession | None = None
    self._opened = self._inner_opened = False

  def __call__(self, feeds: Mapping[str, np.ndarray]) -> bool:
    """Whether every output is finite; of fp32 and bfloat16, also what it is made of.

    A sum of squares that overflows and then divides leaves zeros, of which nothing can be told: kernels
    add in fp32 as such an original does, but not in its order. That of a norm in one node counts, too. -inf
    is what masks are made of.
    """
    found = self.run(feeds)
    if not found or not all(np.isfinite(x).all() for x in found.values() if x.dtype.kind in "fV"):
      return False
    if not self._inner_opened:
      self._inner_opened, self._inner = True, self._open_inner()
    if self._inner is None:
      return True
    names = [o.name for o in self._inner.get_outputs() if o.type in ("tensor(float)", "tensor(double)")]
    return not names or all((x < np.inf).all() for x in self._inner.run(names, widened_values(feeds)))

  def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs; in fp32, if they are of 16 bits."""
    if not self._opened:
      self._opened, self._session = True, self._open()
    if self._session is not None:
      return run_session(self._session, widened_values(feeds))
    if self._left is None:
      return {}
    return widened_values(run_session(self._left, feeds))

  def _open_inner(self) -> ort.InferenceSession | None:
    """The original with all that the nodes of its graph make as outputs.

    One of bfloat16, which goes as far as fp32, as it is by its definition. None of fp16: it ends before.
    """
    file = ModelFile.read(self._model)
    if (self._left is None and not has_halves(file.proto)) or is_too_wide(file.proto):
      return None
    inner = onnx.ModelProto()
    if has_halves(file.proto):
      if TensorProto.FLOAT16 in _kinds(file.proto):
        return None
      inner = rounded(file.proto, file.folder)
    else:
      inner.CopyFrom(file.proto)
    known = {o.name for o in inner.graph.output}
    names = dict.fromkeys(o for n in inner.graph.node for o in n.output if o and o not in known)
    names |= dict.fromkeys(_with_squares(inner.graph))
    inner.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    return open_plain(inner, file.external_folder)

  def _open(self) -> ort.InferenceSession | None:
    file = ModelFile.read(self._model)
    if is_too_wide(file.proto) or not has_halves(file.proto):
      return None
    return open_plain(rounded(file.proto, file.folder), file.external_folder)


def _kinds(model: onnx.ModelProto) -> set[int]:
  """The element types of inputs, outputs and weights."""
  graph = model.graph
  kinds = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
  return kinds | {t.data_type for t in graph.initializer}


def _with_squares(graph: onnx.GraphProto) -> list[str]:
  """Let a graph say the sum of the squares of what its norms read; returns the names of the sums."""
  made: list[onnx.NodeProto] = []
  for k, node in enumerate(graph.node):
    read = list(node.input[: _NORMS.get(node.op_type, 0)])
    if not read:
      continue
    if len(read) > 1:
      made.append(onnx.helper.make_node("Add", read, [f"mirage norm {k} sum"]))
      read = [f"mirage norm {k} sum"]
    made.append(onnx.helper.make_node("ReduceSumSquare", read, [f"mirage norm {k}"], keepdims=0))
  graph.node.extend(made)
  return [n.output[0] for n in made]
