"""The exact minimum against all choices, on random problems of every shape."""

from itertools import combinations, product

import pytest

from mirage_onnx.lower.min_sum import MinSum, minimise


def random_problem(rng, variables, density):
  sizes = rng.integers(1, 4, variables)
  single = tuple(tuple(int(c) for c in rng.integers(0, 6, n)) for n in sizes)
  pairs = {
    (u, v): tuple(tuple(int(c) for c in rng.integers(0, 6, sizes[v])) for _ in range(sizes[u]))
    for u, v in combinations(range(variables), 2)
    if rng.random() < density
  }
  return MinSum(single, pairs)


@pytest.mark.parametrize("density", [0.1, 0.4, 1.0], ids=["sparse", "some", "all"])
def test_no_choice_is_cheaper(density, rng):
  branched = 0
  for variables in (1, 2, 3, 5, 6, 7):
    for _ in range(12):
      problem = random_problem(rng, variables, density)
      least = min(problem.cost(c) for c in product(*(range(len(s)) for s in problem.single)))
      assert problem.cost(minimise(problem)) == least
      assert minimise(problem) == minimise(problem)
      branched += len(problem.pairs) == variables * (variables - 1) // 2 > 3
  assert branched or density < 1.0


def test_nothing_to_choose():
  assert minimise(MinSum((), {})) == ()


def test_of_equals_the_first():
  assert minimise(MinSum(((1, 1), (0, 0, 0)), {})) == (0, 0)
