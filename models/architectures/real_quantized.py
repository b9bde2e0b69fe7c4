"""Quantized models, and graphs with loops that no torch module writes."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import torch
import transformers as tf
from onnx import TensorProto, helper, numpy_helper
from real_common import TEXT_LIMITS, First, Prefill, built, noise, text_inputs
from real_export import Real


def _round_trip(change):
  """A change of an ONNX file as a change of a model."""

  def after(model):
    with tempfile.TemporaryDirectory() as folder:
      given, made = Path(folder) / "given.onnx", Path(folder) / "made.onnx"
      ir.save(model, given)
      change(given, made)
      return ir.serde.deserialize_model(onnx.load(made))

  return after


def _static(given, made):
  """Queries of one input are enough to set scales."""
  from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

  class Once(CalibrationDataReader):
    def __init__(self):
      rng = np.random.default_rng(0)
      self.left = [{
        "input_ids": rng.integers(3, 1000, (1, 128)), "attention_mask": np.ones((1, 128), np.int64),
      }]  # fmt: skip

    def get_next(self):
      return self.left.pop() if self.left else None

  quantize_static(
    given,
    made,
    Once(),
    quant_format=QuantFormat.QDQ,
    per_channel=True,
    op_types_to_quantize=["MatMul", "Gemm"],
  )


def _by_run(given, made):
  from onnxruntime.quantization import quantize_dynamic

  quantize_dynamic(given, made, per_channel=True)


def _four_bits(given, made):
  from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

  quantizer = MatMulNBitsQuantizer(onnx.load(given), block_size=32, is_symmetric=True)
  quantizer.process()
  quantizer.model.save_model_to_file(str(made))


def _bert():
  config = tf.BertConfig(vocab_size=4096, num_hidden_layers=2)
  given = text_inputs(1, 128)
  return First(built(tf.BertModel, config, "eager", add_pooling_layer=False), *given), given


def _llama():
  config = tf.LlamaConfig(
    vocab_size=4096, hidden_size=2048, intermediate_size=5632, num_hidden_layers=1, num_attention_heads=32,
    num_key_value_heads=4, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
  )  # fmt: skip
  return Prefill(built(tf.LlamaForCausalLM, config, "eager")), text_inputs(1, 128)


class Placeholder(torch.nn.Module):
  """The graph is made by hand afterwards."""

  def forward(self, x):
    return x + 1


def _by_hand(name, make, shape, dtype="fp32", **more):
  return Real(name, lambda: (Placeholder(), {"x": noise(*shape)}), dtype, after=lambda _: make(), **more)


class _Graph:
  """Nodes and weights of a model made by hand; fp32."""

  def __init__(self):
    self.nodes, self.weights, self.rng = [], [], np.random.default_rng(0)

  def weight(self, name, *shape, mean=0.0, deviation=0.03):
    array = self.rng.standard_normal(shape, dtype=np.float32) * deviation + mean
    self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
    return name

  def constant(self, name, array):
    self.weights.append(numpy_helper.from_array(np.asarray(array), name))
    return name

  def op(self, op_type, inputs, out, **attributes):
    self.nodes.append(helper.make_node(op_type, inputs, [out], out, **attributes))
    return out

  def model(self, name, shape, out, out_shape):
    f = TensorProto.FLOAT
    graph = helper.make_graph(
      self.nodes, name, [helper.make_tensor_value_info("x", f, shape)],
      [helper.make_tensor_value_info(out, f, out_shape)], self.weights,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(proto, full_check=True)
    return ir.serde.deserialize_model(proto)


def _lstm(steps=128, batch=4, width=512):
  g, x = _Graph(), "x"
  for i in range(2):
    w, r = (
      g.weight(f"lstm{i}.W", 2, 4 * width, 2 * width if i else width),
      g.weight(f"lstm{i}.R", 2, 4 * width, width),
    )
    b = g.weight(f"lstm{i}.B", 2, 8 * width)
    y = g.op("LSTM", [x, w, r, b], f"y{i}", hidden_size=width, direction="bidirectional")
    y = g.op("Transpose", [y], f"t{i}", perm=[0, 2, 1, 3])
    y = g.op("Reshape", [y, g.constant(f"shape{i}", np.array([0, 0, -1]))], f"flat{i}")
    scale, bias = (
      g.weight(f"norm{i}.weight", 2 * width, mean=1.0, deviation=0.1),
      g.weight(f"norm{i}.bias", 2 * width),
    )
    x = g.op("LayerNormalization", [y, scale, bias], f"normed{i}")
  y = g.op("MatMul", [x, g.weight("head", 2 * width, 1024)], "logits")
  return g.model("lstm", [steps, batch, width], g.op("LogSoftmax", [y], "out", axis=-1), [steps, batch, 1024])


def _loop(rows=4, width=768, steps=6):
  """The same feed-forward block several times, by Loop; its weights are those of the outer graph."""
  g = _Graph()
  up, down = g.weight("up", width, 4 * width), g.weight("down", 4 * width, width)
  scale, bias = g.weight("norm.weight", width, mean=1.0, deviation=0.1), g.weight("norm.bias", width)
  f = TensorProto.FLOAT
  body = helper.make_graph(
    [
      helper.make_node("LayerNormalization", ["h", scale, bias], ["n"], "body_norm"),
      helper.make_node("MatMul", ["n", up], ["u"], "body_up"),
      helper.make_node("Gelu", ["u"], ["g"], "body_gelu"),
      helper.make_node("MatMul", ["g", down], ["d"], "body_down"),
      helper.make_node("Add", ["h", "d"], ["h_out"], "body_add"),
      helper.make_node("Identity", ["go"], ["go_out"], "body_go"),
    ],
    "body",
    [
      helper.make_tensor_value_info("i", TensorProto.INT64, []),
      helper.make_tensor_value_info("go", TensorProto.BOOL, []),
      helper.make_tensor_value_info("h", f, [rows, width]),
    ],
    [
      helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
      helper.make_tensor_value_info("h_out", f, [rows, width]),
    ],
  )
  first = g.op("LayerNormalization", ["x", scale, bias], "first")
  y = g.op("Loop", [g.constant("steps", np.array(steps)), "", first], "looped", body=body)
  z = g.op("MatMul", [y, up], "z")
  return g.model("loop", [rows, width], g.op("Sigmoid", [z], "out"), [rows, 4 * width])


QUANTIZED = (
  Real("bert_qdq", _bert, "fp32", TEXT_LIMITS, after=_round_trip(_static)),
  Real("bert_dynamic_int8", _bert, "fp32", TEXT_LIMITS, after=_round_trip(_by_run)),
  Real("llama_int4_prefill128", _llama, "fp32", TEXT_LIMITS, opset=21, after=_round_trip(_four_bits)),
  Real("llama_int4_fp16_prefill128", _llama, "fp16", TEXT_LIMITS, opset=21, after=_round_trip(_four_bits)),
  _by_hand("lstm_bidirectional_fp32", _lstm, (128, 4, 512)),
  _by_hand("loop_fp32", _loop, (4, 768)),
)
