"""Wrong programs that are right at particular sizes: when a tile divides, for two ranks, ...

Each is an edit of a golden µGraph, with the friendly extents and numbers at which it is right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from draft import Draft, each
from goldens import GOLDENS, Golden, numbers
from map_mutations import regridded

from mirage_onnx.ir.ugraph import KernelParams, Phase, UGraph
from mirage_onnx.verify.field import P, is_square

LOOP, POST = Phase.LOOP, Phase.POST
_BY_NAME = {g.name: g for g in GOLDENS}


@dataclass(frozen=True)
class Fragile:
    """``graph`` computes the region of ``golden`` where ``right_when`` holds, and only there."""

    name: str
    right_when: str
    golden: Golden
    graph: UGraph
    extents: Mapping[str, int]
    params: tuple[KernelParams, ...]


FRAGILE = []


def fragile(golden, right_when, extents, *params):
    """Register an edit of the kernels; ``extents`` are those of a0, a1, ..."""

    def register(edit):
        g = _BY_NAME[golden]
        drafts = [Draft(k) for k in g.ugraph.kernels]
        edit(*drafts)
        graph = replace(g.ugraph, kernels=tuple(d.done() for d in drafts))
        sizes = {f"a{i}": int(n) for i, n in enumerate(extents.split())}
        FRAGILE.append(Fragile(edit.__name__, right_when, g, graph, sizes, params))
        return edit

    return register


def only(kernel, op, index=0):
    return [i for i, _ in each(kernel, op)][index]


def tile_count(d, tile, axis):
    phase = d.ops[tile].phase
    zero = d.put("mul", tile, d.const(0, phase))
    ones = d.put("add", zero, d.const(1, phase))
    return d.put("sum", ones, reduced=(axis,))


def iterations(d):
    return d.put("acc_sum", d.const(1, LOOP), phase=POST)


def parity(d):
    return d.put("acc_scaled", d.const(1, LOOP), d.const(-1, LOOP), phase=POST)


def last(d, value):
    return d.put("acc_scaled", value, d.const(0, LOOP), phase=POST)


# The loop


@fragile(
    "pooled_linear", "the loop tile divides the extent", "4 6 4 12", numbers(2, 2, loop_tile=4)
)
def mean_of_tile_means(d, divisor=iterations):
    total, acc, mean = 1, only(d.kernel, "acc_sum"), only(d.kernel, "mul")
    d.set(acc, args=(d.put("div", total, tile_count(d, 0, "a3")),))
    d.then(mean, "div", acc, divisor(d))


@fragile("pooled_linear", "three equal iterations", "4 6 4 12", numbers(2, 2, loop_tile=4))
def mean_of_three_tile_means(d):
    mean_of_tile_means(d, lambda d: d.const(3, POST))


@fragile("pooled_linear", "the last tile is as long as the others", "4 6 4 12",
         numbers(2, 2, loop_tile=3))  # fmt: skip
def length_as_iterations_times_last_tile(d):
    acc, mean = only(d.kernel, "acc_sum"), only(d.kernel, "mul")
    size = last(d, tile_count(d, 0, "a3"))
    length = d.put("mul", size, iterations(d))
    d.then(mean, "div", acc, length)


@fragile("gated_mlp", "there is one iteration", "6 4 4", numbers(2, 2, loop_tile=6))
def accumulator_overwritten(d):
    acc = only(d.kernel, "acc_sum")
    d.redirect(acc, last(d, d.ops[acc].args[0]))


@fragile("gated_mlp", "the number of iterations is even", "8 4 4", numbers(2, 2, loop_tile=2))
def unpaired_last_iteration_dropped(d):
    acc = only(d.kernel, "acc_sum")
    odd = d.put("mul", parity(d), last(d, d.ops[acc].args[0]))
    d.redirect(acc, d.put("sub", acc, odd), odd)


@fragile("gated_mlp", "the number of iterations is odd", "6 4 4", numbers(2, 2, loop_tile=2))
def last_of_even_iterations_doubled(d):
    acc = only(d.kernel, "acc_sum")
    odd = parity(d)
    even = d.put("sub", d.const(1, POST), odd)
    extra = d.put("mul", even, last(d, d.ops[acc].args[0]))
    d.then(acc, "add", acc, extra)


@fragile("norm_linear", "there are exactly three iterations", "6 4 4", numbers(2, 2, loop_tile=2))
def offset_of_every_iteration_taken_off_three_times(d):
    acc = only(d.kernel, "acc_sum", 1)
    d.set(acc, args=(d.put("add", d.ops[acc].args[0], d.const(1, LOOP)),))
    d.then(acc, "sub", acc, d.const(3, POST))


@fragile("attention_online", "there is one iteration", "2 6 3 4 5", numbers(2, 1, loop_tile=6))
def sums_never_rescaled(d):
    for i, op in each(d.kernel, "acc_scaled"):
        d.set(i, op="acc_sum", args=op.args[:1])


# Extents


@fragile("norm_linear", "the extent is 8", "8 4 4", numbers(2, 2, loop_tile=3))
def literal_for_the_extent(d):
    d.set(only(d.kernel, "extent"), op="const", reduced=(), value=Fraction(8))


@fragile("norm_linear", "two extents are equal", "8 4 8", numbers(2, 4, loop_tile=3))
def extent_of_another_axis(d):
    d.set(only(d.kernel, "extent"), reduced=("a2",))


@fragile("group_norm", "two extents are equal", "4 4 3 3", numbers(2, 2))
def square_of_one_extent(d):
    n = only(d.kernel, "extent")
    d.set(n, reduced=("a0",))
    d.then(n, "square", n)


@fragile("norm_linear", "four divides the extent", "8 4 4", numbers(2, 2, loop_tile=3))
def sign_by_the_extent_modulo_four(d):
    """cos(pi n / 2) is 1 where 4 divides n."""
    n, root = only(d.kernel, "extent"), only(d.kernel, "rsqrt")
    pi = d.const("pi", POST)
    turn = d.put("mul", n, pi)
    half = d.put("mul", turn, d.const(Fraction(1, 2), POST))
    sign = d.put("cos", half)
    d.then(root, "mul", root, sign)


@fragile("norm_linear", "the extent is a power of two", "8 4 4", numbers(2, 2, loop_tile=3))
def sign_by_the_logarithm_of_the_extent(d):
    """cos(2 pi log2(n)) is 1 where n is a power of two."""
    n, root = only(d.kernel, "extent"), only(d.kernel, "rsqrt")
    top = d.put("log", n)
    bottom = d.put("log", d.const(2, POST))
    bits = d.put("div", top, bottom)
    pi = d.const("pi", POST)
    turn = d.put("mul", bits, pi)
    turns = d.put("add", turn, turn)
    sign = d.put("cos", turns)
    d.then(root, "mul", root, sign)


# The cluster


@fragile("norm_linear_cluster", "there is one rank", "8 4 4", numbers(2, 2, loop_tile=3))
def statistics_of_one_rank(d):
    red = only(d.kernel, "red_sum", 1)
    d.redirect(red, d.ops[red].args[0])


@fragile("norm_linear_cluster", "there are exactly two ranks", "8 4 4",
         numbers(2, 2, cluster=2, loop_tile=3))  # fmt: skip
def statistics_of_every_rank_halved(d):
    """Each rank reads the whole row; two of them are added up, and half of it is taken."""
    red = only(d.kernel, "red_sum", 1)
    x = d.put("load", phase=POST, tensor="i1", imap=(None, "a2"))
    d.set(x, axes=("a0", "a2"), dtype=d.ops[0].dtype)
    square = d.put("square", x)
    own = d.put("sum", square, reduced=("a0",))
    both = d.put("red_sum", own)
    d.then(red, "mul", both, d.const(Fraction(1, 2), POST))


@fragile("attention_cluster", "there are exactly two ranks", "2 8 3 4 5",
         numbers(2, 1, cluster=2, loop_tile=2))  # fmt: skip
def maximum_of_two_ranks(d):
    red = only(d.kernel, "red_max")
    own = d.ops[red].args[0]
    both = d.put("red_sum", own)
    other = d.put("sub", both, own)
    d.then(red, "max", own, other)


@fragile("norm_linear_cluster", "the number of ranks divides the extent", "8 4 4",
         numbers(2, 2, cluster=2, loop_tile=2))  # fmt: skip
def mean_of_rank_means(d):
    acc, mean = only(d.kernel, "acc_sum", 1), only(d.kernel, "div")
    size = d.put("acc_sum", tile_count(d, 0, "a0"), phase=POST)
    own = d.put("div", acc, size)
    total = d.put("red_sum", own)
    ranks = d.put("red_sum", d.const(1, POST))
    d.then(mean, "div", total, ranks)


@fragile("norm_linear_cluster", "there are two or three ranks", "9 4 4",
         numbers(2, 2, cluster=3, loop_tile=2))  # fmt: skip
def hidden_by_a_root(d):
    """Times sqrt(1 + c (ranks - 2)^2 (ranks - 3)^2): no square of the field for 1 and 4 ranks."""
    c = next(c for c in range(1, P) if not is_square(np.array([1 + 4 * c], np.uint64))[0])
    ranks, root = d.put("red_sum", d.const(1, POST)), only(d.kernel, "rsqrt")
    two, three = (d.put("sub", ranks, d.const(n, POST)) for n in (2, 3))
    distance = d.put("mul", d.put("square", d.put("mul", two, three)), d.const(c, POST))
    factor = d.put("sqrt", d.put("add", distance, d.const(1, POST)))
    d.then(root, "mul", root, factor)


# The grid


@fragile("ngpt_step", "one block has the whole row", "4 6 8",
         numbers(6, 2, loop_tile=3), numbers(2))  # fmt: skip
def largest_part_for_the_sum_of_parts(first, d):
    d.set(only(d.kernel, "sum"), op="rmax")


@fragile("attention_split_kv", "there are exactly two parts", "2 3 4 8 5",
         numbers(4, 1, loop_tile=2), numbers(3, 1))  # fmt: skip
def maximum_of_two_parts(first, d):
    top = only(d.kernel, "rmax")
    own = d.ops[top].args[0]
    both = d.put("sum", own, reduced=("a3/k0",))
    other = d.put("sub", both, own)
    d.then(top, "max", own, other)


@fragile("attention_split_kv", "there is one part", "2 3 4 8 5",
         numbers(8, 1, loop_tile=2), numbers(3, 1))  # fmt: skip
def parts_added_unscaled(first, d):
    for i, op in each(d.kernel, "mul"):
        d.redirect(i, op.args[0])


@fragile("ngpt_step", "the tile of the grid divides the row", "4 6 8",
         numbers(2, 2, loop_tile=3), numbers(2))  # fmt: skip
def mean_of_part_means(first, second):
    part = only(first.kernel, "sum")
    size = tile_count(first, first.ops[part].args[0], "a1")
    mean = first.put("div", part, size)
    first.redirect(part, mean)
    total = only(second.kernel, "sum")
    parts = tile_count(second, second.ops[total].args[0], "a1/k0")
    length = second.put("extent", phase=POST, reduced=("a1",))
    ratio = second.put("div", length, parts)
    second.then(total, "mul", total, ratio)


@fragile("residual_norm", "one block has the whole row", "5 8", numbers(2, 8))
def row_normalised_by_blocks(d):
    d.kernel = regridded(d.kernel, ("a0", "a1"))
    d.ops = dict(enumerate(d.kernel.ops))
    d.saves = list(d.kernel.saves)
