"""Numbers for the names of dimensions, so that shapes which only a run knows are lowered as others.

Every name gets a prime of its own, larger than any dimension of the model: sizes are equal if their
numbers are, and a number says which names it is a product of. Equal names are equal sizes, as ONNX
has it. A name that stands for what a node computes (a Reshape to -1) gets that number. No number is
ever shown or stored in a kernel: ``match`` puts sizes in their place.
"""

from collections.abc import Iterable, Sequence
from itertools import count

from mirage_onnx.ir.program import Dim, Tensor, symbols_of

#: Least number of a name, and the largest dimension of a model beside which names get one.
FIRST, LARGEST = 1 << 20, 1 << 32


class Symbols:
  """Name -> number, of all names met so far; ``tensors`` are those of the model."""

  def __init__(self, tensors: Iterable[Tensor]) -> None:
    largest = max((d for t in tensors for d in t.shape or () if isinstance(d, int)), default=1)
    self._fresh = filter(_is_prime, count(max(FIRST, largest + 1)))
    #: Whether dimensions with names can be lowered at all.
    self.usable = largest <= LARGEST
    self.numbers: dict[str, int] = {}
    #: The primes and their names; other names are products of these.
    self.names: dict[int, str] = {}

  def known(self, t: Tensor) -> Tensor:
    """``t`` with numbers in place of the names that have one."""
    if t.shape is None or not self.usable:
      return t
    return Tensor(t.name, t.dtype, tuple(map(self._number, t.shape)))

  def numbered(self, t: Tensor) -> Tensor:
    """``t`` with numbers only."""
    if self.usable:
      for d in t.shape or ():
        if isinstance(d, str) and d not in self.numbers:
          self.numbers[d] = prime = next(self._fresh)
          self.names[prime] = d
    return self.known(t)

  def bind(self, name: str, number: int) -> None:
    """Say what a new name stands for."""
    self.numbers.setdefault(name, number)

  def named(self, t: Tensor, like: Tensor) -> Tensor:
    """``t`` with names in place of numbers: those of ``like``, or new ones."""
    given = like.shape or ()
    dims: list[Dim] = []
    for axis, n in enumerate(t.shape or ()):
      old = given[axis] if axis < len(given) else None
      if isinstance(n, str) or not self.is_symbolic(n):
        dims.append(n)
        continue
      name = old if isinstance(old, str) and self._number(old) == n else self._name(n)
      if name is None:
        self.numbers[name := f"{t.name}:{axis}"] = n
      dims.append(name)
    return Tensor(t.name, t.dtype, tuple(dims))

  def is_symbolic(self, n: int) -> bool:
    return n >= FIRST and bool(symbols_of(n, self.names)[1])

  def text(self, n: Dim) -> str:
    """A number as the names that it is a product of."""
    if isinstance(n, str):
      return n
    rest, found = symbols_of(n, self.names)
    names = [self.names[p] for p in found]
    return "*".join([*([] if rest == 1 and names else [str(rest)]), *names])

  def show(self, shape: Sequence[Dim]) -> str:
    return "x".join(map(self.text, shape)) or "scalar"

  def _number(self, d: Dim) -> Dim:
    return self.numbers.get(d, d) if isinstance(d, str) else d

  def _name(self, n: int) -> str | None:
    return next((k for k, v in self.numbers.items() if v == n), None)


def _is_prime(n: int) -> bool:
  return n % 2 == 1 and all(n % d for d in range(3, int(n**0.5) + 1, 2))
