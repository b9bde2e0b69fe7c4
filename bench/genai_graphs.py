"""Decoders as onnxruntime-genai's builder 0.18 writes them for CUDA, with random weights, by configuration.

The nodes, their order, attributes and names of dimensions are the builder's (``-p fp16`` or ``-p int4``);
weights are drawn straight into the file beside the model, so that no framework is asked for billions of them.
"""

import json
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

MS, HALF, I64 = "com.microsoft", TensorProto.FLOAT16, TensorProto.INT64
EPSILON = 1e-6
#: Numbers that are drawn once; larger weights repeat them.
DRAWN = 1 << 23


@dataclass(frozen=True)
class Config:
  """``norms``: queries and keys are normed (Qwen3). ``block``: of 4-bit weights."""

  hidden: int
  inner: int
  heads: int
  own: int
  size: int
  layers: int
  vocabulary: int
  norms: bool = False
  bits: int = 16
  block: int = 32
  context: int = 8192


CONFIGS = {
  "llama3_8b_layer": Config(4096, 14336, 32, 8, 128, 1, 1024, block=128),
  "llama3_8b_4l_head": Config(4096, 14336, 32, 8, 128, 4, 128256, block=128),
  "qwen3_0.6b": Config(1024, 3072, 16, 8, 128, 28, 151936, norms=True),
  "small": Config(512, 1024, 8, 2, 64, 2, 512),
  "small_norms": Config(512, 1024, 8, 2, 64, 2, 512, norms=True),
}


