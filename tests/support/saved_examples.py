"""Small programs in the original's format, right ones, with their references.

Dimensions are often equal, so that a wrong map still fits, which only its values betray.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import saved_references as references
from saved_writer import Json, begun, squares

from mirage_onnx.importer.kernel_graph import KernelGraph

ROWS = (0, -1, -1)
COLUMNS = (1, -1, -1)


@dataclass(frozen=True)
class Example:
    reference: Callable[[], KernelGraph]
    graphs: Callable[[], list[list[Json]]]


def norm_linear():
    cut = [_norm_linear(blocks, loop) for blocks, loop in ((4, 2), (2, 4))]
    return [*cut, _norm_then_linear(), _norm_linear_library(), _norm_linear(2, 2)]


def _norm_linear(blocks, loop):
    """The norm's division after the product: one kernel."""
    g, x, w = squares(2)
    k = g.kernel((blocks, 1, 1), loop)
    a, b = k.load(x, loop_dim=1), k.load(w, COLUMNS, loop_dim=0)
    rms = k.op("accum_red_ld_rms", a)
    y = k.op("accum_nored", k.op("matmul", a, b))
    g.output(k.store(k.op("div", y, rms), COLUMNS))
    return g.saved()


def _norm_then_linear():
    g, x, w = squares(2)
    k = g.kernel((4, 1, 1))
    a = k.op("rms_norm", k.load(x, ROWS))
    g.output(g.op("matmul", k.store(k.op("accum_nored", a), ROWS), w))
    return g.saved()


def _norm_linear_library():
    g, x, w = squares(2)
    g.output(g.op("matmul", g.op("rms_norm", x), w))
    return g.saved()


def gated():
    return [_gated(fused=True), _gated(fused=False)]


def _gated(*, fused):
    g, x, w1, w2 = squares(3)
    k = g.kernel((2, 1, 1), 4)
    a = k.load(x, loop_dim=1)
    b, c = (k.load(w, COLUMNS, loop_dim=0) for w in (w1, w2))
    first, second = (k.op("accum_nored", k.op("matmul", a, m)) for m in (b, c))
    gate = k.op("silu", first)
    if fused:
        g.output(k.store(k.op("mul", gate, second), COLUMNS))
    else:
        left, right = k.store(gate, COLUMNS), k.store(second, COLUMNS)
        g.output(g.op("mul", left, right))
    return g.saved()


def low_rank():
    return [_low_rank(loop=1), _low_rank_in_loop()]


def _low_rank(loop):
    """Every block computes x a, all in one iteration."""
    g, x, w, a, b = begun((4, 8), (8, 8), (8, 4), (4, 8))
    k = g.kernel((4, 1, 1), loop)
    tiles = k.load(x), k.load(w, COLUMNS), k.load(a), k.load(b, COLUMNS)
    up = k.op("matmul", k.op("matmul", tiles[0], tiles[2]), tiles[3])
    total = k.op("add", up, k.op("matmul", tiles[0], tiles[1]))
    g.output(k.store(k.op("accum_nored", total), COLUMNS))
    return g.saved()


def _low_rank_in_loop():
    """x a b is linear in x, so that it may be added up with x w over the loop."""
    g, x, w, a, b = begun((4, 8), (8, 8), (8, 4), (4, 8))
    k = g.kernel((2, 1, 1), 4)
    i, j = k.load(x, loop_dim=1), k.load(w, COLUMNS, loop_dim=0)
    m, n = k.load(a, loop_dim=0), k.load(b, COLUMNS)
    up = k.op("matmul", k.op("matmul", i, m), n)
    total = k.op("add", k.op("matmul", i, j), up)
    g.output(k.store(k.op("accum_nored", total), COLUMNS))
    return g.saved()


def attention():
    return [
        _split_attention("accum_red_ld_sum", loop=1),
        _split_attention("accum_red_ld_sum", loop=2),
        _split_attention("accum_nored", loop=2),
        _split_attention("accum_redtox_ld_sum", loop=1),
        _attention_library(),
    ]


