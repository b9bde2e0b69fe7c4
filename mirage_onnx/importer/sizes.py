"""Sizes as a graph computes them: polynomials over the names of its inputs' dimensions.

A name is a number of 0 or more that only a run knows (of sizes of 0, which make a Reshape take
those of its input, no more is claimed than onnx's own inference does). What is compared is compared
for every run: where that depends on the run, a comparison raises ``UnsettledError``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: Terms of a polynomial, and names in one of its products, beyond which nothing is followed.
MOST_TERMS, MOST_FACTORS = 16, 8


class UnsettledError(ValueError):
  """Two sizes of which a run decides how they compare."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeSum:
  """A polynomial that is no number: products of names (sorted), and how often each counts."""

  terms: tuple[tuple[tuple[str, ...], int], ...]

  @classmethod
  def of(cls, name: str) -> SizeSum:
    return cls((((name,), 1),))

  @property
  def name(self) -> str | None:
    """The name that this size is, if it is one."""
    match self.terms:
      case (((name,), 1),):
        return name
    return None

  @property
  def is_sum(self) -> bool:
    return len(self.terms) > 1

  def __str__(self) -> str:
    """As sympy writes it, and so torch's exporter: ``2*past + seq + 1``."""
    parts = []
    for names, factor in sorted(self.terms, key=lambda t: (not t[0], t[0])):
      product = "*".join(names)
      size = abs(factor)
      text = str(size) if not names else product if size == 1 else f"{size}*{product}"
      parts.append(("- " if factor < 0 else "+ ") + text)
    text = " ".join(parts)
    return text[2:] if text.startswith("+ ") else f"-{text[2:]}"

  def __add__(self, other: object) -> SizeSum | int:
    return _made(_sum(_terms(self), _terms(other)))

  __radd__ = __add__

  def __neg__(self) -> SizeSum | int:
    return self * -1

  def __sub__(self, other: object) -> SizeSum | int:
    return self + _made(_scaled(_terms(other), -1))

  def __rsub__(self, other: object) -> SizeSum | int:
    return _made(_sum(_terms(other), _scaled(_terms(self), -1)))

  def __mul__(self, other: object) -> SizeSum | int:
    found: dict[tuple[str, ...], int] = {}
    for names, factor in _terms(self).items():
      for more, by in _terms(other).items():
        product = tuple(sorted((*names, *more)))
        found[product] = found.get(product, 0) + factor * by
    return _made(found)

  __rmul__ = __mul__

  def __floordiv__(self, other: object) -> SizeSum | int:
    return divided(self, other)

  def __rfloordiv__(self, other: object) -> SizeSum | int:
    return divided(other, self)

  def __eq__(self, other: object) -> bool:
    return _sign(self, other) == 0

  def __ne__(self, other: object) -> bool:
    return _sign(self, other) != 0

  def __lt__(self, other: object) -> bool:
    return not at_most(other, self, settled=True)

  def __gt__(self, other: object) -> bool:
    return not at_most(self, other, settled=True)

  def __le__(self, other: object) -> bool:
    return at_most(self, other, settled=True)

  def __ge__(self, other: object) -> bool:
    return at_most(other, self, settled=True)

  __hash__ = None  # type: ignore[assignment]  # sizes are no keys: that they are equal may be unsettled


@dataclass(frozen=True, slots=True, eq=False)
class Capped:
  """The less of a number (1 or more) and a size: what a slice of a table of positions has."""

  number: int
  size: SizeSum


def divided(a: object, b: object) -> SizeSum | int:
  """``a / b`` where nothing is left over.

  Raises:
      UnsettledError: something is, or may be.
  """
  match list(_terms(b).items()):
    case [(names, factor)] if factor > 0:
      found = {}
      for product, times in _terms(a).items():
        rest = Counter(product)
        rest.subtract(names)
        if times % factor or min(rest.values(), default=0) < 0:
          raise UnsettledError("a division")
        found[tuple(sorted(rest.elements()))] = times // factor
      return _made(found)
  raise UnsettledError("a division")


def same(a: object, b: object) -> bool:
  """Whether two sizes are the same polynomial."""
  return _terms(a) == _terms(b)


def at_most(a: object, b: object, *, settled: bool = False) -> bool:
  """Whether ``a <= b`` in every run.

  Raises:
      UnsettledError: with ``settled``, where some run may have it and another not.
  """
  left = _sum(_terms(b), _scaled(_terms(a), -1))
  if all(n >= 0 for n in left.values()):
    return True
  if settled and not (all(n <= 0 for n in left.values()) and left.get((), 0) < 0):
    raise UnsettledError("a comparison")
  return False


def is_count(a: object) -> bool:
  """Whether ``a`` is 0 or more in every run."""
  return isinstance(a, (int, SizeSum)) and at_most(0, a)


def _sign(a: object, b: object) -> int:
  left = _sum(_terms(a), _scaled(_terms(b), -1))
  if not left:
    return 0
  for sign in (1, -1):
    if all(n * sign > 0 for n in left.values()) and () in left:
      return sign
  raise UnsettledError("a comparison")


def _terms(a: object) -> Mapping[tuple[str, ...], int]:
  if isinstance(a, SizeSum):
    return dict(a.terms)
  if isinstance(a, int):
    return {(): int(a)} if a else {}
  raise UnsettledError(f"{type(a).__name__} is no size")


def _sum(a: Mapping[tuple[str, ...], int], b: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
  found = {names: a.get(names, 0) + b.get(names, 0) for names in (*a, *(n for n in b if n not in a))}
  return {names: n for names, n in found.items() if n}


def _scaled(a: Mapping[tuple[str, ...], int], by: int) -> dict[tuple[str, ...], int]:
  return {names: n * by for names, n in a.items()}


def _made(terms: Mapping[tuple[str, ...], int]) -> SizeSum | int:
  found = {names: n for names, n in terms.items() if n}
  if not found:
    return 0
  if len(found) > MOST_TERMS or any(len(names) > MOST_FACTORS for names in found):
    raise UnsettledError("a long sum")
  if any(abs(n) >= 1 << 62 for n in found.values()):
    raise UnsettledError("a large number")
  if list(found) == [()]:
    return found[()]
  return SizeSum(tuple(sorted(found.items())))


def product(sizes: Iterable[SizeSum | int]) -> SizeSum | int:
  found: SizeSum | int = 1
  for s in sizes:
    found = found * s
  return found
