"""What is benchmarked: the rows of the speed table, each with its sizes."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "models"), str(ROOT / "bench")]

from attention_cases import attention, llama_layer, qknorm
from linear_cases import experts, gated_mlp, llama_mlp, lora, ngpt_step
from scale_rmsnorm_linear import TEMPLATE, scale
from speed_graph import Case, exact_rms_norm, times

Size = Mapping[str, int]


@dataclass(frozen=True)
class Row:
  """One row of the table: ``sizes`` by label, ``nearby`` ones that nothing was tuned for.

  ``targets``: microseconds to reach, by label (the goal, not a measurement).
  """

  title: str
  make: Callable[..., Case]
  sizes: Mapping[str, Size]
  nearby: Mapping[str, Size]
  targets: Mapping[str, float]


def norm_linear(batch, hidden=4096, out=4096):
  """The model that torch exported, at another size, with random weights and a random input."""
  model = scale(onnx.load(TEMPLATE), batch, hidden, out)
  weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
  weights = {name: x for name, x in weights.items() if x.size > 1}
  x = np.random.default_rng(batch).standard_normal((batch, hidden)).astype(np.float16)

  def oracle(wide):
    normed = exact_rms_norm(wide("x"), wide("norm.weight"))
    return {"y": normed @ wide("linear.weight").T}

  name = f"rmsnorm_linear {times(hidden, out)} b={batch}"
  return Case(name, model, {"x": x}, weights, oracle)


def _batches(hidden, out, *batches, **more):
  return {f"b{b}": {"batch": b, "hidden": hidden, "out": out, **more} for b in batches}


def _nearby(**more):
  return {
    "near": {"batch": 5, "hidden": 4032, "out": 4224, **more},
    "k3000": {"batch": 8, "hidden": 3000, "out": 4096, **more},
  }


def _keys(sizes, keys):
  return {"k3000": {**sizes, "keys": keys}}


_MHA = {"heads": 64, "queries": 1, "depth": 128, "keys": 4096}
_FEW = {"heads": 2, "queries": 256, "depth": 64, "keys": 4096}
_GQA = {"heads": 16, "queries": 4, "depth": 128, "keys": 8192}
_QKNORM = {"heads": 32, "queries": 1, "depth": 128, "keys": 4096}
_EXPERTS = {"top": 2, "count": 8, "hidden": 2048, "inner": 7168}
_LLAMA = {"heads": 32, "kv_heads": 8, "depth": 128, "inner": 14336, "length": 4096}

ROWS = {
  "rmsnorm_linear": Row(
    "RMSNorm + linear", norm_linear, _batches(4096, 4096, 1, 8, 16, 1024), _nearby(),
    {"b1": 14.5, "b8": 14.5, "b16": 15.5, "b1024": 50},
  ),
  "gated_mlp": Row(
    "gated MLP", gated_mlp, _batches(4096, 4096, 1, 8, 16), _nearby(),
    {"b1": 22.5, "b8": 22.5, "b16": 22.5},
  ),
  "llama_mlp": Row(
    "LLaMA-3-8B MLP block", llama_mlp, {"b1": {"batch": 1, "hidden": 4096, "inner": 14336}},
    {"near": {"batch": 5, "hidden": 4032, "inner": 14208},
     "k3000": {"batch": 1, "hidden": 3000, "inner": 14336}},
    {"b1": 91},
  ),
  "lora": Row(
    "LoRA", lora, _batches(4096, 4096, 1, 8, 16, rank=16), _nearby(rank=16),
    {"b1": 14.8, "b8": 15, "b16": 16},
  ),
  "ngpt_step": Row("nGPT step", ngpt_step, _batches(4096, 4096, 8), _nearby(), {"b8": 17.5}),
  "experts": Row(
    "two of 8 experts", experts, {"one": _EXPERTS}, {"near": {**_EXPERTS, "hidden": 2112, "inner": 6000}},
    {"one": 48},
  ),
  "attention": Row(
    "attention", partial(attention, "attention"), {"one": _MHA, "q256": _FEW}, _keys(_MHA, 3000),
    {"one": 44, "q256": 14},
  ),
  "gqa_decode": Row(
    "GQA decode", partial(attention, "gqa_decode"), {"one": _GQA}, _keys(_GQA, 3000),
    {"one": 33.7},
  ),
  "qknorm": Row(
    "QKNorm attention", qknorm, {"one": _QKNORM, "q64": {**_QKNORM, "queries": 64}}, _keys(_QKNORM, 3000),
    {"one": 38, "q64": 45},
  ),
  "llama_layer": Row(
    "LLaMA-3-8B decode layer", llama_layer, {"one": _LLAMA},
    {"k3000": {**_LLAMA, "length": 3000}}, {"one": 165},
  ),
}  # fmt: skip
