"""The normal form of terms: which spellings are one term, and which must stay apart."""

from fractions import Fraction

import numpy as np
import pytest
from golden_texts import texts_of
from hypothesis import given
from hypothesis import strategies as st

from mirage_onnx.ir import term as t
from mirage_onnx.ir.functions import ELEMENTWISE, to_term
from mirage_onnx.ir.term import Term
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray


class Expr:
  def __init__(self, term):
    self.term = term if isinstance(term, Term) else t.const(Fraction(term))

  def __add__(self, other):
    return call("add", self, other)

  def __sub__(self, other):
    return call("sub", self, other)

  def __mul__(self, other):
    return call("mul", self, other)

  def __truediv__(self, other):
    return call("div", self, other)

  def __neg__(self):
    return call("neg", self)

  def __radd__(self, other):
    return call("add", other, self)

  def __rsub__(self, other):
    return call("sub", other, self)

  def __rmul__(self, other):
    return call("mul", other, self)

  def __rtruediv__(self, other):
    return call("div", other, self)

  def __pow__(self, e):
    return Expr(t.power(self.term, Fraction(e)))


def wrap(x):
  return x if isinstance(x, Expr) else Expr(x)


def call(op, *args):
  return Expr(to_term(op, *(wrap(a).term for a in args)))


def reduced(op):
  return lambda axes, x: Expr(t.reduce_(op, axes.split(), wrap(x).term))


def mean(axes, x):
  names = axes.split()
  total = t.reduce_(t.SUM, names, wrap(x).term)
  return Expr(t.mul(t.power(t.extent(names), -1), total))


SCOPE = {
  **{op: (lambda *a, op=op: call(op, *a)) for op in ELEMENTWISE},
  "x": Expr(t.input_("x", "ij")), "y": Expr(t.input_("y", "ij")),
  "v": Expr(t.input_("v", "i")), "w": Expr(t.input_("w", "jk")),
  "sum": reduced(t.SUM), "rmax": reduced(t.MAXR), "mean": mean,
  "n": lambda axes: Expr(t.extent(axes.split())),
  "pi": Expr(t.const("pi")), "q": Fraction,
}  # fmt: skip


def read(text):
  return wrap(eval(text, {"__builtins__": {}}, SCOPE)).term


#: Pairs of formulas, a line each: ``equal`` with the normal form of terms, ``different`` without
#: cancellation and the like.
TABLES = texts_of("term")


def pairs(table):
  rows = [line.split("|") for line in TABLES[table].splitlines()]
  return [(a.strip(), b.strip()) for a, b in rows]


@pytest.mark.parametrize(("a", "b"), pairs("equal"))
def test_one_term(a, b):
  assert read(a) is read(b)


@pytest.mark.parametrize(("a", "b"), pairs("different"))
def test_two_terms(a, b):
  assert read(a) is not read(b)


def test_terms_are_interned_and_ordered_by_content():
  a, b = read("exp(x) * v"), read("v * exp(x)")
  assert a is b
  assert len({read("x"), read("y"), read("x")}) == 2
  terms = [read(text) for text in ("x", "exp(x)", "x + y", "2 * x", "sum('i', x)")]
  backwards = terms[::-1]
  assert sorted(terms) == sorted(backwards)
  assert read("x").order < read("exp(x)").order


def test_axes():
  assert read("x * w").axes == ("i", "j", "k")
  assert read('sum("j", x * w)').axes == ("i", "k")
  assert read('n("i")').axes == ()
  assert t.input_("x", "ij") is not t.input_("x", "ik")


def test_text_shows_the_whole_term():
  text = str(read('v * sum("j", x * w) + 1'))
  assert text == "add(1, mul(v[i], sum[j](mul(w[j,k], x[i,j]))))"


def test_substitute_renormalises():
  (got,) = t.substitute([read("x * y")], {"x": read("v"), "y": read("v")})
  assert got is read("v * v")
  (got,) = t.substitute([read('sum("j", x)')], {"x": t.input_("x", "ab")}, {"j": "a"})
  assert got is t.reduce_(t.SUM, "a", t.input_("x", "ab"))


def test_walk_puts_arguments_first():
  order = t.walk([read('exp(v) * sum("j", x * w)')])
  place = {u: i for i, u in enumerate(order)}
  assert all(place[a] < place[u] for u in order for a in u.args)
  assert len(place) == len(order)


@pytest.mark.parametrize(("a", "b"), pairs("equal"))
def test_one_term_is_one_value(a, b, rng):
  """What the normal form merges is equal in float64 (on positive numbers)."""
  del b
  sizes = {"i": 3, "j": 4, "k": 2}
  inputs = {
    name: NamedArray(rng.uniform(0.5, 2.0, (1, *(sizes[c] for c in axes))), tuple(axes))
    for name, axes in (("x", "ij"), ("y", "ij"), ("v", "i"), ("w", "jk"))
  }
  got = interpret_terms(Float64(), [read(a)], inputs, sizes)[0]
  plain = {k: v.data[0] for k, v in inputs.items()}
  want = in_numpy(a, plain, sizes)
  if want is not None:
    full = np.broadcast_to(got.aligned(("i", "j")[: want.ndim])[0], want.shape)
    np.testing.assert_allclose(full, want, rtol=1e-12)


def in_numpy(text, x, sizes):
  """The text as plain numpy over [i, j]; reductions are not translated."""
  if any(word in text for word in ("sum", "mean", "rmax", "n(", "w")):
    return None
  scope = {op: e.reals for op, e in ELEMENTWISE.items()}
  scope |= {"x": x["x"], "y": x["y"], "v": x["v"][:, None], "q": lambda a, b: a / b, "pi": np.pi}
  scope |= {"relu": lambda a: np.maximum(a, 0)}
  value = eval(text, {"__builtins__": {}}, scope)
  return np.broadcast_to(value, (sizes["i"], sizes["j"]))


LEAVES = ["x", "y", "v", "1", "2", "q(1, 3)"]
texts = st.recursive(
  st.sampled_from(LEAVES),
  lambda sub: st.one_of(
    st.tuples(st.sampled_from(["+", "-", "*", "/"]), sub, sub).map(
      lambda p: f"({p[1]} {p[0]} ({p[2]} + 3))" if p[0] == "/" else f"({p[1]} {p[0]} {p[2]})"
    ),
    st.tuples(st.sampled_from(["exp", "tanh", "abs", "square", "relu"]), sub).map(
      lambda p: f"{p[0]}({p[1]} * q(1, 8))"
    ),
  ),
  max_leaves=6,
)


@given(texts)
def test_normalisation_keeps_the_value(text):
  rng = np.random.default_rng(1)
  sizes = {"i": 2, "j": 3}
  inputs = {
    n: NamedArray(rng.uniform(0.2, 1.0, (1, *(sizes[c] for c in axes))), tuple(axes))
    for n, axes in (("x", "ij"), ("y", "ij"), ("v", "i"))
  }
  plain = {k: v.data[0] for k, v in inputs.items()}
  want = in_numpy(text, plain, sizes)
  scope = {**SCOPE, "q": lambda a, b: Expr(Fraction(a, b))}
  term = wrap(eval(text, {"__builtins__": {}}, scope)).term
  got = np.broadcast_to(interpret_terms(Float64(), [term], inputs, sizes)[0].aligned(("i", "j"))[0], (2, 3))
  assert want is not None
  defined = np.isfinite(want) & (np.abs(want) < 1e9)
  np.testing.assert_allclose(got[defined], want[defined], rtol=1e-7, atol=1e-9)
