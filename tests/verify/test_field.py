"""Z_p against Python's integers, and the laws that the random functions must and must not obey."""

from fractions import Fraction

import numpy as np
import pytest

from mirage_onnx.ir import functions, term
from mirage_onnx.ir.dtype import DType
from mirage_onnx.verify import field
from mirage_onnx.verify.domain import Field, Float64, Rounded
from mirage_onnx.verify.exponent_pair import ExponentPair
from mirage_onnx.verify.field import VOID, P, Q
from mirage_onnx.verify.free_exponential import FreeExponential
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.square_root import FreeExponentialRoots, SquareRoots

RNG = np.random.default_rng(0)


def draw(*shape):
  return RNG.integers(0, P, size=shape, dtype=np.uint64)


def domain(runs=2):
  return Field(runs, np.random.default_rng(5))


def is_prime(n):
  return all(n % d for d in range(2, int(n**0.5) + 1))


def test_p_is_a_safe_prime_of_which_small_primes_are_squares():
  assert P < 2**31 and P == 2 * Q + 1 and P % 4 == 3
  assert is_prime(P) and is_prime(Q)
  small = np.array([n for n in range(2, 62) if is_prime(n)], dtype=np.uint64)
  assert field.is_square(small).all()
  assert not field.is_square(P - small).any()


def test_squares_and_their_roots():
  x, y = draw(1000), draw(1000)
  squares = field.mul(x, x)
  assert field.is_square(squares).all() and 400 < field.is_square(x).sum() < 600
  roots = field.square_root(squares)
  assert (field.mul(roots, roots) == squares).all() and field.is_square(roots).all()
  others = field.mul(y, y)
  of_product = field.square_root(field.mul(squares, others))
  assert (of_product == field.mul(roots, field.square_root(others))).all()
  assert ((roots == x) | (roots == P - x)).all() and 400 < (roots == x).sum() < 600


def test_powers_of_omega_are_a_homomorphism_onto_the_squares():
  assert pow(field.OMEGA, Q, P) == 1 != field.OMEGA
  s, t = (RNG.integers(0, Q, size=1000, dtype=np.uint64) for _ in range(2))
  x, y = field.omega_power(s), field.omega_power(t)
  assert x.tolist() == [pow(field.OMEGA, int(n), P) for n in s]
  assert (field.omega_power(field.add(s, t, Q)) == field.mul(x, y)).all()
  assert field.is_square(x).all()


def test_products_over_an_axis():
  x = draw(7, 4)
  exact = [1, 1, 1, 1]
  for row in x.tolist():
    exact = [a * b % P for a, b in zip(exact, row, strict=True)]
  assert field.product(x).tolist() == exact
  assert field.product(x[:0]).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("count", [1, field.FEW, field.FEW + 1, 1000])
