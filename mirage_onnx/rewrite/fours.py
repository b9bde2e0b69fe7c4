"""Integers of 4 bits from the bytes that hold two of them, by operators that every runtime has.

ONNX Runtime hands custom operators no tensor of such a type, so a node gets their bytes, and the body of its
function makes of these what the original nodes read, bit for bit.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.ir.dtype import DType
from mirage_onnx.rewrite.replacement import WeightUse

_ONNX = {DType.U4: TensorProto.UINT4, DType.I4: TensorProto.INT4}


def restored_fours(name: str, use: WeightUse) -> list[onnx.NodeProto]:
  """Nodes that make ``{name}_restored`` of the bytes ``name``."""
  made: list[onnx.NodeProto] = []

  def add(op: str, inputs: list[str], **attributes: Any) -> str:
    output = f"{name}_{len(made)}"
    made.append(helper.make_node(op, inputs, [output], name=f"{op}_{output}", **attributes))
    return output

  def constant(value: np.ndarray) -> str:
    return add("Constant", [], value=numpy_helper.from_array(value))

  last = constant(np.array([1], np.int64))
  low = add("BitwiseAnd", [name, constant(np.array(15, np.uint8))])
  high = add("BitShift", [name, constant(np.array(4, np.uint8))], direction="RIGHT")
  both = add("Concat", [add("Unsqueeze", [x, last]) for x in (low, high)], axis=1)
  if use.four is DType.I4:
    values = constant(np.arange(16, dtype=np.int8) - np.int8(16) * (np.arange(16) > 7).astype(np.int8))
    both = add("Gather", [values, add("Cast", [both], to=TensorProto.INT32)])
  stored = [use.shape[p] for p in use.perm]
  whole = add("Reshape", [both, constant(np.array(stored, np.int64))])
  if not use.is_in_order:
    whole = add("Transpose", [whole], perm=use.inverse)
  assert use.four is not None
  made.append(
    helper.make_node("Cast", [whole], [f"{name}_restored"], name=f"Cast_{name}_restored", to=_ONNX[use.four])
  )
  return made
