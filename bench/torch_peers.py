"""What a user of torch would run: each row as models write it, and in the library's best pieces.

Torch is imported by the functions, so that the names can be listed and tested where there is none.
A program takes the tensors of a case by name and returns its outputs in the model's order.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attention_cases import LAYER_NORM_EPSILON, scale_of
from linear_cases import LORA_SCALE
from speed_graph import EPSILON

Tensors = Mapping[str, Any]
Program = Callable[[Tensors], Any]
#: How torch names the implementations of its attention.
SDPA = {
  "flash": "FLASH_ATTENTION", "cuDNN": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION",
}  # fmt: skip
LAYOUTS = ("(out, in)", "(in, out)")


def _rms(x, gain):
  wide = x.float()
  wide = wide * (wide.pow(2).mean(-1, keepdim=True) + EPSILON).rsqrt()
  return gain * wide.to(x.dtype)


def _unit(x):
  return x / x.float().norm(dim=-1, keepdim=True).to(x.dtype)


def _rotated(t, cos, sin):
  import torch

  low, high = t.chunk(2, -1)
  return t * cos + torch.cat((-high, low), -1) * sin


def _normed(t):
  from torch.nn import functional as F  # noqa: N812

  return [F.layer_norm(t[n], t[n].shape[-1:], t[f"{n}_norm"], None, LAYER_NORM_EPSILON) for n in "qk"]


def _mlp_half(t, x):
  from torch.nn import functional as F  # noqa: N812

  normed = _rms(x, t["mlp.norm"])
  return x + (F.silu(normed @ t["mlp.gate"]) * (normed @ t["mlp.up"])) @ t["mlp.down"]


def plain(row):
  """The row as models write it; what ``torch.compile`` gets."""
  import torch
  from torch.nn import functional as F  # noqa: N812

  def llama_layer(t):
    x, depth = t["x"], t["past_k"].shape[-1]
    batch, kv_heads = t["past_k"].shape[:2]
    normed = _rms(x, t["attn.norm"])
    q, k, v = [(normed @ t[f"attn.{n}"]).view(batch, 1, -1, depth).transpose(1, 2) for n in "qkv"]
    q, k = [_rotated(y, t["cos"], t["sin"]) for y in (q, k)]
    keys, values = torch.cat((t["past_k"], k), 2), torch.cat((t["past_v"], v), 2)
    scores = q.reshape(batch, kv_heads, -1, depth) @ keys.transpose(-1, -2) * scale_of(depth)
    o = (torch.softmax(scores, -1) @ values).reshape(batch, 1, -1)
    return _mlp_half(t, x + o @ t["attn.o"]), k, v

  def qknorm(t):
    q, k = _normed(t)
    scores = q @ k.transpose(-1, -2) * scale_of(q.shape[-1])
    return torch.softmax(scores, -1) @ t["v"]

  def attention(t):
    return torch.softmax(t["q"] @ t["k"], -1) @ t["v"]

  def ngpt_step(t):
    x = t["x"]
    return _unit(x + t["alpha"] * (_unit(F.linear(t["h"], t["weight"])) - x))

  def experts(t):
    both, down = (t[n][t["rows"]] for n in ("gate_up", "down"))
    gate, up = torch.bmm(both, t["x"].expand(len(both), -1)[..., None])[..., 0].chunk(2, -1)
    inside = torch.bmm(down, (F.silu(gate) * up)[..., None])[..., 0]
    return (inside * t["share"]).sum(0, keepdim=True)

  programs = {
    "rmsnorm_linear": lambda t: F.linear(_rms(t["x"], t["norm.weight"]), t["linear.weight"]),
    "gated_mlp": lambda t: (
      F.silu(F.linear(t["x"], t["gate.weight"])) * F.linear(t["x"], t["up.weight"])
    ),
    "llama_mlp": lambda t: _mlp_half(t, t["x"]),
    "lora": lambda t: (
      F.linear(t["x"], t["weight"])
      + F.linear(F.linear(t["x"], t["lora_A"]), t["lora_B"]) * LORA_SCALE
    ),
    "ngpt_step": ngpt_step, "experts": experts, "attention": attention, "gqa_decode": attention,
    "qknorm": qknorm, "llama_layer": llama_layer,
  }  # fmt: skip
  return programs[row]


def library(row, t):
  """The best compositions of library calls; weights joined, laid out and kept beforehand."""
  if row in ("attention", "gqa_decode", "qknorm", "llama_layer"):
    return {f"torch SDPA {n}": _with_sdpa(_attention(row, t), b) for n, b in SDPA.items()}
  return {
    f"torch {name}, {layout}": call for layout in LAYOUTS for name, call in _in_layout(row, t, layout).items()
  }


def _with_sdpa(call, backend):
  def with_backend():
    from torch.nn import attention

    with attention.sdpa_kernel(getattr(attention.SDPBackend, backend)):
      return call()

  return with_backend


def _laid_out(weight, layout):
  """x -> x times ``weight``, given as (out, in)."""
  from torch.nn import functional as F  # noqa: N812

  if layout == LAYOUTS[0]:
    kept = weight.contiguous()
    return lambda x: F.linear(x, kept)
  turned = weight.t().contiguous()
  return lambda x: x @ turned


def _in_layout(row, t, layout):
  """Compositions for a row that reads weights, laid out as (out, in) or (in, out)."""
  import torch
  from torch.nn import functional as F  # noqa: N812

  x = t["x"]
  if row == "experts":
    return {"a product per expert": _experts(t, layout)}
  if row == "rmsnorm_linear":
    linear, gain = _laid_out(t["linear.weight"], layout), t["norm.weight"]
    return {"rms_norm + matmul": lambda: linear(F.rms_norm(x, gain.shape, gain, EPSILON))}
  if row == "gated_mlp":
    both = _laid_out(torch.cat((t["gate.weight"], t["up.weight"])), layout)
    return {"concatenated matmul + silu": lambda: _gated(both(x))}
  if row == "llama_mlp":
    half = _mlp_library(t, layout)
    return {"rms_norm + concatenated matmul": lambda: half(x)}
  linear = _laid_out(t["weight"], layout)
  if row == "ngpt_step":

    def step():
      return F.normalize(torch.lerp(x, F.normalize(linear(t["h"]), dim=-1), t["alpha"]), dim=-1)

    return {"matmul + normalize + lerp": step}
  low, high = t["lora_A"].t().contiguous(), t["lora_B"].t().contiguous()
  joined, out = _laid_out(torch.cat((t["weight"], t["lora_A"])), layout), high.shape[1]

  def split():
    y = joined(x)
    return torch.addmm(y[:, :out], y[:, out:], high, alpha=LORA_SCALE)

  return {
    "matmul + addmm": lambda: torch.addmm(linear(x), x @ low, high, alpha=LORA_SCALE),
    "concatenated matmul + addmm": split,
  }


def _experts(t, layout):
  """No library reads the indices: which experts it is to be is known beforehand."""
  rows = t["rows"].tolist()
  both, down = ([_laid_out(t[n][row], layout) for row in rows] for n in ("gate_up", "down"))

  def mixed():
    each = (o(_gated(i(t["x"]))) for i, o in zip(both, down, strict=True))
    return sum(y * share for y, share in zip(each, t["share"], strict=True))

  return mixed


def _gated(both):
  from torch.nn import functional as F  # noqa: N812

  gate, up = both.chunk(2, -1)
  return F.silu(gate) * up


def _mlp_library(t, layout):
  import torch
  from torch.nn import functional as F  # noqa: N812

  both = _laid_out(torch.cat((t["mlp.gate"], t["mlp.up"]), 1).t(), layout)
  down = t["mlp.down"] if layout == LAYOUTS[1] else t["mlp.down"].t().contiguous().t()
  gain = t["mlp.norm"]

  def half(x):
    rows = x.view(-1, x.shape[-1])
    inside = _gated(both(F.rms_norm(rows, gain.shape, gain, EPSILON)))
    return torch.addmm(rows, inside, down).view(x.shape)

  return half


def _attention(row, t):
  import torch
  from torch.nn import functional as F  # noqa: N812

  sdpa = F.scaled_dot_product_attention
  if row == "qknorm":

    def qknorm():
      q, k = _normed(t)
      return sdpa(q, k, t["v"], scale=scale_of(q.shape[-1]))

    return qknorm
  if row != "llama_layer":
    keys = t["k"].transpose(-1, -2).contiguous()[None]  # as the library wants them, for free
    return lambda: sdpa(t["q"][None], keys, t["v"][None], scale=1.0)[0]
  x, cos, sin = t["x"], t["cos"], t["sin"]
  batch, kv_heads, _, depth = t["past_k"].shape
  hidden, gain = x.shape[-1], t["attn.norm"]
  joined = torch.cat([t[f"attn.{n}"] for n in "qkv"], 1)
  cut = (hidden, kv_heads * depth, kv_heads * depth)
  room = torch.zeros_like(t["past_k"][:, :, :1])
  # A cache with room for the new position, written in place.
  cache_k, cache_v = (torch.cat((t[n], room), 2) for n in ("past_k", "past_v"))
  half = _mlp_library(t, LAYOUTS[1])

  def layer():
    rows = x.view(batch, hidden)
    projected = F.rms_norm(rows, gain.shape, gain, EPSILON) @ joined
    q, k, v = [y.view(batch, 1, -1, depth).transpose(1, 2) for y in projected.split(cut, dim=-1)]
    q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    cache_k[:, :, -1:].copy_(k)
    cache_v[:, :, -1:].copy_(v)
    grouped = q.reshape(batch, kv_heads, -1, depth)
    o = sdpa(grouped, cache_k, cache_v, scale=scale_of(depth)).reshape(batch, hidden)
    return half(torch.addmm(rows, o, t["attn.o"]).view(x.shape)), k, v

  return layer