def _split_attention(denominator, loop):
    """Keys split over grid y and the loop; partial results side by side; a second kernel adds."""
    g, q, k, v = begun((2, 8, 4), (2, 4, 32), (2, 32, 4))
    part = g.kernel((2, 4, 4), 2, chunk=4)
    i = part.load(q, (0, -1, 1))
    j, m = part.load(k, (0, 2, -1), loop_dim=2), part.load(v, (0, 1, -1), loop_dim=1)
    e = part.op("exp", part.op("matmul", i, j))
    low = part.store(part.op(denominator, e), (0, 2, 1))
    high = part.store(part.op("accum_nored", part.op("matmul", e, m)), (0, 2, 1))
    merge = g.kernel((2, 4, 1), loop, chunk=4)
    over = 2 if loop > 1 else -1
    below = merge.op("accum_red_ld_sum", merge.load(low, (0, 1, -1), loop_dim=over))
    above = merge.op("accum_redtox_ld_sum", merge.load(high, (0, 1, -1), loop_dim=over))
    g.output(merge.store(merge.op("div", above, below), (0, 1, -1)))
    return g.saved()


def _attention_library():
    g, q, k, v = begun((2, 8, 4), (2, 4, 32), (2, 32, 4))
    e = g.op("exp", g.op("matmul", q, k))
    g.output(g.op("matmul", g.op("div", e, g.op("reduction_2", e)), v))
    return g.saved()


def residual_norm():
    """rms_norm(x + alpha (rms_norm(h) + x)), the last division in a library kernel in one."""
    return [_residual_norm(split=False), _residual_norm(split=True)]


def _residual_norm(*, split):
    g, h, x, alpha = squares(3)
    k = g.kernel((4, 1, 1))
    i, j, m = (k.load(t, ROWS) for t in (h, x, alpha))
    step = k.op("mul", k.op("add", j, k.op("rms_norm", i)), m)
    y = k.op("add", step, j)
    if split:
        top = k.store(k.op("accum_nored", y), ROWS)
        g.output(g.op("div", top, k.store(k.op("accum_red_ld_rms", y), ROWS)))
    else:
        g.output(k.store(k.op("rms_norm", k.op("accum_nored", y)), ROWS))
    return g.saved()


def column_means():
    """gelu(relu(x) - y) / sum: functions and block reductions that no published file uses."""
    g, x, y = squares(2)
    k = g.kernel((2, 1, 1))
    a, b = k.load(x, ROWS), k.load(y, ROWS)
    e = k.op("gelu", k.op("sub", k.op("relu", a), b))
    total = k.op("reduction_1", k.op("square", e))
    g.output(k.store(k.op("accum_nored", k.op("div", e, k.op("sqrt", total))), ROWS))
    return [g.saved()]


def column_means_reference():
    def build(g, x, y):
        e = g.gelu(g.sub(g.relu(x), y))
        return g.div(e, g.sqrt(g.reduction(g.square(e), 1)))

    return references.reference(build, (8, 8), (8, 8))


EXAMPLES = {
    "norm_linear": Example(lambda: references.norm_linear((8, 8), (8, 8)), norm_linear),
    "gated": Example(lambda: references.gated_mlp((8, 8), (8, 8)), gated),
    "low_rank": Example(lambda: references.lora((4, 8), (8, 8), (8, 4), (4, 8)), low_rank),
    "attention": Example(
        lambda: references.attention((2, 8, 4), (2, 4, 32), (2, 32, 4)), attention
    ),
    "residual_norm": Example(lambda: references.norm_transformer((8, 8)), residual_norm),
    "functions": Example(column_means_reference, column_means),
}


def file_text(name):
    """The graphs of an example as a file: one line per kernel operator."""
    graphs = [
        "[\n" + ",\n".join(json.dumps(op, separators=(",", ":")) for op in graph) + "\n]"
        for graph in EXAMPLES[name].graphs()
    ]
    return "[" + ",".join(graphs) + "]\n"
