"""One random test: what it compares, and how it says what differs."""

import numpy as np
from raw_programs import C, X, graph_of, region_of, total

from mirage_onnx.verify.domain import Field
from mirage_onnx.verify.random_test import Agreement, Difference, compare, random_inputs
from mirage_onnx.verify.reduced import reduced_instantiation

DRAWS = 3


def compared(want, got):
  region, graph = region_of(want), graph_of(got)
  sizes = reduced_instantiation(graph, region.extents)
  rng = np.random.default_rng(0)
  domain = Field(DRAWS, rng)
  inputs = random_inputs(region, domain, sizes.extents, rng)
  return compare(region, graph, sizes, domain, inputs)


def test_equal_programs_agree_in_every_draw():
  assert compared(total(X * C), C * total(X)) == Agreement(DRAWS)


def test_a_term_may_vary_over_fewer_axes_than_its_output():
  assert compared(0 * X + C * 0, X * 0) == Agreement(DRAWS)


def test_a_difference_names_an_element_that_differs():
  found = compared(X * C, X * C * C)
  assert isinstance(found, Difference)
  assert found.draw == 0 and found.element == (0, 0) and found.place == "o[i=0, j=0]"
  assert found.differing == found.compared
  x, c = (found.domain.residues(found.inputs[n].data)[0] for n in ("x", "c"))
  assert found.want == int(x[0, 0]) * int(c[0]) % (2**64) % 1_932_740_039
  assert f"is {found.got} and should be {found.want} in the field" in found.reason


def test_only_what_exists_in_both_is_compared():
  assert compared(X, X / (X - X)) == Agreement(0)
  assert compared(X, X + 0 / X) == Agreement(DRAWS)
