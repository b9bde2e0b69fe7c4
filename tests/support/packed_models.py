"""Models with weights of few bits, by ``small_models.Net``."""

import numpy as np
from onnx import TensorProto, helper
from small_models import Net

MS = "com.microsoft"


def nbits(net, x, n, k, *, block=32, bits=4, zero=False, bias=False, flat=False):
  """MatMulNBits of random integers; ``zero``: with packed zero points, or ("float") floats."""
  blocks = k // block
  b = net.constant(net.rng.integers(0, 256, (n, blocks, block * bits // 8)), np.uint8)
  # So that products of normal numbers are about normal.
  scale = (
    net.rng.uniform(0.5, 1.5, (n * blocks,) if flat else (n, blocks)) * 2.0 ** (4 - bits) * 0.2 / np.sqrt(k)
  )
  inputs = [x, b, net.constant(scale)]
  if zero or bias:
    points = net.rng.integers(0, 256, (n, -(-blocks * bits // 8)))
    if zero == "float":
      middle = 2 ** (bits - 1)
      points = net.rng.uniform(middle - 1, middle + 1, (n, blocks))
    points = points.reshape(-1) if flat else points
    inputs.append(net.constant(points, *([] if zero == "float" else [np.uint8])) if zero else "")
  if bias:
    inputs += ["", net.constant(net.rng.standard_normal(n))]
  return net.MatMulNBits(*inputs, domain=MS, K=k, N=n, bits=bits, block_size=block)


def model_of(net, *outputs):
  """``outputs``: (name, shape), as shape inference does not know the operator."""
  made = net.model(*(name for name, _ in outputs))
  kind = helper.np_dtype_to_tensor_dtype(net.dtype)
  for value, (name, shape) in zip(made.graph.output, outputs, strict=True):
    value.CopyFrom(helper.make_tensor_value_info(name, kind, shape))
  return made


def product(rows=2, k=512, n=96, *, dtype=np.float16, seed=0, **how):
  net = Net(dtype, seed=seed)
  x = net.input(*((rows,) if isinstance(rows, (int, str)) else rows), k)
  shape = (*((rows,) if isinstance(rows, (int, str)) else rows), n)
  return model_of(net, (nbits(net, x, n, k, **how), shape))


def normed(net, rows, k):
  return net.rms(net.input(rows, k), net.constant(1 + 0.1 * net.rng.standard_normal(k)))


def norm(rows=1, k=1024, n=1024, *, dtype=np.float16, **how):
  net = Net(dtype)
  return model_of(net, (nbits(net, normed(net, rows, k), n, k, **how), (rows, n)))


def gated(rows=1, k=1024, n=1024, **how):
  net = Net()
  x = normed(net, rows, k)
  gate, up = (nbits(net, x, n, k, **how) for _ in range(2))
  return model_of(net, (net.Mul(net.Mul(gate, net.Sigmoid(gate)), up), (rows, n)))


def heads(rows=1, k=1024, sizes=(512, 128, 128), **how):
  """Three products of one input, as a decoder projects q, k and v."""
  net = Net()
  x = normed(net, rows, k)
  return model_of(net, *((nbits(net, x, n, k, **how), (rows, n)) for n in sizes))


def residual(rows=1, k=1024, n=1024, **how):
  net = Net()
  x, skip = net.input(rows, k), net.input(rows, n)
  return model_of(net, (net.Add(nbits(net, x, n, k, **how), skip), (rows, n)))


def without(model, position, name=""):
  """The model with another input of its MatMulNBits at a position."""
  (node,) = (n for n in model.graph.node if n.op_type == "MatMulNBits")
  while len(node.input) <= position:
    node.input.append("")
  node.input[position] = name
  return node


FLOAT = TensorProto.FLOAT


def decoder_layer(rows=1, hidden=512, inner=1024, words=768, head=128, room=256):
  """A layer and the head of a decoder as onnxruntime-genai's builder writes them: 4 bits, blocks of 128."""
  net, heads, kept = Net(), hidden // head, hidden // head // 2

  def more(*names):
    net.nodes[-1].output.extend(names)
    return net.nodes[-1].output[0]

  def product(x, n, k):
    return nbits(net, x, n, k, block=128)

  def gamma():
    return net.constant(1 + 0.1 * net.rng.standard_normal(hidden))

  def skip(a, b):
    return net.SkipSimplifiedLayerNormalization(a, b, gamma(), domain=MS, epsilon=1e-5)

  x = net.input(rows, 1, hidden)
  past = [net.input(rows, kept, room, head) for _ in range(2)]
  lengths, total = net.input(rows, dtype=np.int32), net.input(dtype=np.int32)
  turns = [net.constant(f(np.arange(room)[:, None] * 0.01 ** (np.arange(head // 2) / head)))
           for f in (np.cos, np.sin)]  # fmt: skip
  y = net.SimplifiedLayerNormalization(x, gamma(), axis=-1, epsilon=1e-5)
  qkv = product(y, hidden + 2 * kept * head, hidden)
  net.GroupQueryAttention(
    qkv, "", "", *past, lengths, total, *turns,
    domain=MS, num_heads=heads, kv_num_heads=kept, do_rotary=1, scale=head**-0.5, local_window_size=-1,
  )  # fmt: skip
  a = product(more("present_k", "present_v"), hidden, hidden)
  skip(x, a)
  y = more("", "", "sum1")
  gate, up = (product(y, inner, hidden) for _ in range(2))
  b = product(net.Mul(net.Mul(gate, net.Sigmoid(gate)), up), hidden, inner)
  skip("sum1", b)
  out = product(more("", "", "sum2"), words, hidden)
  shape = (rows, kept, room, head)
  return model_of(net, (out, (rows, 1, words)), ("present_k", shape), ("present_v", shape))
