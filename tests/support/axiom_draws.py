"""What a row of the axiom table leaves open, drawn; and whether its sides are equal then."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from axiom_formulas import with_exponents
from axiom_values import random_numbers, same
from hypothesis import strategies as st

from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.exponent_pair import ExponentPair

#: What a named exponent may be: the laws of roots do not hold for random functions.
EXPONENTS = tuple(Fraction(n) for n in (-2, -1, 2, 3))
#: Axis -> its extent, the tile of a block, the elements of an iteration.
Sizes = dict[str, tuple[int, int, int]]


def equal(i, sizes, seed):
  """Whether both sides are equal over the field, and over the real numbers.

  In the field exp(a + b) = exp(a) exp(b), and functions and maxima are random otherwise.
  """
  found = []
  domains = [ExponentPair(2, np.random.default_rng(seed)), Float64()]
  for domain in domains:
    rng = np.random.default_rng(seed)
    numbers = random_numbers(domain, (i.lhs, i.rhs), i.axes, sizes, rng)
    found.append(same(domain, numbers.value(i.lhs), numbers.value(i.rhs)))
  return found[0], found[1]


def axes_of_instance(i):
  found = {a for axes in i.axes.values() for a in axes} | set(i.means.values())
  return sorted(a for a in found if not a.endswith("'"))


@st.composite
def instances(draw, row):
  """An instance that the condition lets through, with names of axes and exponents."""
  i = draw(st.sampled_from(row.holding))
  used = axes_of_instance(i)
  names = draw(st.permutations([f"a{n}" for n in range(len(used))]))
  i = i.renamed(dict(zip(used, names, strict=True)))
  wanted = sorted({*i.lhs.exponents, *i.rhs.exponents})
  chosen = {name: draw(st.sampled_from(EXPONENTS)) for name in wanted}
  lhs, rhs = (with_exponents(f, chosen) for f in (i.lhs, i.rhs))
  return replace(i, lhs=lhs, rhs=rhs)


@st.composite
def sizes(draw, i):
  found = {}
  for a in axes_of_instance(i):
    extent = draw(st.sampled_from((1, 2, 3, 5, 7)))
    found[a] = (extent, draw(st.integers(1, extent)), draw(st.integers(1, extent)))
  return found
