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


def norm_linear(x, w):
    """rms_norm(x) w."""
    g = mi.new_kernel_graph()
    a, b = (g.new_input(dims=d, dtype=mi.float16) for d in (x, w))
    g.mark_output(g.matmul(g.rms_norm(a, normalized_shape=x[-1:]), b))
    return g


def gated_mlp(x, w):
    """silu(x w1) * (x w2)."""
    g = mi.new_kernel_graph()
    a, w1, w2 = (g.new_input(dims=d, dtype=mi.float16) for d in (x, w, w))
    g.mark_output(g.mul(g.silu(g.matmul(a, w1)), g.matmul(a, w2)))
    return g


def lora(x, w, a, b):
    """x w + (x a) b."""
    g = mi.new_kernel_graph()
    i, j, k, m = (g.new_input(dims=d, dtype=mi.float16) for d in (x, w, a, b))
    g.mark_output(g.add(g.matmul(i, j), g.matmul(g.matmul(i, k), m)))
    return g


def attention(q, k, v):
    """exp(q k) / sum(exp(q k)) v: no scale, no mask, no maximum."""
    g = mi.new_kernel_graph()
    a, b, c = (g.new_input(dims=d, dtype=mi.float16) for d in (q, k, v))
    e = g.exp(g.matmul(a, b))
    g.mark_output(g.matmul(g.div(e, g.reduction(e, 2)), c))
    return g


def norm_transformer(x):
    """rms_norm(x + alpha (rms_norm(h) + x)); inputs h, x, alpha."""
    g = mi.new_kernel_graph()
    h, y, alpha = (g.new_input(dims=x, dtype=mi.float16) for _ in range(3))
    step = g.mul(alpha, g.add(g.rms_norm(h, normalized_shape=x[-1:]), y))
    g.mark_output(g.rms_norm(g.add(y, step), normalized_shape=x[-1:]))
    return g


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
