"""The programs that the original's saved µGraphs were searched for, by file name.

Shapes and operations are those of its benchmark scripts (notes: shared/notes/mirage.md, 5.1).
"""

import os
from pathlib import Path

import mirage_onnx as mi

ROOT = Path(__file__).parents[2]
VARIABLE = "MIRAGE_SAVED_MUGRAPHS"

Shape = tuple[int, ...]


def saved_folder():
  """Where the original's files are: in the environment variable, or beside the repository."""
  given = os.environ.get(VARIABLE)
  folder = Path(given) if given else ROOT.parent / "shared" / "mugraphs"
  return folder if any(folder.glob("*.json")) else None


def reference(build, *shapes):
  g = mi.new_kernel_graph()
  made = build(g, *(g.new_input(dims=s, dtype=mi.float16) for s in shapes))
  for output in made if isinstance(made, tuple) else (made,):
    g.mark_output(output)
  return g


def norm_linear(x, w):
  return reference(lambda g, a, b: g.matmul(g.rms_norm(a, normalized_shape=x[-1:]), b), x, w)


def gated_mlp(x, w):
  return reference(lambda g, a, w1, w2: g.mul(g.silu(g.matmul(a, w1)), g.matmul(a, w2)), x, w, w)


def lora(*shapes):
  return reference(lambda g, x, w, a, b: g.add(g.matmul(x, w), g.matmul(g.matmul(x, a), b)), *shapes)


def attention(*shapes):
  """exp(q k) / sum(exp(q k)) v: no scale, no mask, no maximum."""

  def build(g, q, k, v):
    e = g.exp(g.matmul(q, k))
    return g.matmul(g.div(e, g.reduction(e, 2)), v)

  return reference(build, *shapes)


def norm_transformer(x):
  """rms_norm(x + alpha (rms_norm(h) + x)); inputs h, x, alpha."""

  def norm(g, y):
    return g.rms_norm(y, normalized_shape=x[-1:])

  return reference(lambda g, h, y, alpha: norm(g, g.add(y, g.mul(alpha, g.add(norm(g, h), y)))), x, x, x)


#: File -> the program and the shapes of its inputs.
REFERENCES = {
  "gated_mlp.json": (gated_mlp, ((8, 4096), (4096, 4096))),
  "gqa_bs1.json": (attention, ((2, 256, 64), (2, 64, 4096), (2, 4096, 64))),
  "lora.json": (lora, ((16, 256), (256, 4096), (256, 16), (16, 4096))),
  "mha_bs1.json": (attention, ((32, 16, 64), (32, 64, 4096), (32, 4096, 64))),
  "mqa_bs1.json": (attention, ((1, 1024, 64), (1, 64, 4096), (1, 4096, 64))),
  "ntrans_bs1.json": (norm_transformer, ((8, 4096),)),
  "rmsnorm_bs1.json": (norm_linear, ((2, 4096), (4096, 6144))),
}


def references(scaled=lambda shape: shape):
  """File -> its reference, with the shapes of its inputs ``scaled``."""
  return {name: build(*map(scaled, shapes)) for name, (build, shapes) in REFERENCES.items()}
