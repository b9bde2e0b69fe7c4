"""Every axiom: what it proves, what it does not, and that all it adds is equal in numbers."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term
from mirage_onnx.superopt.axioms import AXIOMS, Axiom, saturate
from mirage_onnx.superopt.egraph import EGraph, ENode
from mirage_onnx.verify import named
from mirage_onnx.verify.domain import Domain, Field, Float64
from mirage_onnx.verify.named import Named

AXIOM = {a.name: a for a in AXIOMS}
EXTENTS = {"i": 3, "j": 4, "k": 2, "l": 5}
INPUTS = {"x": "ij", "y": "ij", "w": "jk", "v": "i", "u": "j", "s": "", "a": "jl", "b": "lk"}
x, y, w, v, u, s, a, b = (t.input_(n, axes) for n, axes in INPUTS.items())


def total(axes: str, *factors: Term) -> Term:
    return t.reduce_(t.SUM, axes, t.mul(*factors))


def exp(z: Term) -> Term:
    return t.apply("exp", z)


#: axiom, two terms that it makes one class
PROVED: list[tuple[str, Term, Term]] = [
    ("pull-out", total("j", v, x), t.mul(v, total("j", x))),
    ("pull-out", total("j", v, s, x, w), t.mul(v, s, total("j", x, w))),
    ("pull-out", total("ij", v, x), total("i", v, total("j", x))),
    ("pull-out", total("jk", u, w), total("j", u, total("k", w))),
    ("push-in", total("l", b, total("j", x, a)), total("jl", x, a, b)),
    ("sum-of-add", total("j", t.add(x, v), w), t.add(total("j", x, w), total("j", v, w))),
    ("sum-of-add", total("j", t.add(x, u)), t.add(total("j", x), t.reduce_(t.SUM, "j", u))),
    ("collect", t.add(t.mul(x, v), t.mul(y, v)), t.mul(v, t.add(x, y))),
    ("collect", t.add(t.mul(x, s), t.mul(v, s)), t.mul(s, t.add(x, v))),
]

#: axiom, two terms that differ and that no axiom may join
REFUTED: list[tuple[str, Term, Term]] = [
    ("pull-out", total("j", u, x), t.mul(u, total("j", x))),
    ("pull-out", total("i", v, x), t.mul(v, total("i", x))),
    ("pull-out", t.reduce_(t.MAXR, "j", t.mul(v, x)), t.mul(v, t.reduce_(t.MAXR, "j", x))),
    ("push-in", total("j", x, total("j", x)), total("j", x, x)),
    ("sum-of-add", total("j", t.add(x, y)), t.mul(total("j", x), total("j", y))),
    ("collect", t.add(t.mul(x, v), t.mul(y, s)), t.mul(v, t.add(x, y))),
    ("collect", t.add(t.mul(x, v), v), t.mul(v, x)),
]


def joined(first: Term, second: Term, axioms: tuple[Axiom, ...]) -> bool:
    g = EGraph()
    p, q = g.insert_term(first), g.insert_term(second)
    assert g.find(p) != g.find(q)
    if g.axes(p) != g.axes(q):
        return False
    saturate(g, axioms)
    return g.find(p) == g.find(q)


@pytest.mark.parametrize(("axiom", "first", "second"), PROVED)
def test_proves(axiom: str, first: Term, second: Term) -> None:
    assert joined(first, second, (AXIOM[axiom],))
    others = tuple(a for a in AXIOMS if a.name not in (axiom, "group"))
    if axiom not in ("push-in", "sum-of-add"):  # the inverse of another one
        assert not joined(first, second, tuple(o for o in others if o.name != "push-in"))


@pytest.mark.parametrize(("axiom", "first", "second"), REFUTED)
def test_does_not_prove(axiom: str, first: Term, second: Term) -> None:
    assert AXIOM[axiom]
    assert not joined(first, second, AXIOMS)


def test_flatten_opens_nested_products() -> None:
    g = EGraph()
    p, q, r = (g.insert_term(z) for z in (x, y, v))
    nested = g.product([g.product([p, q]), r])
    flat = g.product([p, q, r])
    assert g.find(nested) != g.find(flat)
    saturate(g, (AXIOM["flatten"],))
    assert g.find(nested) == g.find(flat)


def test_group_nests_the_factors_of_a_contraction() -> None:
    g = EGraph()
    c = g.insert_term(total("j", x, u, w))
    saturate(g, (AXIOM["group"],))
    spellings = [n for n in g.nodes(c) if n.op == t.SUM]
    products = {g.nodes(n.children[0])[0].children for n in spellings}
    assert {len(p) for p in products} == {2, 3}
    assert sum(len(p) == 2 for p in products) == 2


def test_the_table_says_what_it_does() -> None:
    assert len(AXIOM) == len(AXIOMS)
    for axiom in AXIOMS:
        assert axiom.lhs != axiom.rhs
        assert axiom.lhs
    tested = {name for name, *_ in PROVED} | {"flatten", "group"}
    assert tested == set(AXIOM)


# -- numbers ---------------------------------------------------------------------------------------


def random_term(pick: random.Random, depth: int) -> Term:
    if depth == 0 or pick.random() < 0.15:
        return pick.choice([x, y, w, v, u, s, a, b])
    kind = pick.choice(["mul", "mul", "add", "sum", "sum", "exp", "power"])
    parts = [random_term(pick, depth - 1) for _ in range(pick.randint(2, 3))]
    if kind == "sum":
        body = t.mul(*parts)
        axes = pick.sample(sorted(body.axes), min(len(body.axes), pick.randint(1, 2)))
        return t.reduce_(t.SUM, axes, body) if axes else body
    made: dict[str, Callable[[], Term]] = {
        "mul": lambda: t.mul(*parts),
        "add": lambda: t.add(*parts),
        "exp": lambda: exp(t.add(*parts[:2]) if pick.random() < 0.5 else t.mul(parts[0], s)),
        "power": lambda: t.power(parts[0], pick.choice([2, 3])),
    }
    return made[kind]()


def value_of(domain: Domain, n: ENode, args: list[Named], inputs: dict[str, Named]) -> Named:
    if n.op == t.INPUT:
        return inputs[str(n.attr)]
    if n.op == t.CONST:
        return Named(domain.constant(n.attr), ())  # type: ignore[arg-type]
    if n.op == t.EXTENT:
        return Named(domain.extent({k: EXTENTS[k] for k in n.attr}), ())  # type: ignore[union-attr]
    if n.op in (t.ADD, t.MUL):
        return named.fold(domain, n.op, args)
    if n.op == t.POW:
        return named.power(domain, args[0], n.attr)  # type: ignore[arg-type]
    if n.op in t.REDUCTIONS:
        return named.reduce_(domain, n.op, n.attr, args[0])  # type: ignore[arg-type]
    return named.elementwise(domain, n.op, *args)


def disagreements(g: EGraph, domain: Domain, inputs: dict[str, Named]) -> list[str]:
    """Nodes whose value is not that of their class."""
    values: dict[int, Named] = {}
    wrong: list[str] = []
    todo = [(c, n) for c in g.classes() for n in g.nodes(c)]
    while todo:
        ready = [(c, n) for c, n in todo if all(g.find(k) in values for k in n.children)]
        if not ready:
            break
        for c, n in ready:
            got = value_of(domain, n, [values[g.find(k)] for k in n.children], inputs)
            axes = g.axes(c)
            known = values.setdefault(c, got)
            p, q = got.aligned(axes), known.aligned(axes)
            same = np.array_equal(p, q) if p.dtype == np.uint64 else np.allclose(p, q, 1e-9, 1e-12)
            if not same:
                wrong.append(f"{n} in class {c}")
        todo = [e for e in todo if e not in ready]
    return wrong


def drawn(domain: Domain, seed: int) -> dict[str, Named]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, axes in INPUTS.items():
        shape = tuple(EXTENTS[k] for k in axes)
        if isinstance(domain, Field):
            data = domain.random(rng, shape)
        else:
            data = rng.uniform(-0.5, 0.5, (1, *shape))
        found[name] = Named(data, tuple(axes))
    return found


@pytest.mark.parametrize("name", AXIOM)
def test_all_that_an_axiom_adds_is_equal(name: str) -> None:
    """Random terms: every spelling of every class, in a finite field and in float64."""
    grown = 0
    # Terms are flat: only what another axiom adds can be flattened.
    base = (AXIOM["pull-out"], AXIOM["sum-of-add"]) if name == "flatten" else ()
    for seed in range(60):
        g = EGraph()
        g.insert_term(random_term(random.Random(seed), 3))
        saturate(g, base, max_iterations=1, max_nodes=150)
        before = g.size
        saturate(g, (AXIOM[name],), max_iterations=2, max_nodes=150)
        grown += g.size > before
        domains: list[Domain] = [Float64(), Field(2, np.random.default_rng(seed))]
        for domain in domains:
            assert disagreements(g, domain, drawn(domain, seed)) == []
    assert grown >= 3


def test_all_axioms_together() -> None:
    for seed in range(25):
        g = EGraph()
        g.insert_term(random_term(random.Random(seed), 3))
        saturate(g, max_nodes=200)
        assert disagreements(g, Float64(), drawn(Float64(), seed)) == []


def test_a_wrong_union_is_noticed() -> None:
    g = EGraph()
    g.union(g.insert_term(t.mul(total("i", x), total("i", x))), g.insert_term(total("i", x, x)))
    g.rebuild()
    assert disagreements(g, Float64(), drawn(Float64(), 0))
