"""Terms in infix: what they mean is what they say."""

import re
from fractions import Fraction

import numpy as np
import pytest

from mirage_onnx.inspection.infix import infix
from mirage_onnx.ir import term as t

X, Y, Z = (t.input_(n, ("a0",)) for n in "xyz")
N = t.extent(("a0",))


@pytest.mark.parametrize(
  ("term", "texts"),
  [
    (t.add(X, t.mul(t.const(-1), Y)), "x − y"),
    (t.mul(t.const(-1), X), "−x"),
    (t.mul(X, t.power(Y, -1)), "x / y"),
    (t.power(t.add(X, Y), 2), "(x + y)²|(y + x)²"),
    (t.mul(X, t.power(t.add(Y, t.const(Fraction(1, 100000))), Fraction(-1, 2))),
     "rsqrt(y + 1e-05) · x|x · rsqrt(y + 1e-05)|rsqrt(1e-05 + y) · x|x · rsqrt(1e-05 + y)"),
    (t.mul(t.const(Fraction(1, 2)), X), "1/2 · x"),
    (t.mul(t.power(N, -1), t.reduce_("sum", ["a0"], X)), "Σ[a0](x) / 768"),
    (t.power(t.add(t.const(1), t.apply("exp", t.mul(t.const(-1), X))), -1),
     "1 / (exp(−x) + 1)|1 / (1 + exp(−x))"),
    (t.apply("select", t.apply("less", X, Y), X, Z), "select(x < y, x, z)"),
    (t.mul(t.apply("less", X, Y), Z), "(x < y) · z|z · (x < y)"),
    (t.const(-3), "−3"),
    (t.add(X, t.const(-3)), "x − 3"),
    (t.const("pi"), "π"),
  ],
)  # fmt: skip
def test_it_reads_as_it_is_written(term, texts):
  """Of sums and products the order is that of digests."""
  assert infix(term, extents={"a0": 768}) in texts.split("|")


def test_names_and_unknown_extents():
  assert infix(X, lambda n: f"the {n}") == "the x"
  assert infix(N) == "|a0|" and infix(N, extents={"a0": 5}) == "5"


def _value(text, values):
  """Python reads the text, with its signs spelled out."""
  raised = lambda m: "**" + m[0].translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))  # noqa: E731
  python = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", raised, text).replace("−", "-").replace("·", "*").replace("^", "**")
  known = {"sqrt": np.sqrt, "rsqrt": lambda v: 1 / np.sqrt(v), "exp": np.exp, "π": np.pi}
  return eval(python, {**known, **values})


def test_random_terms_keep_their_value():
  """Parentheses are where they have to be: the text, read by Python, has the value of the term."""
  rng = np.random.default_rng(0)
  values = {"x": 1.3, "y": 0.7, "z": 2.1}
  for _ in range(300):
    pool = [(X, 1.3), (Y, 0.7), (Z, 2.1), (t.const(Fraction(-3, 2)), -1.5), (t.const(2), 2.0)]
    for _ in range(5):
      (a, u), (b, v) = (pool[i] for i in rng.integers(len(pool), size=2))
      kind = rng.integers(5)
      if kind == 0:
        pool.append((t.add(a, b), u + v))
      elif kind == 1:
        pool.append((t.mul(a, b), u * v))
      elif kind == 2 and abs(v) > 1e-3 and abs(u) < 50:
        pool.append((t.mul(a, t.power(b, -1)), u / v))
      elif kind == 3 and 1e-3 < u < 50:
        e = Fraction(int(rng.integers(1, 4)) * (-1) ** int(rng.integers(2)), int(rng.integers(1, 3)))
        pool.append((t.power(a, e), u ** float(e)))
      elif abs(u) < 20:
        pool.append((t.apply("exp", a), np.exp(u)))
    term, value = pool[-1]
    text = infix(term)
    assert _value(text, values) == pytest.approx(value, rel=2e-3), text
