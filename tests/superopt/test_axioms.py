"""Axioms at work: all that each of them adds is equal in numbers, and all that they add together.

What each finds and refuses is in ``test_axiom_table``. A rule that is right by itself may meet what
another one made, so whole programs are saturated too.
"""

import random

import numpy as np
import pytest
from axiom_classes import disagreements
from axiom_formulas import Formula
from axiom_nodes import insert
from axiom_parser import parse
from axiom_values import random_numbers

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.axioms import AXIOMS, saturate
from mirage_onnx.superopt.egraph import EGraph, ENode
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.exponent_pair import ExponentPair

AXIOM = {a.name: a for a in AXIOMS}
EXTENTS = {"i": 3, "j": 4, "k": 2, "l": 5}
INPUTS = {"x": "ij", "y": "ij", "w": "jk", "v": "i", "u": "j", "s": "", "a": "jl", "b": "lk"}
x, y, w, v, u, s, a, b = (t.input_(n, axes) for n, axes in INPUTS.items())


def total(axes, *factors):
  return t.reduce_(t.SUM, axes, t.mul(*factors))


def exp(z):
  return t.apply("exp", z)


def test_flatten_opens_nested_products():
  """A product that has another spelling is opened by the axiom, any other as it is inserted."""
  g = EGraph()
  p, q, r = (g.insert_term(z) for z in (x, y, v))
  assert g.find(g.product([g.product([p, q]), r])) == g.find(g.product([p, q, r]))
  g = EGraph()
  p, q, r = (g.insert_term(z) for z in (x, y, v))
  inner = g.product([p, q])
  g.union(inner, g.insert_term(t.input_("p", "ij")))
  g.rebuild()
  nested, flat = g.product([inner, r]), g.product([p, q, r])
  assert g.find(nested) != g.find(flat)
  saturate(g, (AXIOM["flatten"],))
  assert g.find(nested) == g.find(flat)


def test_group_makes_the_operands_of_a_contraction():
  """Products stay flat: what appears is a class for each product that is an operand."""
  g = EGraph()
  p, q, r = (g.insert_term(z) for z in (x, u, w))
  g.insert_term(total("j", x, u, w))
  pairs = [ENode(t.MUL, tuple(sorted(pair))) for pair in ((p, q), (q, r), (p, r))]
  assert all(g.find_node(n) is None for n in pairs)
  saturate(g, (AXIOM["group"],))
  # x * w is over three axes, which no operand has.
  assert [g.find_node(n) is None for n in pairs] == [False, False, True]


# -- numbers


def shifted(k, z):
  return exp(t.add(z, t.mul(t.const(-1), t.reduce_(t.MAXR, k, z))))


def random_term(pick, depth, *, exponents=True):
  """No exponential is in the exponent of another: that has no value in the field."""
  if depth == 0 or pick.random() < 0.15:
    return pick.choice([x, y, w, v, u, s, a, b])
  kinds = ["mul", "mul", "add", "sum", "sum", "power", *["exp", "shift", "shift"] * exponents]
  kind = pick.choice(kinds)
  inside = exponents and kind not in ("exp", "shift")
  parts = [random_term(pick, depth - 1, exponents=inside) for _ in range(pick.randint(2, 3))]
  axes = sorted(t.mul(*parts).axes if kind == "sum" else parts[0].axes)
  if kind == "sum":
    axes = pick.sample(axes, min(len(axes), pick.randint(1, 2)))
    return t.reduce_(t.SUM, axes, t.mul(*parts)) if axes else t.mul(*parts)
  if kind == "shift":
    if not axes:
      return exp(parts[0])
    k = pick.choice(axes)
    power = shifted(k, parts[0])
    below = t.power(total(k, power), -1)
    return t.mul(total(k, parts[1], power), below) if pick.random() < 0.7 else power
  made = {
    "mul": lambda: t.mul(*parts),
    "add": lambda: t.add(*parts),
    "exp": lambda: exp(t.add(*parts[:2]) if pick.random() < 0.5 else t.mul(parts[0], s)),
    "power": lambda: t.power(parts[0], pick.choice([2, 3])),
  }
  return made[kind]()


def below_maximum(pick):
  """A sum shifted by the greatest of its own maximum and of something else."""
  z = random_term(pick, 2, exponents=False)
  if not z.axes:
    return z
  k = pick.choice(sorted(z.axes))
  other = pick.choice([p for p in (v, u, s) if k not in p.axes])
  m = t.apply("max", t.reduce_(t.MAXR, k, z), other)
  return total(k, pick.choice([x, y, s]), exp(t.add(z, t.mul(t.const(-1), m))))


#: Axioms that change hardly any random term -> terms that they change.
TERMS = {"part-shift": below_maximum}


def drawn(domain, seed, inputs=INPUTS, *, extents=EXTENTS, also=()):
  """Every input, and how long the blocks and the iterations of an axis are."""
  pick = random.Random(seed)
  sizes = {k: (n, pick.randint(1, n), pick.randint(1, 2)) for k, n in extents.items()}
  everything = Formula("add", tuple(Formula("var", value=name) for name in inputs))
  return random_numbers(domain, (everything, *also), inputs, sizes, np.random.default_rng(seed))


def domains(seed):
  return [Float64(), ExponentPair(1, np.random.default_rng(seed))]


@pytest.mark.parametrize("name", AXIOM)
def test_all_that_an_axiom_adds_is_equal(name):
  """Random terms: every spelling of every class, in a finite field and in float64."""
  grown = 0
  # Terms are flat: only what another axiom adds can be flattened.
  base = (AXIOM["pull-out"], AXIOM["sum-of-add"]) if name == "flatten" else ()
  for seed in range(60):
    g = EGraph()
    pick = random.Random(seed)
    g.insert_term(TERMS[name](pick) if name in TERMS else random_term(pick, 3))
    saturate(g, base, max_iterations=1, max_nodes=150)
    before = g.size
    saturate(g, (AXIOM[name],), max_iterations=2, max_nodes=150)
    if g.size > before:
      grown += 1
      for domain in domains(seed):
        assert disagreements(g, drawn(domain, seed)) == []
  assert grown >= 3


def test_all_axioms_together():
  for seed in range(25):
    g = EGraph()
    g.insert_term(random_term(random.Random(seed), 3))
    saturate(g, max_nodes=200)
    for domain in domains(seed):
      assert disagreements(g, drawn(domain, seed)) == []


def test_a_wrong_union_is_noticed():
  g = EGraph()
  g.union(g.insert_term(t.mul(total("i", x), total("i", x))), g.insert_term(total("i", x, x)))
  g.rebuild()
  for domain in domains(0):
    assert disagreements(g, drawn(domain, 0))


AXES = {"x": "ik", "w": "jk", "f": "k", "s": "ik", "v": "jk", "q": "id", "c": "dk"}
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
  "a product of exponentials": "sum[k](exp(x) * exp(s) * w)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_spellings_of_a_program_are_equal(name):
  g = EGraph()
  insert(g, parse(PROGRAMS[name]), {n: frozenset(axes) for n, axes in AXES.items()})
  saturate(g)
  found = {n.op for c in g.classes() for n in g.nodes(c)}
  if name == "weighted by exponentials":
    assert {"scaled", "run", "psum", "pmax", "pscaled", "sum", "rmax"} <= found
  for seed in range(4):
    for domain in domains(seed):
      numbers = drawn(
        domain,
        seed,
        AXES,
        extents={"i": 2, "j": 2, "k": 5, "d": 3},
        also=(parse("log(x)"),),
      )
      assert disagreements(g, numbers) == []