def test_arithmetic_is_exact(count):
  x, y = draw(count), draw(count)
  for m in (P, Q):
    a, b = x % np.uint64(m), y % np.uint64(m)
    assert (field.mul(field.inverse(a, m), a, m) == 1).all()
    assert (field.sub(field.add(a, b, m), b, m) == a).all()
  pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True)]
  assert field.add(x, y).tolist() == [(a + b) % P for a, b in pairs]
  assert field.sub(x, y).tolist() == [(a - b) % P for a, b in pairs]
  assert field.mul(x, y).tolist() == [a * b % P for a, b in pairs]
  assert field.power(x, 13).tolist() == [pow(a, 13, P) for a, _ in pairs]
  assert (field.mul(field.inverse(x), x) == 1).all()
  largest = np.full(count, 2**64 - 1, dtype=np.uint64)
  for m in (P, Q):
    assert set(field._mod(largest, m).tolist()) == {(2**64 - 1) % m}
    assert not field._mod(largest // np.uint64(m) * np.uint64(m), m).any()


@pytest.mark.parametrize("modulus", [P, Q])
@pytest.mark.parametrize(("m", "k", "n"), [(2, 3, 4), (1, 1, 1), (2, 0, 3), (40, 61, 30)])
def test_matmul_is_exact(m, k, n, modulus):
  x, y = (draw(2, *shape) % np.uint64(modulus) for shape in ((m, k), (k, n)))
  exact = np.matmul(x.astype(object), y.astype(object)) % modulus
  assert (field.matmul(x, y, modulus) == exact).all()


def test_large_matmul_is_exact_at_the_largest_residues():
  x = np.full((1, 4, 5000), P - 1, dtype=np.uint64)
  assert (field.matmul(x, x.transpose(0, 2, 1)) == 5000).all()


def test_a_rational_is_its_quotient():
  assert field.residue(3, 7) * 7 % P == 3
  assert field.residue(-1) == P - 1
  with pytest.raises(ValueError, match="has no residue"):
    field.residue(1, 3 * P)


def test_random_functions_are_uniform_and_depend_on_name_and_draw():
  oracle = field.FieldOracle(np.array([1, 2], dtype=np.uint64))
  x = np.broadcast_to(np.arange(100_000, dtype=np.uint64), (2, 100_000))
  y, z = oracle.call("exp", x), oracle.call("erf", x)
  for values in (y[0], y[1], z[0]):
    counts = np.histogram(values, bins=100, range=(0, P))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 170
  assert (y[0] != y[1]).mean() > 0.999
  assert (y != z).mean() > 0.999


def test_random_functions_of_several_arguments_tell_all_of_them():
  oracle = field.FieldOracle(np.array([1, 2], dtype=np.uint64))
  x, y, z = (draw(2, 5000) for _ in range(3))
  value = oracle.call("select", x, y, z)
  one = np.uint64(1)
  others = ((y, x, z), (x, z, y), (x ^ one, y, z), (x, y ^ one, z), (x, y, z ^ one))
  for args in others:
    assert (oracle.call("select", *args) != value).mean() > 0.999
  assert (value[0] != value[1]).mean() > 0.999 and (value < P).all()
  assert (oracle.call("select", x, y) != value).mean() > 0.999


def test_permutations_are_inverted():
  oracle = field.FieldOracle(np.array([1, 2], dtype=np.uint64))
  x = np.concatenate([draw(2, 5000), np.full((2, 1), P - 1, dtype=np.uint64)], axis=1)
  y = oracle.permute("max", x)
  assert (y < P).all() and (y != x).any()
  assert (oracle.permute("max", y, backwards=True) == x).all()


def test_maximum_is_a_commutative_monoid_and_nothing_more():
  d = domain()
  x, y, z = draw(2, 9), draw(2, 9), draw(2, 9)

  def top(a, b):
    return d.elementwise("max", a, b)

  assert (top(x, y) == top(y, x)).all()
  assert (top(top(x, y), z) == top(x, top(y, z))).all()
  assert (d.highest(x, (1,)) == top(d.highest(x[:, :4], (1,)), d.highest(x[:, 4:], (1,)))).all()
  empty = d.highest(x[:, :0], (1,))
  assert (top(empty[:, None], x) == x).all()
  assert (top(x, x) != x).any()
  assert (top(field.add(x, z), field.add(y, z)) != field.add(top(x, y), z)).any()
  assert (top(x, y) != d.elementwise("min", x, y)).any()


def test_roots_have_one_spelling():
  d = domain()
  x = draw(2, 9)
  half = d.power(x, Fraction(-1, 2))
  assert (half == d.elementwise("rsqrt", x)).all()
  assert (half == d.elementwise("recip", d.elementwise("sqrt", x))).all()
  assert (half != d.elementwise("sqrt", d.elementwise("recip", x))).any()
  assert (d.power(x, Fraction(3, 2)) == field.power(d.elementwise("sqrt", x), 3)).all()


DOMAINS = {
  "field": lambda rng: Field(2, rng),
  "free exponential": lambda rng: FreeExponential(2, rng),
  "with logarithms": lambda rng: FreeExponential(2, rng, logs=True),
  "roots": lambda rng: SquareRoots(2, rng),
  "free exponential, roots": lambda rng: FreeExponentialRoots(2, rng, logs=True),
  "exponent pair": lambda rng: ExponentPair(2, rng),
}


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("op", sorted(functions.ELEMENTWISE))
def test_every_function_means_its_term_in_every_domain(op, name):
  """In all components: also of what stands in an exponential then."""
  rng = np.random.default_rng(5)
  d = DOMAINS[name](rng)
  arity = functions.ELEMENTWISE[op].arity
  args = [NamedArray(d.random(rng, (5,)), ("k",)) for _ in range(arity)]
  inputs = {f"i{n}": a for n, a in enumerate(args)}
  value = functions.to_term(op, *(term.input_(name, ["k"]) for name in inputs))
  (want,) = interpret_terms(d, [value], inputs, {"k": 5})
  got = d.elementwise(op, *(a.data for a in args))
  assert not d.unequal(got, want.data).any()
  if name != "exponent pair" or op not in ("exp", "sigmoid"):
    assert not d.unequal(d.elementwise("exp", got), d.elementwise("exp", want.data)).any()


def test_a_quotient_by_zero_is_void_and_stays_void():
  d = domain(1)
  zero, one = np.zeros((1, 3), dtype=np.uint64), np.ones((1, 3), dtype=np.uint64)
  x = np.array([[0, 1, 2]], dtype=np.uint64)
  y = d.elementwise("recip", x)
  assert (y == VOID).tolist() == [[True, False, False]]
  for op in ("add", "mul", "max", "div"):
    assert (d.elementwise(op, zero, y) == VOID).tolist() == [[True, False, False]]
  assert (d.elementwise("exp", y) == VOID).tolist() == [[True, False, False]]
  assert d.total(y, (1,)) == VOID and d.highest(y, (1,)) == VOID
  product = d.matmul(y[:, :, None], one[:, None, :])
  assert (product == VOID).all(axis=2).tolist() == [[True, False, False]]
  assert (d.elementwise("div", one, zero) == VOID).all()


def test_the_rounded_domain_rounds_to_the_element_type():
  x = np.array([[1.0 + 2.0**-12, 1e6]])
  assert Rounded().round(x, DType.F16).tolist() == [[1.0, np.inf]]
  assert Rounded().round(x, DType.F32).tolist() == x.tolist()
  assert Float64().round(x, DType.F16).tolist() == x.tolist()
