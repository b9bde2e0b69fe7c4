"""The golden µGraphs: right programs for the regions of small ONNX graphs.

A text of ``goldens`` in tests/golden.txt is in the canonical names of the region, which the
importer and the matcher make of all nodes of the graph in ``golden_models``.
"""

from dataclasses import dataclass
from functools import cache

from golden_models import MODELS
from golden_texts import texts_of

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import KernelParams, Region, UGraph, parse_ugraph, print_ugraph
from mirage_onnx.match.whole import whole_region

TEXTS = texts_of("goldens")


@dataclass(frozen=True)
class Golden:
  name: str
  region: Region
  ugraph: UGraph
  params: tuple[KernelParams, ...]


def model_region(model):
  """All nodes of an ONNX model as one region."""
  return whole_region(import_model(load_model(model)))


def edited(graph, *changes):
  """The µGraph with changes of its text, old -> new: wherever it has the old, and it has it."""
  text = print_ugraph(graph)
  for old, new in changes:
    assert old in text, old
    text = text.replace(old, new)
  return parse_ugraph(text)


def numbers(*tile, cluster=1, loop_tile=0):
  return KernelParams(tile=tile, cluster=cluster, loop_tile=loop_tile)


@cache
def region(name):
  return model_region(MODELS[name]())


#: golden -> (its graph, numbers of its kernels in launch order)
_TABLE = {
  "norm_linear": ("norm_linear", (numbers(64, 16, loop_tile=64),)),
  "norm_linear_cluster": ("norm_linear", (numbers(32, 16, cluster=4, loop_tile=64),)),
  "layernorm_linear": ("layernorm_linear", (numbers(64, 16, loop_tile=64),)),
  "gated_mlp": ("gated_mlp", (numbers(32, 8, loop_tile=128),)),
  "norm_gated_mlp": ("norm_gated_mlp", (numbers(32, cluster=4, loop_tile=64),)),
  "pooled_linear": ("pooled_linear", (numbers(32, 4, loop_tile=16),)),
  "lora": ("lora", (numbers(64, 16, loop_tile=64),)),
  "lora_two_kernels": (
    "lora", (numbers(16, 16, cluster=8, loop_tile=64), numbers(32, 16, loop_tile=128)),
  ),
  "residual_norm": ("residual_norm", (numbers(1),)),
  "attention_online": ("attention", (numbers(16, 1, loop_tile=64),)),
  "attention_cluster": ("attention", (numbers(32, 1, cluster=2, loop_tile=32),)),
  "attention_split_kv": ("decode", (numbers(128, 1, loop_tile=32), numbers(64, 1))),
  "gqa_decode": (
    "gqa_decode", (numbers(1, loop_tile=64), numbers(1, cluster=2, loop_tile=64)),
  ),
  "qknorm_attention": ("qknorm_attention", (numbers(32, 1, loop_tile=64),)),
  "mla": ("mla", (numbers(64, 8), numbers(64, 4))),
  "ngpt_step": ("ngpt_step", (numbers(64, 8, loop_tile=128), numbers(1))),
  "elementwise_chain": ("elementwise_chain", (numbers(8, 256),)),
  "softmax_rows": ("softmax_rows", (numbers(2, loop_tile=128),)),
  "softmax_late_scale": (
    "softmax_rows", (numbers(4, cluster=2, loop_tile=64), numbers(1)),
  ),
  "log_softmax": ("log_softmax", (numbers(2, loop_tile=128),)),
  "group_norm": ("group_norm", (numbers(1, 1),)),
}  # fmt: skip


def golden(name):
  model, params = _TABLE[name]
  return Golden(name, region(model), parse_ugraph(TEXTS[name]), params)


GOLDENS = tuple(golden(name) for name in _TABLE)
