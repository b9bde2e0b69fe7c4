"""Arithmetic in Z_p and Z_q, and random functions on it: where equivalence is tested.

p = 2 q + 1 with p and q prime is the largest below 2^31 for which every prime up to 61 is a square:
a positive rational made from those is a square and its negative is not, as if squares were the
positive numbers (``square_root``). omega ** s is defined for s in Z_q. Residues are uint64, so a
product fits.

A value that does not exist (a quotient with divisor 0) is ``VOID``, and everything computed from it
is void. Callers look for voids only after one came up.

exp, erf, roots, ... are *random functions*: a keyed 64-bit mixing hash of the function's name and
the exact argument, with fresh keys in every draw. max(a, b) is f^-1(f(a) + f(b)) for a random
permutation f of Z_p.
"""

import hashlib
from functools import cache

import numpy as np

P = 1_932_740_039
Q = 966_370_019
#: A generator of the squares of Z_p: q is prime, so every square but 1 is one.
OMEGA = 4
VOID = np.uint64(1 << 63)

#: Up to so many values one operation takes less than three.
FEW = 512

_P = np.uint64(P)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def _mod(x: np.ndarray, m: int) -> np.ndarray:
  """``x % m``. Of many NumPy divides by a number as a product, in a third of the time of a remainder."""
  if x.size <= FEW:
    few: np.ndarray = x % np.uint64(m)
    return few
  result: np.ndarray = x // np.uint64(m)
  result *= np.uint64(m)
  np.subtract(x, result, out=result)  # in place: new memory costs more than what is computed
  return result


def add(x: np.ndarray, y: np.ndarray, m: int = P) -> np.ndarray:
  return _mod(x + y, m)


def sub(x: np.ndarray, y: np.ndarray, m: int = P) -> np.ndarray:
  return _mod(x + (np.uint64(m) - y), m)


def mul(x: np.ndarray, y: np.ndarray, m: int = P) -> np.ndarray:
  return _mod(x * y, m)


def total(x: np.ndarray, axis: tuple[int, ...], m: int = P) -> np.ndarray:
  """Sum over ``axis``, reduced once: up to 2^33 residues fit into 64 bits."""
  sums: np.ndarray = x.sum(axis=axis, dtype=np.uint64)
  return _mod(sums, m)


def matmul(x: np.ndarray, y: np.ndarray, m: int = P) -> np.ndarray:
  """Stacks of matrices [..., m, k] times [..., k, n].

  Small ones as products and one sum. Large ones as 16-bit halves in float64, where a sum of
  k < 2^21 products below 2^32 is exact.
  """
  if x.size * y.shape[-1] <= 1 << 14:
    products = _mod(x[..., :, :, None] * y[..., None, :, :], m)
    return total(products, (-2,), m)
  low, shift = np.uint64(0xFFFF), np.uint64(16)
  halves = [((v >> shift).astype(float), (v & low).astype(float)) for v in (x, y)]
  (x1, x0), (y1, y0) = halves
  high = _mod(np.matmul(x1, y1).astype(np.uint64), m)
  middle = _mod((np.matmul(x1, y0) + np.matmul(x0, y1)).astype(np.uint64), m)
  rest = np.matmul(x0, y0).astype(np.uint64)
  return _mod((_mod((high << shift) + middle, m) << shift) + rest, m)


def power(x: np.ndarray, n: int, m: int = P) -> np.ndarray:
  """``x ** n`` for n >= 0."""
  result = np.ones_like(x)
  while n:
    if n & 1:
      result = mul(result, x, m)
    n >>= 1
    if n:
      x = mul(x, x, m)
  return result


def inverse(x: np.ndarray, m: int = P) -> np.ndarray:
  """x^(m-2), which is 1/x except at 0; callers turn 0 into VOID."""
  return power(x, m - 2, m)


def product(x: np.ndarray) -> np.ndarray:
  """The product over the first axis, halving it until one factor is left."""
  if not len(x):
    return np.ones(x.shape[1:], dtype=np.uint64)
  while len(x) > 1:
    half = len(x) // 2
    x = np.concatenate([mul(x[:half], x[half : 2 * half]), x[2 * half :]])
  return np.asarray(x[0])


