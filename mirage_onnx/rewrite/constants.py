"""Constant tensors of a model: where they are, their data, and copies in another dim order."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from onnx import numpy_helper

from mirage_onnx.importer.causal import implied
from mirage_onnx.importer.constant_nodes import constant_nodes
from mirage_onnx.importer.external import check_stored, read_tensor
from mirage_onnx.ir.dtype import in_memory
from mirage_onnx.rewrite.replacement import WeightUse, internal
from mirage_onnx.rewrite.turned import can_turn, turned

Folded = Mapping[str, onnx.TensorProto]
NOTHING: Folded = MappingProxyType({})


class Constants:
  """Values of the main graph that no run can change: initializers, Constant nodes, ``folded``.

  An initializer that is also a graph input can be fed, so it is none. ``base_dir`` is the folder
  of the model file, for data that is stored outside it; a tensor is loaded only when asked for.
  """

  def __init__(self, model: onnx.ModelProto, base_dir: Path | None = None, folded: Folded = NOTHING) -> None:
    self.base_dir = base_dir
    fed = {value.name for value in model.graph.input}
    self.tensors: dict[str, onnx.TensorProto] = {
      t.name: t for t in model.graph.initializer if t.name not in fed
    } | dict(folded)
    self.tensors |= constant_nodes(model.graph.node)

  def array(self, name: str) -> np.ndarray:
    """The data of a constant.

    Raises:
        MirageError: INTERNAL, EXTERNAL_DATA_MISSING, MODEL_INVALID.
    """
    tensor = self.tensors.get(name) or implied(name)
    if tensor is None:
      raise internal(f"{name!r} is not a constant of the model")
    check_stored(tensor, self.base_dir)
    return read_tensor(tensor, self.base_dir)

  def permuted(self, use: WeightUse, name: str) -> onnx.TensorProto:
    """``numpy.transpose(tensor, perm)`` as an initializer called ``name``.

    Of a large one in an external file it only says what it will be (``turned.py``).
    """
    source = self.tensors.get(use.tensor)
    if source is not None and can_turn(source) and len(source.dims) == len(use.perm):
      check_stored(source, self.base_dir)
      return turned(source, use.perm, name)
    array = self.array(use.tensor)
    if array.ndim != len(use.perm):
      raise internal(f"{use} does not fit shape {array.shape}")
    return numpy_helper.from_array(in_memory(np.ascontiguousarray(array.transpose(use.perm))), name)
