"""What programs were refused for, so that plans with the same in them are given up.

A refusal by the range check names a value. The kernel that it is in is the same in every plan. So
is a value that the region does not compute, however it is spelled; one that it computes is in range
there, and out of range where it is computed of the same heavy values. Exponentials that the region
has not are to blame together. Each is an inference, and counted as such.
"""

from collections.abc import Iterable

from mirage_onnx.errors import Rejection
from mirage_onnx.superopt.units import Built


class Blame:
  """What has overflowed so far.

  ``own``: the classes of all values of the region, ``exponentials``: those of its exponentials.
  """

  def __init__(self, own: frozenset[int], exponentials: frozenset[int]) -> None:
    self._own, self._exponentials = own, exponentials
    self._powers = list[frozenset[int]]()
    self._unsafe = set[str | tuple[int, ...]]()

  def learn(self, verdict: Rejection, kernels: tuple[Built, ...]) -> None:
    """Take note of why a program of these kernels, the last one first, was refused."""
    powers = _powers(kernels) - self._exponentials
    bare = not any(b.maxima for b in kernels)
    if powers and (verdict.code == "SHIFT_NOT_MAX" or (verdict.code == "RANGE" and bare)):
      self._powers.append(powers)
    if verdict.code != "RANGE":
      return
    for i, b in enumerate(reversed(kernels)):
      if f"k{i}" in verdict.nodes:
        self._unsafe.add(b.text)
        named = (r for r in b.rounded if f"%{r[0]} of kernel k{i}" in verdict.nodes)
        self._unsafe.update(map(self._value, named))

  def reason(self, kernels: Iterable[Built]) -> str | None:
    """Why no plan with these kernels is worth a proof, or None."""
    kernels = tuple(kernels)
    powers = _powers(kernels)
    if any(own <= powers for own in self._powers):
      return "an exponential that has overflowed in another program"
    if any(b.text in self._unsafe for b in kernels):
      return "a kernel that has overflowed in another program"
    if any(self._value(r) in self._unsafe for b in kernels for r in b.rounded):
      return "a value that has overflowed in another program"
    return None

  def _value(self, rounded: tuple[int, ...]) -> tuple[int, ...]:
    return rounded[1:] if rounded[1] in self._own else rounded[1:2]


def _powers(kernels: Iterable[Built]) -> frozenset[int]:
  return frozenset(c for b in kernels for c in b.exponentials)
