"""Delta debugging: what comes out still fails, and nothing less of it does."""

from itertools import combinations

import pytest

from mirage_onnx.reduction.shrink import shrink


@pytest.mark.parametrize("wanted", [{0}, {19}, {7}, {3, 11}, {0, 9, 19}, set(range(20)), {4, 5, 6, 7}])
def test_it_finds_what_is_needed(wanted):
  asked = []

  def holds(part):
    asked.append(part)
    return wanted <= set(part)

  assert set(shrink(range(20), holds)) == wanted
  assert len(asked) == len(set(asked))  # nothing is asked twice
  assert all(list(part) == sorted(part) for part in asked)


def test_of_no_part_less_is_it_true(rng):
  """Also where what holds is not what contains something."""
  for _ in range(30):
    sets = [frozenset(rng.choice(12, size=rng.integers(1, 5), replace=False)) for _ in range(4)]

    def holds(part, sets=sets):
      return any(s <= set(part) for s in sets)

    found = shrink(tuple(range(12)), holds)
    assert holds(found)
    assert not any(holds(part) for part in combinations(found, len(found) - 1) if part)


def test_the_ends():
  assert shrink((), lambda part: True) == ()
  assert shrink(("a",), lambda part: True) == ("a",)
  assert shrink(("a",), lambda part: True, least=0) == ()
  assert shrink("abcd", lambda part: True) in (("a",), ("b",), ("c",), ("d",))
  assert shrink("abcd", lambda part: len(part) == 4) == tuple("abcd")