@cache
def _omega_tables() -> tuple[np.ndarray, np.ndarray]:
  """omega ** n and omega ** (n << 15) for n < 2^15."""
  tables = []
  for base in (OMEGA, pow(OMEGA, 1 << 15, P)):
    table = np.ones(1, dtype=np.uint64)
    while len(table) < 1 << 15:
      step = np.full(1, pow(base, len(table), P), dtype=np.uint64)
      table = np.concatenate([table, mul(table, step)])
    tables.append(table)
  return tables[0], tables[1]


def omega_power(s: np.ndarray) -> np.ndarray:
  """omega ** s for exponents in Z_q."""
  low, high = _omega_tables()
  return mul(low[s & np.uint64(0x7FFF)], high[s >> np.uint64(15)])


def is_square(x: np.ndarray) -> np.ndarray:
  """Euler's criterion; 0 counts as a square."""
  return np.asarray(power(x, Q) <= 1)


def square_root(x: np.ndarray) -> np.ndarray:
  """x^((p+1)/4): of the two roots of a square the one that is a square itself."""
  return power(x, (P + 1) // 4)


def residue(numerator: int, denominator: int = 1, m: int = P) -> int:
  """The residue of an exact rational.

  Raises:
      ValueError: the modulus divides the denominator.
  """
  if denominator % m == 0:
    raise ValueError(f"the constant {numerator}/{denominator} has no residue modulo {m}")
  return numerator % m * pow(denominator, -1, m) % m


def _mix(h: np.ndarray) -> np.ndarray:
  """The finalizer of splitmix64: a bijection of 64 bits in which every bit depends on all."""
  h = (h ^ (h >> _S30)) * _M1
  h = (h ^ (h >> _S27)) * _M2
  result: np.ndarray = h ^ (h >> _S31)
  return result


class FieldOracle:
  """Random functions and permutations of Z_p, one set per draw (the leading array axis)."""

  def __init__(self, keys: np.ndarray) -> None:
    self._keys = keys
    self._named: dict[str, np.ndarray] = {}

  def key(self, name: str) -> np.ndarray:
    """The keys of ``name``, one per draw."""
    if name not in self._named:
      digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
      self._named[name] = _mix(self._keys ^ np.uint64(int.from_bytes(digest, "little")))
    return self._named[name]

  def call(self, name: str, *args: np.ndarray, m: int = P) -> np.ndarray:
    """The random function ``name`` of all ``args``, with values below ``m``."""
    key = self.key(name).reshape(-1, *[1] * (args[0].ndim - 1))
    h = _mix(args[0] + key)
    for x in args[1:]:
      h = _mix((h ^ key) + x)
    return _mod(_mix(h ^ key), m)

  def permute(self, name: str, x: np.ndarray, backwards: bool = False) -> np.ndarray:
    """The random permutation ``name`` of Z_p, or its inverse.

    Four Feistel rounds on 31 bits, repeated where the result is not below p (1 in 10).
    """
    keys = [self.key(f"{name}{i}") for i in range(4)]
    column = [k.reshape(-1, *[1] * (x.ndim - 1)) for k in keys]
    y = _feistel(column, x, backwards)
    outside = np.nonzero(y >= _P)
    while len(outside[0]):
      again = _feistel([k[outside[0]] for k in keys], y[outside], backwards)
      y[outside] = again
      far = again >= _P
      outside = tuple(i[far] for i in outside)
    return y


def _feistel(keys: list[np.ndarray], x: np.ndarray, backwards: bool) -> np.ndarray:
  shift, low, high = np.uint64(15), np.uint64(0x7FFF), np.uint64(0xFFFF)
  left, right = x >> shift, x & low
  for i in (3, 2, 1, 0) if backwards else (0, 1, 2, 3):
    if i % 2:
      right = right ^ (_mix(left + keys[i]) & low)
    else:
      left = left ^ (_mix(right + keys[i]) & high)
  return (left << shift) | right
