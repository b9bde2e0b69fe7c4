"""Nodes of ONNX in place of those that onnx does not know: their results have the types and shapes.

They are inferred (``shapes.py``) and never run.
"""

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto, TensorProto, helper

MICROSOFT = "com.microsoft"
#: Operators onnx does not know or cannot infer, with the outputs that are of the type and shape of
#: input 0.
_LIKE_INPUT: dict[tuple[str, str], tuple[int, ...]] = {
  ("", "SimplifiedLayerNormalization"): (0,),
  ("", "MeanVarianceNormalization"): (0,),  # onnx 1.23 fails at the function of its schema
  (MICROSOFT, "SkipLayerNormalization"): (0, 3),
  (MICROSOFT, "SkipSimplifiedLayerNormalization"): (0, 3),
  **{
    (MICROSOFT, name): (0,)
    for name in ("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "RotaryEmbedding", "MoE", "QMoE")
  },
}


def stand_ins(
  domain: str, node: NodeProto, stored: Mapping[str, TensorProto] | None = None
) -> list[NodeProto] | None:
  """Nodes with the results of ``node``, or None where nothing is known of them.

  ``stored``: initializers by name.
  """
  if (like := _LIKE_INPUT.get((domain, node.op_type))) is not None:
    outputs = [node.output[k] for k in like if k < len(node.output) and node.output[k]]
    return [helper.make_node("Identity", node.input[:1], [o]) for o in outputs]
  rule = _RULES.get(node.op_type) if domain == MICROSOFT else None
  if rule is None or not (node.output and node.output[0]):
    return None
  inputs = [*node.input, *[""] * (8 - len(node.input))]
  try:
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return rule(_Nodes(node.output[0], stored or {}), given, inputs, list(node.output))
  except (LookupError, TypeError, ValueError):  # attributes that are missing, or of another type
    return None


class _Nodes(list[NodeProto]):
  """Nodes that are being written; inner values are named after ``prefix``."""

  def __init__(self, prefix: str, stored: Mapping[str, TensorProto]) -> None:
    super().__init__()
    self.prefix, self.stored = prefix, stored

  def add(self, op: str, *inputs: str, to: str = "", **attributes: Any) -> str:
    name = to or f"{self.prefix}/shape{len(self)}"
    self.append(helper.make_node(op, inputs, [name], **attributes))
    return name

  def ints(self, *values: int) -> str:
    value = helper.make_tensor("", TensorProto.INT64, [len(values)], values)
    return self.add("Constant", value=value)

  def reshaped(self, x: str, *shape: int, to: str = "") -> str:
    return self.add("Reshape", x, self.ints(*shape), to=to)

  def first(self, x: str, count: int, axis: int, to: str = "") -> str:
    return self.add("Slice", x, self.ints(0), self.ints(count), self.ints(axis), to=to)


def _fused_matmul(
  made: _Nodes, given: Mapping[str, Any], inputs: list[str], outputs: list[str]
) -> _Nodes | None:
  if given.get("transBatchA") or given.get("transBatchB"):
    return None
  operands = [i for i in inputs if i]
  if not (given.get("transA") or given.get("transB")):
    made.add("MatMul", *operands, to=outputs[0])
  else:
    a = "...ji" if given.get("transA") else "...ij"
    b = "...kj" if given.get("transB") else "...jk"
    made.add("Einsum", *operands, to=outputs[0], equation=f"{a},{b}->...ik")
  return made


def _heads(made: _Nodes, given: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> _Nodes:
  """MultiHeadAttention: as many elements of V as of Q, which may be beside K and V."""
  if inputs[1]:
    made.add("Identity", inputs[0], to=outputs[0])
  else:
    made.reshaped(made.first(inputs[0], 1, 3), 0, 0, -1, to=outputs[0])
  return made


def _grouped(made: _Nodes, given: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> _Nodes:
  """GroupQueryAttention: like Q, which may be beside K and V."""
  if inputs[1]:
    made.add("Identity", inputs[0], to=outputs[0])
  else:
    heads = given["num_heads"]
    apart = made.reshaped(inputs[0], 0, 0, heads + 2 * given["kv_num_heads"], -1)
    made.reshaped(made.first(apart, heads, 2), 0, 0, -1, to=outputs[0])
  return made


def _projecting(made: _Nodes, given: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> _Nodes:
  """Attention: Q, K and V of a product; ``present`` is the past with K and V behind it."""
  wide = made.add("MatMul", *inputs[:2])
  if "qkv_hidden_sizes" in given:
    made.first(wide, given["qkv_hidden_sizes"][2], 2, to=outputs[0])
    return made
  made.reshaped(made.first(made.reshaped(wide, 0, 0, 3, -1), 1, 2), 0, 0, -1, to=outputs[0])
  if len(outputs) > 1 and outputs[1] and not given.get("past_present_share_buffer"):
    apart = made.reshaped(wide, 0, 0, 3, given["num_heads"], -1)
    new = made.add("Transpose", made.first(apart, 2, 2), perm=(2, 0, 3, 1, 4))
    past = [inputs[4]] if inputs[4] else []
    made.add("Concat", *past, new, to=outputs[1], axis=3)
  return made


def _few_bits(made: _Nodes, given: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> _Nodes:
  """MatMulNBits: a product with a matrix of K x N, which is of the type of the scales."""
  one = made.first(made.reshaped(inputs[2], -1), 1, 0)
  made.add("MatMul", inputs[0], made.add("Expand", one, made.ints(given["K"], given["N"])), to=outputs[0])
  return made


def _float_rows(made: _Nodes, given: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> _Nodes:
  """MatMulBlockQuantizedFp8Weight and Fp4Weight: as many columns as rows of weights, of A's type."""
  rows, packed = made.stored[inputs[1]].dims[0], made.stored[inputs[1]].dims[1]
  depth = packed * (2 if made.stored[inputs[1]].data_type == TensorProto.UINT8 else 1)
  one = made.first(made.reshaped(inputs[0], -1), 1, 0)
  made.add("MatMul", inputs[0], made.add("Expand", one, made.ints(depth, rows)), to=outputs[0])
  return made


def _rows_of_few_bits(
  made: _Nodes, given: Mapping[str, Any], inputs: list[str], outputs: list[str]
) -> _Nodes | None:
  """GatherBlockQuantized: rows of a table, as many blocks wide as the scales say.

  Only of tables that whole blocks fill, with a value or two in a byte: else the width would be a guess.
  """
  table, data, scales = made.stored[inputs[0]], made.stored[inputs[0]].dims, made.stored[inputs[2]].dims
  block, bits = given.get("block_size", 128), given.get("bits", 4)
  if bits not in (4, 8) or not 16 <= block <= 1024 or len(data) != 2 or len(scales) != 2:
    return None
  if scales[1] * block != data[1] * (8 // bits if table.data_type == TensorProto.UINT8 else 1):
    return None
  if given.get("gather_axis", 0) != 0 or given.get("quantize_axis", 1) not in (1, -1):
    return None
  rows = made.add("Gather", inputs[2], inputs[1], axis=0)
  made.add("Concat", *[rows] * block, to=outputs[0], axis=-1)
  return made


_RULES = {
  "FusedMatMul": _fused_matmul, "MultiHeadAttention": _heads,
  "GroupQueryAttention": _grouped, "Attention": _projecting,
  "MatMulNBits": _few_bits, "GatherBlockQuantized": _rows_of_few_bits,
  "MatMulBlockQuantizedFp8Weight": _float_rows, "MatMulBlockQuantizedFp4Weight": _float_rows,
}  # fmt: skip
