"""What one refusal says of other plans: kernels, values and exponentials that overflowed."""

from types import SimpleNamespace as Space

import pytest

from mirage_onnx.errors import Rejection
from mirage_onnx.superopt.blame import Blame
from mirage_onnx.superopt.units import Built

OWN, FOREIGN = 7, 9


def built(text, *rounded, powers=(), ops=()):
  kernel = Space(ops=[Space(op=o) for o in ops])
  return Built(1.0, text, kernel, (), (), frozenset(powers), rounded)


@pytest.fixture
def blame():
  return Blame(frozenset({OWN, 1}), frozenset({1}))


@pytest.mark.parametrize(
  ("rounded", "also", "same"),
  [
    # One that the region computes: only where it is computed of the same values.
    ((4, OWN, 2, 3), (8, OWN, 2, 3), True),
    ((4, OWN, 2, 3), (8, OWN, 2), False),
    # One that the region does not compute: however it is.
    ((4, FOREIGN, 2, 3), (8, FOREIGN, 5), True),
    ((4, FOREIGN, 2, 3), (8, FOREIGN + 1, 2, 3), False),
    # Another value of the kernel is named.
    ((5, FOREIGN, 2, 3), (5, FOREIGN, 2, 3), False),
  ],
)
def test_values(blame, rounded, also, same):
  kernels = (built("b", rounded), built("a"))  # the last one first: b is k1
  for code, learned in (("NUMERICS", False), ("RANGE", True)):
    blame.learn(Rejection(code, "said so", ("k1", "%4 of kernel k1")), kernels)
    value = "a value that has overflowed in another program"
    assert blame.reason([built("c", also)]) == (value if same and learned else None)
    kernel = "a kernel that has overflowed in another program"
    assert blame.reason([built("b")]) == (kernel if learned else None)
    assert blame.reason([built("a")]) is None


@pytest.mark.parametrize(
  ("code", "ops", "learned"),
  [("RANGE", (), 1), ("RANGE", ("rmax",), 0), ("SHIFT_NOT_MAX", ("rmax",), 1), ("NUMERICS", (), 0)],
)
def test_exponentials(blame, code, ops, learned):
  """Those that the region has not, all of them together."""
  blame.learn(Rejection(code, "said so", ("k0",)), (built("a", powers=(1, 5, 6), ops=ops),))
  reason = blame.reason([built("b", powers=(5,)), built("c", powers=(6,))])
  assert reason == ("an exponential that has overflowed in another program" if learned else None)
  assert blame.reason([built("b", powers=(1, 5))]) is None