class _Weights:
  """External data, written as it is drawn."""

  def __init__(self, path):
    self.file, self.tensors = path.open("wb"), []
    self.name = path.name
    rng = np.random.default_rng(0)
    self.normal = rng.standard_normal(DRAWN, np.float32)
    self.bytes = rng.integers(0, 256, DRAWN, np.uint8)

  def add(self, name, x):
    x = np.ascontiguousarray(x)
    self.file.seek(-(-self.file.tell() // 4096) * 4096)
    t = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(x.dtype), dims=x.shape)
    t.data_location = TensorProto.EXTERNAL
    for key, value in (("location", self.name), ("offset", self.file.tell()), ("length", x.nbytes)):
      t.external_data.add(key=key, value=str(value))
    x.tofile(self.file)
    self.tensors.append(t)
    return name

  def drawn(self, name, *shape, scale):
    return self.add(name, np.resize((self.normal * scale).astype(np.float16), shape))

  def packed(self, name, outer, inner, block):
    blocks = inner // block
    scale = np.float16(0.25 / np.sqrt(inner))
    scales = (1 + 0.2 * np.abs(self.normal[: outer * blocks])) * scale if outer * blocks <= DRAWN else scale
    return (
      self.add(f"{name}_Q4", np.resize(self.bytes, (outer, blocks, block // 2))),
      self.add(f"{name}_scales", np.resize(np.asarray(scales, np.float16), (outer, blocks))),
    )


def write(folder, c):
  """Write ``model.onnx``, its weights and the config of a decoder into a folder."""
  folder.mkdir(parents=True, exist_ok=True)
  w, nodes, info = _Weights(folder / "model.onnx.data"), [], helper.make_tensor_value_info
  values = []

  def node(op, inputs, outputs, domain="", **more):
    nodes.append(helper.make_node(op, inputs, outputs, name=outputs[0].rpartition("/output")[0] or outputs[0],
                                  domain=domain, **more))  # fmt: skip
    return outputs[0]

  def said(name, width):
    values.append(info(name, HALF, ["batch_size", "sequence_length", width]))
    return name

  def product(x, name, inner, outer, y=None):
    y = y or f"/{name.replace('model.', 'model/', 1).replace('.', '/')}/MatMul/output_0"
    if c.bits == 4:
      own = w.packed(f"{name}.MatMul.weight", outer, inner, c.block)
      node("MatMulNBits", [x, *own], [y], MS, K=inner, N=outer, bits=4, block_size=c.block)
    else:
      node("MatMul", [x, w.drawn(f"{name}.MatMul.weight", inner, outer, scale=inner**-0.5)], [y])
    return said(y, outer) if y != "logits" else y

  def gain(name, n):
    return w.add(name, (1 + 0.1 * np.resize(w.normal, n)).astype(np.float16))

  lengths, total = _mask(node)
  x = node("Gather", [w.drawn("model.embed_tokens.weight", c.vocabulary, c.hidden, scale=1.0), "input_ids"],
           ["/model/embed_tokens/Gather/output_0"])  # fmt: skip
  said(x, c.hidden)
  angles = np.arange(c.context)[:, None] / 10000.0 ** (np.arange(c.size // 2) / (c.size // 2))
  tables = [w.add(f"{n}_cache", getattr(np, n)(angles).astype(np.float16)) for n in ("cos", "sin")]
  n1 = "/model/layers.0/input_layernorm/output_0"
  node("SimplifiedLayerNormalization", [x, gain("model.layers.0.input_layernorm.weight", c.hidden)], [n1],
       epsilon=EPSILON, axis=-1, stash_type=1)  # fmt: skip
  wide = [c.heads * c.size, c.own * c.size, c.own * c.size]
  for k in range(c.layers):
    at = f"model.layers.{k}"
    qkv = product(said(n1, c.hidden), f"{at}.attn.qkv_proj", c.hidden, sum(wide))
    parts, norms = [qkv, "", ""], []  # of values, then what is beside the tables
    if c.norms:
      parts = [said(f"/{at}/attn/qkv_proj/Split/output_{i}", n) for i, n in enumerate(wide)]
      if k == 0:
        node("Constant", [], ["/model/constants/split"], value_ints=wide)
      node("Split", [qkv, "/model/constants/split"], parts, axis=-1)
      norms = ["", "", *(gain(f"{at}.attn.{n}_norm.layernorm.weight", c.size) for n in "qk")]
    a = f"/{at}/attn/GroupQueryAttention/output_0"
    past, present = ([f"{n}.{k}.{of}" for of in ("key", "value")] for n in ("past_key_values", "present"))
    node("GroupQueryAttention", [*parts, *past, lengths, total, *tables, "", "", "", *norms],
         [a, *present], MS, num_heads=c.heads, kv_num_heads=c.own, scale=c.size**-0.5, do_rotary=1,
         local_window_size=-1, **({"qk_norm_epsilon": EPSILON} if c.norms else {}))  # fmt: skip
    o = product(said(a, wide[0]), f"{at}.attn.o_proj", wide[0], c.hidden)
    n2, r = (f"/{at}/post_attention_layernorm/output_{i}" for i in (0, 3))
    node("SkipSimplifiedLayerNormalization", [x, o, gain(f"{at}.post_attention_layernorm.weight", c.hidden)],
         [n2, "", "", r], MS, epsilon=EPSILON)  # fmt: skip
    gate, up = (product(said(n2, c.hidden), f"{at}.mlp.{n}_proj", c.hidden, c.inner) for n in ("gate", "up"))
    s = said(node("Sigmoid", [gate], [f"/{at}/mlp/act_fn/Sigmoid/output_0"]), c.inner)
    m = said(node("Mul", [gate, s], [f"/{at}/mlp/act_fn/Mul/output_0"]), c.inner)
    m = said(node("Mul", [m, up], [f"/{at}/mlp/Mul/output_0"]), c.inner)
    d = product(m, f"{at}.mlp.down_proj", c.inner, c.hidden)
    last = k + 1 == c.layers
    at = f"model.layers.{k + 1}"
    n1, x = f"/{at}/{'final_norm' if last else 'input'}_layernorm/output_0", f"/{at}/input_layernorm/output_3"
    node("SkipSimplifiedLayerNormalization", [r, d, gain(f"{at}.input_layernorm.weight", c.hidden)],
         [n1] if last else [n1, "", "", x], MS, epsilon=EPSILON)  # fmt: skip
    said(r, c.hidden)
    if not last:
      said(x, c.hidden)
  product(said(n1, c.hidden), "lm_head", c.hidden, c.vocabulary, "logits")
  w.file.close()
  caches = [f"{k}.{of}" for k in range(c.layers) for of in ("key", "value")]
  cache = ["batch_size", c.own, "past_sequence_length", "kv_cache_dim"]
  after = ["batch_size", c.own, "total_sequence_length", "kv_cache_dim"]
  graph = helper.make_graph(
    nodes, "main_graph",
    [info("input_ids", I64, ["batch_size", "sequence_length"]),
     info("attention_mask", I64, ["batch_size", "total_sequence_length"]),
     *(info(f"past_key_values.{n}", HALF, cache) for n in caches)],
    [info("logits", HALF, ["batch_size", "sequence_length", c.vocabulary]),
     *(info(f"present.{n}", HALF, after) for n in caches)],
    w.tensors, value_info=values,
  )  # fmt: skip
  model = helper.make_model(
    graph, opset_imports=[helper.make_opsetid("", 22), helper.make_opsetid(MS, 1)], ir_version=10
  )
  (folder / "model.onnx").write_bytes(model.SerializeToString())
  section = {"filename": "model.onnx", "head_size": c.size, "hidden_size": c.hidden,
             "session_options": {"provider_options": [{"cuda": {"enable_cuda_graph": "0"}}]}}  # fmt: skip
  config = {"model": {"type": "llama", "context_length": c.context, "decoder": section},
            "search": {"max_length": c.context, "past_present_share_buffer": True}}  # fmt: skip
  (folder / "genai_config.json").write_text(json.dumps(config, indent=1))


def _mask(node):
  """The nodes that make lengths of the mask, as the builder has them."""
  at = "/model/attn_mask_reformat/attn_mask_subgraph"

  def constant(name, values, dims):
    tensor = helper.make_tensor(name, I64, dims, values)
    return node("Constant", [], [f"/model/constants/INT64/{name}"], value=tensor)

  one = constant("[1]", [1], [1])
  s = node("ReduceSum", ["attention_mask", one], [f"{at}/ReduceSum/output_0"], keepdims=0)
  s = node("Sub", [s, one], [f"{at}/Sub/output_0"])
  lengths = node("Cast", [s], [f"{at}/Sub/Cast/output_0"], to=TensorProto.INT32)
  shape = node("Shape", ["attention_mask"], [f"{at}/Shape/output_0"])
  total = node("Gather", [shape, constant("1", [1], [])], [f"{at}/Gather/output_0"], axis=0)
  return lengths, node("Cast", [total], [f"{at}/Gather/Cast/output_0"], to=TensorProto.INT32)
