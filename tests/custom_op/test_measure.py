"""What counts of an output on which kind of input: on hard ones where the original is what its types say."""

from functools import partial

import numpy as np
import pytest

from mirage_onnx.custom_op.compare_inputs import HARD
from mirage_onnx.custom_op.measure import KnownOriginal, Tolerances

ROWS, SIZE = 8, 64


@pytest.fixture
def want(rng):
  return rng.standard_normal((ROWS, SIZE)).astype(np.float16)


def passes(want, got, defined, kind):
  """``want``: of onnxruntime's CPU provider, in fp32; ``defined``: rounded after each node."""
  measure = Tolerances(1e-2, None)
  as_said = partial(dict, y=want.astype(np.float32)), lambda: {"y": defined}
  assert measure("y", want, want, KnownOriginal("normal 0", *as_said)).passed
  return measure("y", want, got.astype(np.float16), KnownOriginal(kind, *as_said, whole=True)).passed


@pytest.mark.parametrize("kind", [*HARD, "normal 1", "small"])
def test_where_the_original_overflows_by_its_types(want, kind):
  """Only there, and only on hard inputs, another one may."""
  defined, there, elsewhere = (want.astype(np.float32) for _ in range(3))
  defined[0], there[0], elsewhere[1] = np.nan, np.nan, np.nan
  assert passes(want, there, defined, kind) == (kind in HARD)
  assert not passes(want, elsewhere, defined, kind)
  assert not passes(want, np.full_like(defined, np.inf), defined, kind)


@pytest.mark.parametrize("kind", [*HARD, "normal 1"])
def test_where_the_original_is_far_from_itself(want, rng, kind):
  """Roundings that are another answer: as far as the original's own are, no further."""

  def off(share):
    return want.astype(np.float32) * (1 + share * rng.standard_normal(want.shape).astype(np.float32))

  assert passes(want, off(0.03), off(0.03), kind)
  assert not passes(want, off(0.04), off(0.0), kind)
  assert not passes(want, off(0.5), off(0.04), kind)
  assert not passes(want, -want, off(0.04), kind)


def test_of_many_short_rows_some_are_far_from_the_original(rng):
  """Which of 20,000 rows it is, is luck: what a convolution leaves in a few of them is rounding errors."""
  exact = (rng.standard_normal((20_000, 4)) * rng.random((20_000, 1)) ** 4).astype(np.float32)
  noise = lambda size: (exact + size * rng.standard_normal(exact.shape)).astype(np.float16)  # noqa: E731
  measure, defined = Tolerances(1e-2, None), noise(3e-4).astype(np.float32)

  def passes(got, whole=True):
    said = (lambda: {"y": exact}), (lambda: {"y": defined})
    known = KnownOriginal("normal 1", *said, whole=whole)
    return measure("y", exact.astype(np.float16), got, known).passed

  right = noise(3e-4)
  assert passes(right) and not passes(right, whole=False)
  assert not passes(noise(9e-4))
  largest, wrong = np.argmax(np.abs(exact).sum(1)), right.copy()
  wrong[largest] = wrong[largest, ::-1]
  assert not passes(wrong)


def test_integers_are_those_of_the_original_by_its_definition():
  """Of 40 numbers that are equal in 16 bits the first is the largest, whatever they were in fp32."""
  measure, want = Tolerances(1e-2, None), np.array([448, 3])
  shaken = lambda: iter([{"y": np.array([17, 3])}, {"y": np.array([90, 3])}])  # noqa: E731

  def passes(got, defined):
    known = KnownOriginal("large", as_defined=lambda: defined, shaken=shaken)
    return measure("y", want, np.array(got), known).passed

  assert passes([5, 3], {"y": np.array([5, 3])}) and passes([17, 3], {"y": np.array([5, 3])})
  assert not passes([5, 3], {}) and not passes([6, 3], {"y": np.array([5, 3])})
  assert not passes([5, 4], {"y": np.array([5, 3])})


def test_rows_are_sized_by_all_normal_inputs(want):
  """The first one shows nothing where a mask hides nothing, and large ones are no measure."""
  measure, wide = Tolerances(1e-2, None), want.astype(np.float32)
  for kind, x in (("normal 0", 0 * wide), ("normal 1", wide), ("large", 1e3 * wide)):
    assert measure("y", x, x, KnownOriginal(kind)).passed
  rest = np.full_like(wide, 1e-6)
  assert measure("y", 0 * wide, rest, KnownOriginal("constant_rows")).passed
  assert not measure("y", 0 * wide, 1e3 * rest, KnownOriginal("constant_rows")).passed
