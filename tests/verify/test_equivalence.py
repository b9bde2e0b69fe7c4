"""Verdicts of ``verify`` and ``check_terms``, the reduced extents and the bound."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import ops, term
from mirage_onnx.ir.program import Constant
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.verify.bounds import (
    Bound,
    Degree,
    miss_probability,
    term_bound,
    ugraph_bounds,
)
from mirage_onnx.verify.equivalence import Proof, check_terms, verify
from mirage_onnx.verify.field import P
from mirage_onnx.verify.reduced import PRIMES, reduced_instantiation, small_extents

Goldens = dict[str, tuple[Region, UGraph]]


def edited(graph: UGraph, old: str, new: str) -> UGraph:
    text = print_ugraph(graph)
    assert old in text
    return parse_ugraph(text.replace(old, new))


def test_goldens_are_proven_quickly(goldens: Goldens) -> None:
    for name, (region, graph) in goldens.items():
        verify(region, graph)
        start = time.perf_counter()
        proof = verify(region, graph)
        assert isinstance(proof, Proof), (name, proof)
        assert proof.draws == 3 and proof.bound <= 1e-9
        assert "a0=" in proof.instantiation and "tile=" in proof.instantiation
        assert time.perf_counter() - start < 0.25


def test_a_rejection_holds_a_counterexample(goldens: Goldens) -> None:
    region, graph = goldens["norm_linear"]
    result = verify(region, edited(graph, "const[1/100000]", "const[1/1000000]"))
    assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"
    assert "output o0[a0=0, a2=0] is" in result.reason and "and should be" in result.reason


def test_an_ill_formed_graph_is_rejected_with_a_sentence(goldens: Goldens) -> None:
    region, graph = goldens["norm_linear"]
    result = verify(region, edited(graph, "= acc_sum %5", "= cast %5"))
    assert str(result) == (
        "NOT_EQUIVALENT: ill-formed: kernel k0: %6 = cast: ['%5'] is not of phase post"
    )


def test_a_literal_is_not_an_extent_even_where_they_are_equal(goldens: Goldens) -> None:
    region, graph = goldens["norm_linear"]
    for n in PRIMES:
        literal = edited(graph, "extent[a1]", f"const[{n}]")
        assert isinstance(verify(region, literal), Rejection)


SMALL = """\
ugraph 1
tensor i0 f32[a0,a1] input
tensor o0 f32[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f32[a0,a1] post vector
{body}
  save o0 = %{last} omap=a0
"""


def judge(goldens: Goldens, value: Term, *lines: str) -> Proof | Rejection:
    """Verify a row kernel of elementwise operations against ``value`` of ``i0``."""
    region = replace(goldens["softmax"][0], terms=(value,))
    body = "\n".join(
        f"  %{i} = {line} : f32[{'' if line in SCALARS else 'a0,a1'}] post vector"
        for i, line in enumerate(lines, start=1)
    )
    return verify(region, parse_ugraph(SMALL.format(body=body, last=len(lines))))


SCALARS = ("const[0]", "const[1]", "const[pi]", "const[1/2]", "const[355/113]", "powr[1/2] %1")
X = term.input_("i0", ["a0", "a1"])
HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (term.power(X, -HALF), ("rsqrt %0",)),
        (term.power(X, -HALF), ("sqrt %0", "recip %1")),
        (term.power(X, Fraction(3, 2)), ("sqrt %0", "square %1", "sqrt %0", "mul %2 %3")),
        (ops.to_term("sigmoid", X), ("neg %0", "exp %1", "const[1]", "add %2 %3", "recip %4")),
        (ops.to_term("sigmoid", X), ("sigmoid %0",)),
        (ops.to_term("relu", X), ("const[0]", "max %0 %1")),
        (ops.to_term("relu", X), ("relu %0",)),
        (term.mul(term.const("pi"), X), ("const[pi]", "mul %0 %1")),
        (term.mul(term.power(term.const(HALF), HALF), X),
         ("const[1/2]", "powr[1/2] %1", "mul %0 %2")),
        (term.add(term.power(X, 2), X), ("const[1]", "add %0 %1", "mul %0 %2")),
    ],
)  # fmt: skip
def test_equal_programs_are_proven(goldens: Goldens, value: Term, lines: tuple[str, ...]) -> None:
    assert isinstance(judge(goldens, value, *lines), Proof)


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (term.power(X, -HALF), ("sqrt %0",)),
        (term.apply("abs", X), ("square %0", "sqrt %1", "neg %2")),
        (term.apply("erf", X), ("tanh %0",)),
        (term.apply("exp", X), ("neg %0", "exp %1")),
        (ops.to_term("relu", X), ("const[0]", "min %0 %1")),
        (ops.to_term("relu", X), ("abs %0",)),
        (term.mul(term.const("pi"), X), ("const[355/113]", "mul %0 %1")),
        (term.add(term.power(X, 2), X), ("square %0", "sub %1 %0")),
        # right on the reals, but of a law that the field does not have
        (term.power(X, -HALF), ("recip %0", "sqrt %1")),
        (term.apply("abs", X), ("square %0", "sqrt %1")),
        (term.power(term.apply("exp", X), 2), ("add %0 %0", "exp %1")),
    ],
)  # fmt: skip
def test_other_programs_are_not(goldens: Goldens, value: Term, lines: tuple[str, ...]) -> None:
    result = judge(goldens, value, *lines)
    assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"


def test_a_division_by_zero_is_never_equal_to_anything(goldens: Goldens) -> None:
    zero = ("sub %0 %0", "recip %1")
    for value in (term.power(X, -1), term.const(0), term.apply("exp", X)):
        result = judge(goldens, value, *zero)
        assert isinstance(result, Rejection) and result.code == "INCONCLUSIVE"
        assert "exists in only 0 of 3 draws" in result.reason


def test_degrees_beyond_the_field_are_inconclusive(goldens: Goldens) -> None:
    result = judge(goldens, term.power(X, P), f"powr[{P}] %0")
    assert isinstance(result, Rejection) and result.code == "INCONCLUSIVE"


def test_a_constant_without_residue_is_refused(goldens: Goldens) -> None:
    value = term.mul(term.const(Fraction(1, P)), X)
    assert isinstance(judge(goldens, value, f"const[1/{P}]", "mul %0 %1"), Rejection)


def test_every_split_is_exercised(goldens: Goldens) -> None:
    for region, graph in goldens.values():
        sizes = reduced_instantiation(graph, region.extents)
        extents = sizes.extents
        assert len(set(extents.values())) == len(extents) and max(extents.values()) < 64
        for kernel, p in zip(graph.kernels, sizes.params, strict=True):
            for axis, tile in zip(kernel.grid, p.tile, strict=True):
                assert tile < extents[axis] and extents[axis] % tile
            assert p.cluster == (2 if kernel.cluster else 1)
            if kernel.loop:
                piece = -(-extents[kernel.loop] // p.cluster)
                assert p.loop_tile < piece and piece % p.loop_tile


@pytest.mark.parametrize("roles", list(product(("a0", "a1"), (None, "a0"), (None, "a0", "a1"))))
def test_every_combination_of_roles_has_numbers(
    goldens: Goldens, roles: tuple[str, str | None, str | None]
) -> None:
    grid, cluster, loop = roles
    graph = goldens["residual_norm"][1]
    kernel = replace(graph.kernels[0], grid=(grid,), cluster=cluster, loop=loop)
    sizes = reduced_instantiation(replace(graph, kernels=(kernel,)), ["a0", "a1"])
    (p,) = sizes.params
    assert p.tile[0] * 2 > sizes.extents[grid] > p.tile[0]
    if loop:
        piece = p.tile[0] if loop == grid else sizes.extents[loop]
        piece = -(-piece // p.cluster) if loop == cluster else piece
        assert 1 <= p.loop_tile < piece and piece % p.loop_tile


def test_too_many_axes_are_refused() -> None:
    with pytest.raises(RejectionError, match="no small extent is left"):
        small_extents([f"a{i}" for i in range(18)], {})


def test_degrees_follow_the_algebra() -> None:
    x = Degree(1, 0)
    assert x.times(x).total(5) == Degree(2, 0)
    assert x.power(Fraction(-1)).total(5) == Degree(4, 5)
    assert x.plus(x.power(Fraction(-1))) == Degree(2, 1)
    assert x.times(x).call() == Degree(1, 0, 2)
    assert x.times(x).power(Fraction(-3, 2)) == Degree(0, 3, 2)


def test_the_bound_counts_what_one_element_depends_on(goldens: Goldens) -> None:
    region, graph = goldens["gated"]
    sizes = reduced_instantiation(graph, region.extents)
    (value,) = region.terms
    bound = term_bound(value, sizes.extents)
    # g u / (1 + exp(-g)): one exp, of an argument of degree 2
    assert bound == Bound(Degree(4, 1, 2), 1)
    theirs = ugraph_bounds(graph, sizes.params, sizes.extents)["o0"]
    assert theirs.evaluations == 1
    assert miss_probability(bound, theirs) == (5 + 1 * 2 * 2) / P
    inner = term.reduce_("sum", ["a2"], value)
    assert term_bound(inner, sizes.extents).evaluations == sizes.extents["a2"]


def test_terms_are_compared_with_steps(goldens: Goldens) -> None:
    rng = np.random.default_rng(0)
    for region, _ in goldens.values():
        assert check_terms(region, rng) is None


def test_wrong_terms_are_found(goldens: Goldens) -> None:
    region, _ = goldens["gated"]
    (value,) = region.terms
    for wrong in (term.mul(value, value), term.add(value, term.const(Fraction(1, 1000)))):
        result = check_terms(replace(region, terms=(wrong,)), np.random.default_rng(0))
        assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"
        assert "the terms of o0 differ from its steps" in result.reason


def test_a_wrong_step_is_found(goldens: Goldens) -> None:
    region, _ = goldens["norm_linear"]
    for i, step in enumerate(region.steps):
        if step.op == "add":
            wrong = replace(step, inputs=(step.inputs[0], Constant(Fraction(1, 10))))
            steps = (*region.steps[:i], wrong, *region.steps[i + 1 :])
            result = check_terms(replace(region, steps=steps), np.random.default_rng(0))
            assert isinstance(result, Rejection)
    missing = replace(region, steps=region.steps[1:])
    assert isinstance(check_terms(missing, np.random.default_rng(0)), Rejection)


def test_steps_without_a_value_are_inconclusive(goldens: Goldens) -> None:
    region, _ = goldens["softmax"]
    last = replace(region.steps[-1], op="log", inputs=("t9",), output=region.steps[-1].output)
    zero = replace(region.steps[1], op="sub", inputs=("x0", "x0"))
    steps = (zero, replace(last, inputs=(zero.output.name,)))
    result = check_terms(replace(region, steps=steps), np.random.default_rng(0))
    assert isinstance(result, Rejection) and result.code == "INCONCLUSIVE"
