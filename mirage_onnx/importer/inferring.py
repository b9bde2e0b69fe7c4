"""Types, shapes and folded values of a graph: inference and folding in turns, until neither finds more."""

from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import shapes
from mirage_onnx.importer.folding import fold
from mirage_onnx.ir.program import Tensor
from mirage_onnx.onnx_process import Onnx

#: Inferences with what was folded after the one before: a model that says to the last node what its
#: shape is made of takes one for each shape that is made of a shape.
MOST_ROUNDS = 32


def known_of(
  proto: ModelProto,
  order: Sequence[int],
  opset: int,
  read: Callable[[TensorProto], np.ndarray],
  more: Sequence[ValueInfoProto] = (),
  onnx: Onnx | None = None,
) -> tuple[dict[str, Tensor], dict[str, TensorProto]]:
  """A Tensor for every named value of the graph, and what nodes make of constants and shapes.

  ``more``: as ``shapes.infer`` has it. ``onnx``: with the time that is left to the model.

  Raises:
      MirageError: MODEL_INVALID, MODEL_LIMIT.
  """
  onnx = onnx or Onnx()
  folded = dict[str, TensorProto]()
  tensors = shapes.infer(proto, order, opset, read, folded, onnx, more)
  for _ in range(MOST_ROUNDS):
    if len(found := fold(proto, order, opset, tensors, read)) == len(folded):
      break
    try:
      tensors = shapes.infer(proto, order, opset, read, found, onnx, more)
    except MirageError:  # a branch of an If that will not be taken, or the time is over
      break
    folded = found
  return tensors, folded
