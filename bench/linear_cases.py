"""Cases whose time is reading weights: gated MLPs, LoRA, the nGPT step; b rows of activations."""

from dataclasses import replace

import numpy as np
from onnx import TensorProto
from speed_graph import Graph, exact_rms_norm, exact_silu, times

#: PEFT's factor of the low-rank path (alpha / rank).
LORA_SCALE = 2.0


def gated_mlp(batch, hidden, out):
  """silu(gate x) * up x."""
  g = Graph(batch)
  x = g.input("x", batch, hidden)
  gate, up = (g.weight(n, out, hidden, depth=hidden) for n in ("gate.weight", "up.weight"))
  y = g.Mul(g.silu(g.linear(x, gate)), g.linear(x, up))

  def oracle(wide):
    x = wide("x")
    return {"y": exact_silu(x @ wide("gate.weight").T) * (x @ wide("up.weight").T)}

  name = f"gated_mlp {times(hidden, out)} twice b={batch}"
  return g.case(name, {"y": (y, (batch, out))}, oracle)


def llama_mlp(batch, hidden, inner):
  """The MLP half of a LLaMA layer: norm, gate and up, down, residual."""
  g = Graph(batch)
  x = g.input("x", batch, 1, hidden)
  y = mlp_half(g, x, hidden, inner)

  def oracle(wide):
    return {"y": exact_mlp_half(wide("x"), wide)}

  name = f"llama_mlp {times(hidden, inner)} b={batch}"
  return g.case(name, {"y": (y, (batch, 1, hidden))}, oracle)


def mlp_half(g, x, hidden, inner):
  """Behind three axes an exporter writes MatMul with (in, out) weights."""
  normed = g.rms_norm(x, g.gain("mlp.norm", hidden))
  gate, up = (g.weight(f"mlp.{n}", hidden, inner, depth=hidden) for n in ("gate", "up"))
  inside = g.Mul(g.silu(g.MatMul(normed, gate)), g.MatMul(normed, up))
  return g.Add(x, g.MatMul(inside, g.weight("mlp.down", inner, hidden, depth=inner)))


def exact_mlp_half(x, wide):
  normed = exact_rms_norm(x, wide("mlp.norm"))
  inside = exact_silu(normed @ wide("mlp.gate")) * (normed @ wide("mlp.up"))
  return np.asarray(x + inside @ wide("mlp.down"))


def experts(top, count, hidden, inner):
  """The MLP of a token that goes to the best ``top`` of ``count`` experts, as transformers computes it."""
  g = Graph(top)
  x, share = g.input("x", 1, hidden), g.input("share", top, 1)
  rows = g.rows("rows", top, count)
  tables = (("gate_up", 2 * inner, hidden), ("down", hidden, inner))
  both, down = (g.GatherND(g.weight(n, count, m, k, depth=k), g.Unsqueeze(rows, [1])) for n, m, k in tables)
  repeated = g.Reshape(g.Expand(g.Unsqueeze(x, [1]), [1, top, hidden]), [top, hidden])
  inside = g.Squeeze(g.MatMul(both, g.Unsqueeze(repeated, [2])), [2])
  gate, up = (g.Slice(inside, [n], [n + inner], [1]) for n in (0, inner))
  inside = g.Mul(g.silu(gate), up)
  mixed = g.Squeeze(g.MatMul(down, g.Unsqueeze(inside, [2])), [2])
  y = g.ReduceSum(g.Mul(mixed, share), [0], keepdims=1)

  def oracle(wide):
    x, gate_up, down = wide("x")[0], wide("gate_up"), wide("down")
    y = np.zeros((1, hidden))
    for row, share in zip(wide("rows").astype(int), wide("share"), strict=True):
      gate, up = np.split(gate_up[row] @ x, 2)
      y += share * (down[row] @ (exact_silu(gate) * up))
    return {"y": y}

  name = f"experts {times(hidden, inner)} {top} of {count}"
  unread = (count - top) * sum(m * k for _, m, k in tables) * 2
  return replace(g.case(name, {"y": (y, (1, hidden))}, oracle), unread=unread)


def lora(batch, hidden, out, rank):
  """A linear layer and its low-rank adapter, not merged, as PEFT computes them."""
  g = Graph(batch)
  x = g.input("x", batch, hidden)
  base = g.linear(x, g.weight("weight", out, hidden, depth=hidden))
  low = g.linear(x, g.weight("lora_A", rank, hidden, depth=hidden))
  high = g.linear(low, g.weight("lora_B", out, rank, depth=rank))
  y = g.Add(base, g.Mul(high, LORA_SCALE))

  def oracle(wide):
    x = wide("x")
    adapter = x @ wide("lora_A").T @ wide("lora_B").T
    return {"y": x @ wide("weight").T + LORA_SCALE * adapter}

  name = f"lora {times(hidden, out)} r={rank} b={batch}"
  return g.case(name, {"y": (y, (batch, out))}, oracle)


def ngpt_step(batch, hidden, out):
  """unit(x + alpha (unit(h W) - x)): the state x stays on the unit sphere."""
  g = Graph(batch)
  x = g.input("x", batch, out, scale=out**-0.5)
  h = g.input("h", batch, hidden)
  moved = _unit(g, g.linear(h, g.weight("weight", out, hidden, depth=hidden)))
  y = _unit(g, g.Add(x, g.Mul(g.gain("alpha", out), g.Sub(moved, x))))

  def oracle(wide):
    x = wide("x")
    moved = _exact_unit(wide("h") @ wide("weight").T)
    return {"y": _exact_unit(x + wide("alpha") * (moved - x))}

  name = f"ngpt_step {times(hidden, out)} b={batch}"
  return g.case(name, {"y": (y, (batch, out))}, oracle)


def _unit(g, x):
  norm = g.ReduceL2(g.Cast(x, to=TensorProto.FLOAT), [-1], keepdims=1)
  return g.Div(x, g.Cast(norm, to=TensorProto.FLOAT16))


def _exact_unit(x):
  return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))
