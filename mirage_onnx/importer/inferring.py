"""Types, shapes and folded values of a graph: inference and folding in turns, until neither finds more."""

from collections.abc import Callable, Sequence

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import shapes
from mirage_onnx.importer.folding import fold
from mirage_onnx.importer.sized_values import found_shapes
from mirage_onnx.ir.program import Tensor
from mirage_onnx.onnx_process import Onnx

#: Inferences with what was folded after the one before: a model that says to the last node what its
#: shape is made of takes one for each shape that is made of a shape.
MOST_ROUNDS = 32
#: Inferences with what was found of names: a layer of a model may wait for the one before.
MOST_TURNS = 8


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


def with_sizes(
  proto: ModelProto,
  order: Sequence[int],
  opset: int,
  read: Callable[[TensorProto], np.ndarray],
  onnx: Onnx,
  tensors: dict[str, Tensor],
  folded: dict[str, TensorProto],
) -> tuple[dict[str, Tensor], dict[str, TensorProto], tuple[ValueInfoProto, ...]]:
  """``known_of`` with the names of sizes that inference loses, and what it was told for that.

  In turns with inference, which follows a shape through operators that ``sized_shapes.py`` has no row for.
  """
  told = dict[str, ValueInfoProto]()
  for _ in range(MOST_TURNS):
    found = found_shapes(proto, order, opset, tensors, folded, read)
    if not found:
      break
    more = told | {v.name: v for v in found}
    try:
      tensors, folded = known_of(proto, order, opset, read, tuple(more.values()), onnx)
    except MirageError:  # nodes that no run gets through, or the time is over
      break
    told = more
  return tensors, folded, tuple(told.values())
