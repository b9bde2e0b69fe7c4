"""A random model of a seed: blocks of the kinds that the importer makes regions of, of any size."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from small_models import Net

WIDTHS = (64, 128, 192, 256, 384, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
ROWS = (1, 2, 3, 4, 7, 8, 16, 17, 32, 64, 128, 197, 256, 512, 1024, 2048, 4096, 8192)
TYPES = ("fp16", "bf16", "fp32")
#: Bytes of all weights and elements of an activation, at most; multiplications of a run.
MOST_BYTES, MOST_ELEMENTS, MOST_WORK = 1 << 28, 1 << 25, 1 << 37
#: Numbers that are drawn of one weight; a larger one repeats them.
DRAWN = (1 << 20) + 7


class Sized(Net):
  """A ``Net`` whose tensors have known shapes: ``self.width``, ``self.rows`` of the present value."""

  def __init__(self, rng, dtype, rows, width):
    super().__init__(dtype=np.float32, seed=0)
    self.rng, self.kind, self.rows, self.width = rng, dtype, rows, width
    self.used_bytes = self.work = 0

  def constant(self, value, dtype=None):
    if dtype is not None or self.kind == "fp32":
      return super().constant(value, dtype)
    array = np.asarray(value, np.float32)
    name = self._name("c")
    if self.kind == "fp16":
      self.weights.append(numpy_helper.from_array(array.astype(np.float16), name))
    else:
      raw = (array.view(np.uint32) >> 16).astype(np.uint16)  # towards zero: any bf16 is as good
      self.weights.append(
        helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, raw.tobytes(), raw=True)
      )
    return name

  def weight(self, *shape, scale=None):
    scale = scale or 1 / np.sqrt(shape[0])
    size = int(np.prod(shape))
    drawn = self.rng.standard_normal(min(size, DRAWN), np.float32) * np.float32(scale)
    self.used_bytes += size * (4 if self.kind == "fp32" else 2)
    return self.constant(np.resize(drawn, shape))

  def given(self, *shape):
    kind = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "fp32": TensorProto.FLOAT}[self.kind]
    name = self._name("x")
    self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
    return name

  def linear(self, x, width, out, bias=True):
    self.work += self.rows * width * out
    y = self.MatMul(x, self.weight(width, out))
    return self.Add(y, self.weight(out, scale=0.1)) if bias else y

  def gamma(self):
    return self.constant(1 + 0.1 * self.rng.standard_normal(self.width).astype(np.float32))

  def layer_norm(self, x):
    return self.LayerNormalization(x, self.gamma(), self.weight(self.width, scale=0.1), epsilon=1e-5)

  def norm(self, x):
    return self.rms(x, self.gamma(), eps=1e-3) if self.rng.random() < 0.5 else self.layer_norm(x)


def norm_linear(net, x, out):
  x = net.linear(net.norm(x), net.width, out, bias=bool(net.rng.random() < 0.5))
  net.width = out
  return x


def gated_mlp(net, x, wide):
  h = net.norm(x)
  gate, up = net.linear(h, net.width, wide, bias=False), net.linear(h, net.width, wide, bias=False)
  return net.Add(x, net.linear(net.Mul(net.Mul(gate, net.Sigmoid(gate)), up), wide, net.width, bias=False))


def bias_gelu(net, x, out):
  h = net.linear(x, net.width, out)
  net.width = out
  return net.Gelu(h, approximate=str(net.rng.choice(["none", "tanh"])))


def residual_norm(net, x, _):
  return net.norm(net.Add(x, net.given(net.rows, net.width)))


def softmax_mask(net, x, _):
  scores = net.Mul(x, float(net.width) ** -0.5)
  return net.Softmax(net.Add(scores, net.given(net.rows, net.width)), axis=-1)


def attention(net, x, _):
  heads = max(h for h in (1, 2, 4, 8, 12, 16) if net.width % h == 0 and net.width // h >= 32)
  size = net.width // heads
  q, k, v = (net.linear(x, net.width, net.width) for _ in range(3))
  split = lambda y: net.Transpose(net.Reshape(y, [net.rows, heads, size]), perm=[1, 0, 2])  # noqa: E731
  q, k, v = split(q), split(k), split(v)
  scores = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 2, 1])), size**-0.5)
  net.work += 2 * net.rows * net.rows * net.width
  y = net.Transpose(net.MatMul(net.Softmax(scores, axis=-1), v), perm=[1, 0, 2])
  return net.Add(x, net.linear(net.Reshape(y, [net.rows, net.width]), net.width, net.width))


def embedding(net, x, _):
  table = net.weight(1000, net.width, scale=0.5)
  name = net._name("ids")
  net.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, (net.rows,)))
  return net.layer_norm(net.Add(x, net.Gather(table, name, axis=0)))


def lora(net, x, out):
  rank = int(net.rng.choice([8, 16, 32]))
  net.work += net.rows * rank * (net.width + out)
  low = net.MatMul(net.MatMul(x, net.weight(net.width, rank)), net.weight(rank, out))
  y = net.Add(net.linear(x, net.width, out, bias=False), net.Mul(low, 2.0))
  net.width = out
  return y


def chain(net, x, _):
  y = net.Mul(net.Tanh(x), net.Sigmoid(x))
  return net.Add(net.Mul(y, net.gamma()), net.Erf(x))


BLOCKS = {f.__name__: f for f in (
  norm_linear, gated_mlp, bias_gelu, residual_norm, softmax_mask, attention, embedding, lora, chain,
)}  # fmt: skip


@dataclass(frozen=True)
class Plan:
  """What the model of a seed is; ``rng`` draws its weights."""

  kind: str
  rows: int
  width: int
  names: tuple[str, ...]
  outs: tuple[int, ...]
  rng: np.random.Generator


def plan(seed):
  """The first plan of a seed that fits."""
  for more in range(100):
    rng = np.random.default_rng([seed, more])
    kind, rows, width = (rng.choice(x) for x in (list(TYPES), ROWS, WIDTHS))
    names = tuple(str(n) for n in rng.choice(list(BLOCKS), int(rng.integers(1, 5))))
    outs = tuple(int(w) for w in rng.choice(WIDTHS, len(names)))
    if _fits(int(rows), int(width), names, outs, 4 if kind == "fp32" else 2):
      return Plan(str(kind), int(rows), int(width), names, outs, rng)
  raise ValueError(f"seed {seed} gives no model that fits")


def draw(seed):
  """The model of a seed, and what it is: type, rows, blocks with their widths."""
  p = plan(seed)
  net = Sized(p.rng, p.kind, p.rows, p.width)
  x, said = net.given(net.rows, net.width), list[str]()
  for name, out in zip(p.names, p.outs, strict=True):
    x = BLOCKS[name](net, x, out)
    said.append(f"{name}:{out}")
  text = f"{p.kind} {p.rows}x{p.width} {' '.join(said)}"
  return net.model(x), {"text": text, "type": p.kind, "rows": p.rows, "width": p.width, "blocks": said}


def _fits(rows, width, names, outs, size):
  """Whether weights, activations and work are within the limits, without drawing any."""
  weights = work = 0
  for name, out in zip(names, outs, strict=True):
    if rows * max(width, out) > MOST_ELEMENTS:
      return False
    own = {
      "norm_linear": width * out, "gated_mlp": 3 * width * out, "bias_gelu": width * out,
      "attention": 4 * width * width, "embedding": 1000 * width, "lora": width * out,
    }.get(name, 0)  # fmt: skip
    weights += own
    work += rows * own if name != "embedding" else 0
    if name == "attention":
      if width % 64 or rows * rows * 16 > MOST_ELEMENTS:
        return False
      work += 2 * rows * rows * width
    if name in ("norm_linear", "bias_gelu", "lora"):
      width = out
  return weights * size <= MOST_BYTES and work <= MOST_WORK
