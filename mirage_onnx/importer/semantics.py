"""The operators with a meaning: (domain, operator) -> rule. To add an operator, add a line."""

from collections.abc import Callable
from dataclasses import dataclass

from mirage_onnx.importer import activations as act
from mirage_onnx.importer import (
  attention,
  cached_attention,
  dequantized,
  layout,
  linear,
  norms,
  quantized,
  rotary,
  slicing,
  truth,
)
from mirage_onnx.importer import elementwise as ew
from mirage_onnx.importer import reductions as red
from mirage_onnx.importer.context import Context
from mirage_onnx.importer.stand_ins import MICROSOFT

#: Domains whose operators may have a rule; the default one is spelled as the empty string.
DOMAINS = ("", MICROSOFT)
#: In the default domain of ONNX Runtime, but in no version of ONNX.
NOT_IN_ONNX = frozenset({"SimplifiedLayerNormalization"})


@dataclass(frozen=True, slots=True)
class Rule:
  """``lower`` writes the steps of a node; inputs at ``parameters`` are no tensors of its math.

  ``truth``: its tensors may be booleans; ``integers``: or integers.
  """

  lower: Callable[[Context], None]
  parameters: frozenset[int] = frozenset()
  truth: bool = False
  integers: bool = False


def _rule(lower: Callable[[Context], None], *parameters: int, truth: bool = False) -> Rule:
  return Rule(lower, frozenset(parameters), truth)


def _move(lower: Callable[[Context], None], *parameters: int) -> Rule:
  """A rule for elements of any type."""
  return Rule(lower, frozenset(parameters), truth=True, integers=True)


SEMANTICS: dict[tuple[str, str], Rule] = {
  **{("", name): _rule(ew.function(op)) for name, op in ew.FUNCTIONS.items()},
  **{("", name): _rule(ew.chain(op)) for name, op in ew.CHAINS.items()},
  ("", "Mean"): _rule(red.mean_of_operands),
  ("", "Pow"): _rule(ew.power, 1),
  **{("", name): _rule(lower, truth=True) for name, lower in truth.RULES.items()},
  ("", "Cast"): _move(truth.cast),
  ("", "CastLike"): _move(truth.cast, 1),
  ("", "Clip"): _rule(ew.clip),
  ("", "Identity"): _move(ew.identity),
  ("", "Dropout"): _rule(ew.dropout, 1, 2),
  ("", "LeakyRelu"): _rule(ew.leaky_relu),
  ("", "PRelu"): _rule(ew.prelu),
  # reductions                   over      of            then
  ("", "ReduceSum"): _rule(red.reduction("sum"), 1),
  ("", "ReduceMean"): _rule(red.reduction("mean"), 1),
  # Of integers too: the largest, cast to a float, is the largest of the floats.
  ("", "ReduceMax"): _move(red.reduction("rmax"), 1),
  ("", "ReduceMin"): _move(red.reduction("rmax", red.negated, red.negated), 1),
  ("", "ReduceSumSquare"): _rule(red.reduction("sum", red.square), 1),
  ("", "ReduceL2"): _rule(red.reduction("sum", red.square, red.root), 1),
  ("", "ReduceL1"): _rule(red.reduction("sum", red.absolute), 1),
  ("", "Softmax"): _rule(red.softmax),
  ("", "LogSoftmax"): _rule(red.log_softmax),
  # matrix products
  ("", "MatMul"): _rule(linear.matmul),
  ("", "Gemm"): _rule(linear.gemm),
  (MICROSOFT, "FusedMatMul"): _rule(linear.fused_matmul),
  (MICROSOFT, "MatMulNBits"): _rule(quantized.matmul_nbits, 1, 3, 4),
  (MICROSOFT, "MatMulBlockQuantizedFp8Weight"): _rule(quantized.matmul_float8, 1),
  (MICROSOFT, "MatMulBlockQuantizedFp4Weight"): _rule(quantized.matmul_float4, 1, 2, 3, 4),
  ("", "DequantizeLinear"): _rule(dequantized.dequantize_linear, 0, 2),
  (MICROSOFT, "DequantizeLinear"): _rule(dequantized.dequantize_linear, 0, 2),
  ("", "QuantizeLinear"): _rule(dequantized.quantize_linear, 1, 2),
  ("", "DynamicQuantizeLinear"): _rule(dequantized.quantize_linear),
  (MICROSOFT, "QuantizeLinear"): _rule(dequantized.quantize_linear, 1, 2),
  (MICROSOFT, "GatherBlockQuantized"): _rule(dequantized.gather_block_quantized, 0, 1, 2, 3),
  ("", "Conv"): _rule(linear.conv),
  # layout
  ("", "Transpose"): _move(layout.transpose),
  ("", "Reshape"): _move(layout.reshape, 1),
  ("", "Squeeze"): _move(layout.reshape, 1),
  ("", "Unsqueeze"): _move(layout.reshape, 1),
  ("", "Flatten"): _move(layout.reshape),
  ("", "GatherND"): _move(layout.gather_nd, 1),
  ("", "Expand"): _move(layout.expand, 1),
  # parts
  ("", "Slice"): _move(slicing.slice_, 1, 2, 3, 4),
  ("", "Split"): _move(slicing.split, 1),
  ("", "Concat"): _move(slicing.concat),
  ("", "Gather"): _move(slicing.gather, 1),
  ("", "ScatterND"): _move(slicing.scatter_nd, 1),
  ("", "TensorScatter"): _rule(slicing.tensor_scatter, 2),
  ("", "RotaryEmbedding"): _rule(rotary.rotary(3, 1, 2), 3),
  (MICROSOFT, "RotaryEmbedding"): _rule(rotary.rotary(1, 2, 3), 1),
  # attention
  ("", "Attention"): _rule(attention.attention, 6, truth=True),
  (MICROSOFT, "Attention"): _rule(attention.fused_attention, 3, 6),
  (MICROSOFT, "MultiHeadAttention"): _rule(attention.multi_head_attention, 4, 8, 9),
  (MICROSOFT, "GroupQueryAttention"): _rule(cached_attention.group_query_attention, 5, 6, 9),
  # normalisations
  ("", "LayerNormalization"): _rule(norms.layer_norm),
  ("", "RMSNormalization"): _rule(norms.rms_norm),
  ("", "SimplifiedLayerNormalization"): _rule(norms.rms_norm),
  (MICROSOFT, "SkipLayerNormalization"): _rule(norms.skip_layer_norm),
  (MICROSOFT, "SkipSimplifiedLayerNormalization"): _rule(norms.skip_rms_norm),
  # activations
  ("", "Gelu"): _rule(act.gelu),
  (MICROSOFT, "Gelu"): _rule(act.activation(act.gelu_erf)),
  (MICROSOFT, "BiasGelu"): _rule(act.biased(act.gelu_erf)),
  (MICROSOFT, "FastGelu"): _rule(act.biased(act.gelu_tanh)),
  (MICROSOFT, "QuickGelu"): _rule(act.activation(act.swish(1.702))),
  ("", "Swish"): _rule(act.activation(act.swish(1.0))),
  ("", "HardSigmoid"): _rule(act.activation(act.hard_sigmoid)),
  ("", "HardSwish"): _rule(act.activation(act.hard_swish)),
  ("", "Softplus"): _rule(act.activation(act.softplus)),
  ("", "Softsign"): _rule(act.activation(act.softsign)),
  ("", "Mish"): _rule(act.activation(act.mish)),
  ("", "Elu"): _rule(act.activation(act.elu)),
  ("", "Selu"): _rule(act.activation(act.selu)),
}
