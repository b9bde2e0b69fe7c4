"""Arithmetic in Z_p and random functions on it: where equivalence is tested.

p = 2^31 - 61 is a prime with p = 3 (mod 4). It is not 2^31 - 1, because there 2^31 = 1 and the
largest int32 is 0, and programs hold such constants. Residues are uint64, so a product of two fits.

A value that does not exist (a quotient with divisor 0) is ``VOID``: no number is made up for it,
and everything computed from it is void. Callers look for voids only after one came up.

exp, erf, roots, ... are *random functions*: a keyed 64-bit mixing hash of the function's name and
the exact argument, with fresh keys in every draw. An identity that holds for a random function
holds for every function, hence for the real one; the converse is not needed for soundness.

max must also be associative and commutative, or no program that takes a maximum tile by tile
equals the original. So max(a, b) = q^-1(q(a) + q(b)) for a random permutation q of Z_p: it obeys
these two laws and (but for chance) no other, in particular not max(a, a) = a.
"""

from __future__ import annotations

import hashlib

import numpy as np

P = 2_147_483_587
VOID = np.uint64(1 << 63)

_P = np.uint64(P)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def _mod(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = x % _P
    return result


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _mod(x + y)


def sub(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _mod(x + (_P - y))


def mul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _mod(x * y)


def total(x: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """Sum over ``axis``, reduced once: up to 2^33 residues fit into 64 bits."""
    sums: np.ndarray = x.sum(axis=axis, dtype=np.uint64)
    return _mod(sums)


def matmul(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Stacks of matrices [..., m, k] times [..., k, n].

    Small ones as products and one sum. Large ones as 16-bit halves in float64, where a sum of
    k < 2^21 products below 2^32 is exact.
    """
    if x.size * y.shape[-1] <= 1 << 14:
        products = (x[..., :, :, None] * y[..., None, :, :]) % _P
        return total(products, (-2,))
    low = np.uint64(0xFFFF)
    halves = [((v >> np.uint64(16)).astype(float), (v & low).astype(float)) for v in (x, y)]
    (x1, x0), (y1, y0) = halves
    high = np.matmul(x1, y1).astype(np.uint64) % _P
    middle = (np.matmul(x1, y0) + np.matmul(x0, y1)).astype(np.uint64) % _P
    rest = np.matmul(x0, y0).astype(np.uint64)
    shift = np.uint64(1 << 16)
    return _mod(_mod(high * shift + middle) * shift + rest)


def power(x: np.ndarray, n: int) -> np.ndarray:
    """``x ** n`` for n >= 0."""
    result = np.ones_like(x)
    while n:
        if n & 1:
            result = mul(result, x)
        n >>= 1
        if n:
            x = mul(x, x)
    return result


def inverse(x: np.ndarray) -> np.ndarray:
    """x^(p-2), which is 1/x except at 0; callers turn 0 into VOID."""
    return power(x, P - 2)


def residue(numerator: int, denominator: int = 1) -> int:
    """The residue of an exact rational.

    Raises:
        ValueError: p divides the denominator.
    """
    if denominator % P == 0:
        raise ValueError(f"the constant {numerator}/{denominator} has no residue modulo {P}")
    return numerator % P * pow(denominator, -1, P) % P


def _mix(h: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: a bijection of 64 bits in which every bit depends on all."""
    h = (h ^ (h >> _S30)) * _M1
    h = (h ^ (h >> _S27)) * _M2
    result: np.ndarray = h ^ (h >> _S31)
    return result


class Oracle:
    """Random functions and permutations of Z_p, one set per draw (the leading array axis)."""

    def __init__(self, keys: np.ndarray) -> None:
        self._keys = keys
        self._named: dict[str, np.ndarray] = {}

    def key(self, name: str, ndim: int) -> np.ndarray:
        """The keys of ``name``, one per draw, shaped to meet an array of ``ndim`` dimensions."""
        if name not in self._named:
            digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
            self._named[name] = _mix(self._keys ^ np.uint64(int.from_bytes(digest, "little")))
        return self._named[name].reshape(-1, *[1] * (ndim - 1))

    def call(self, name: str, x: np.ndarray) -> np.ndarray:
        """The random function ``name`` at x."""
        key = self.key(name, x.ndim)
        return _mod(_mix(_mix(x + key) ^ key))

    def permute(self, name: str, x: np.ndarray, backwards: bool = False) -> np.ndarray:
        """The random permutation ``name`` of Z_p, or its inverse.

        Four Feistel rounds on 31 bits, repeated where the result is not below p (61 of 2^31).
        """
        y = self._rounds(name, x, backwards)
        while (y >= _P).any():
            y = np.where(y >= _P, self._rounds(name, y, backwards), y)
        return y

    def _rounds(self, name: str, x: np.ndarray, backwards: bool) -> np.ndarray:
        shift, low, high = np.uint64(15), np.uint64(0x7FFF), np.uint64(0xFFFF)
        left, right = x >> shift, x & low
        for i in (3, 2, 1, 0) if backwards else (0, 1, 2, 3):
            key = self.key(f"{name}{i}", x.ndim)
            if i % 2:
                right = right ^ (_mix(_mix(left + key) ^ key) & low)
            else:
                left = left ^ (_mix(_mix(right + key) ^ key) & high)
        return (left << shift) | right
