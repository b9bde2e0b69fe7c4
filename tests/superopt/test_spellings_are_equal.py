"""All axioms together: every spelling that saturation finds has the value of what was written.

A rule that is right by itself may meet what another one made. So whole programs are saturated, and
spellings drawn from the e-graph are computed, block by block and iteration by iteration.
"""

import random
import zlib
from collections import Counter

import numpy as np
import pytest
from axiom_formulas import Formula, FormulaError
from axiom_nodes import insert
from axiom_parser import parse
from axiom_spellings import spelling
from axiom_values import random_numbers, same

from mirage_onnx.superopt.axioms import saturate
from mirage_onnx.superopt.egraph import EGraph
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.exponent_pair import ExponentPair

AXES = {"x": "ik", "w": "jk", "f": "k", "s": "ik", "v": "jk", "q": "id", "c": "dk", "y": "i"}
SIZES = {"i": (2, 1, 1), "j": (2, 2, 1), "k": (5, 2, 1), "d": (3, 2, 2)}
EXPONENTIAL = "sum[k](exp(s-rmax[k](s)) * v) / sum[k](exp(s-rmax[k](s)))"
LOGITS = "sum[d](q*c)"
PROGRAMS = {
    "scaled rows": "sum[k](x * pow[-1/2](sum[k](x*x)) * f * w)",
    "centred rows": "sum[k]((x - sum[k](x)/5) * w)",
    "two contractions": "sum[k](x*w) + sum[k](x * f * w)",
    "a contraction of a contraction": "sum[k](sum[d](q*c) * w)",
    "exponentials of rows": "exp(s-rmax[k](s)) / sum[k](exp(s-rmax[k](s)))",
    "weighted by exponentials": EXPONENTIAL,
    "with logits": EXPONENTIAL.replace("s", LOGITS).replace(f"{LOGITS}um", "sum"),
    "the logarithm of a sum": "log(sum[k](exp(s-rmax[k](s)))) + rmax[k](s)",
    "a product of exponentials": "sum[k](exp(x) * exp(y) * w)",
}
#: Spellings drawn of each program.
DRAWS = 60


def saturated(text):
    g = EGraph()
    root = insert(g, parse(text), {name: frozenset(a) for name, a in AXES.items()})
    saturate(g)
    return g, root


def values(f, domain, seed):
    """The value of ``f``, of inputs that do not depend on which of them it reads."""
    everything = Formula("add", tuple(Formula("var", value=name) for name in AXES))
    rng = np.random.default_rng(seed)
    positive = parse("log(x)")
    return random_numbers(domain, (everything, positive), AXES, SIZES, rng).value(f)


@pytest.mark.parametrize("name", PROGRAMS)
def test_drawn_spellings_have_the_same_value(name):
    g, root = saturated(PROGRAMS[name])
    pick = random.Random(zlib.crc32(name.encode()))
    seen = set()
    no_value = Counter[str]()
    for seed in range(DRAWS):
        f = spelling(g, root, pick)
        if f in seen:
            continue
        seen.add(f)
        domains = [Float64(), ExponentPair(1, np.random.default_rng(seed))]
        for domain in domains:
            want = values(parse(PROGRAMS[name]), domain, seed)
            try:
                got = values(f, domain, seed)
            except FormulaError as error:
                no_value[str(error)] += 1
                break
            assert same(domain, got, want), f
    assert len(seen) - no_value.total() >= 3, no_value


def test_all_operations_are_drawn():
    """Of these programs some spellings run a maximum, and some sum parts of an axis."""
    drawn = set()
    for name in ("weighted by exponentials", "scaled rows"):
        g, root = saturated(PROGRAMS[name])
        pick = random.Random(1)
        drawn |= {n.op for _ in range(DRAWS) for n in spelling(g, root, pick).walk()}
    assert {"scaled", "run", "psum", "pmax", "pscaled", "sum", "rmax"} <= drawn


def test_a_wrong_union_is_noticed():
    g, root = saturated("sum[k](x*w)")
    axes = {name: frozenset(a) for name, a in AXES.items()}
    g.union(root, insert(g, parse("sum[k](x) * sum[k](w)"), axes))
    g.rebuild()
    pick, domain = random.Random(0), Float64()
    found = [values(spelling(g, root, pick), domain, 0) for _ in range(DRAWS)]
    assert not all(same(domain, v, found[0]) for v in found)
