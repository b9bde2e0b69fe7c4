"""Boxes of tensors: where their elements lie, in any order of dims that they can be stored in."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_kernel_run import boxed

from mirage_onnx.errors import MirageError
from mirage_onnx.ir import (
  DType,
  KTensor,
  Region,
  RegionTensor,
  Tensor,
  UGraph,
  View,
  Window,
  dim_permutation,
  in_order,
  parse_ugraph,
  print_ugraph,
)


@st.composite
def boxes(draw):
  """A box of a tensor; of some dims it has one element, and two whole ones may be one axis."""
  shape, starts, fulls, dims, axis = [], [], [], [], 0
  for _ in range(draw(st.integers(1, 4))):
    full = draw(st.integers(1, 5))
    start = draw(st.integers(0, full - 1))
    n = draw(st.integers(1, full - start))
    again = n == full > 1 and dims and dims[-1] and shape[-1] == fulls[-1]
    axis += not (again and draw(st.booleans()))
    shape, starts, fulls = [*shape, n], [*starts, start], [*fulls, full]
    dims.append((f"a{axis}",) if n > 1 else ())
  source = Tensor("w", DType.F32, tuple(fulls))
  axes = tuple(dict.fromkeys(a for d in dims for a in d))
  tensor = Tensor("part", DType.F32, tuple(shape))
  view = View(source, tuple(starts), tuple(fulls))
  return RegionTensor("i0", DType.F32, axes, tensor, True, tuple(dims), view)


def region(x):
  sizes = dict.fromkeys(x.axes, 1)
  for held, n in zip(x.dims, x.tensor.shape, strict=True):
    sizes |= {a: sizes[a] * n for a in held}
  return Region((), (), {}, (x,), (), (), sizes)


@given(boxes(), st.randoms())
def test_elements_of_a_stored_box(x, random):
  own = region(x)
  axes = tuple(random.sample(x.axes, len(x.axes)))
  data = np.arange(prod(x.source.shape)).reshape(x.source.shape)
  want = own.part(x, data).reshape([own.extents[a] for a in x.axes])
  order = [x.axes.index(a) for a in axes]
  stored = data.transpose(dim_permutation(x, axes))
  t = KTensor("i0", DType.F32, axes, "weight", in_order(x.windows, axes))
  assert t.elements(own.extents) == data.size
  found = boxed(t, stored, own.extents).reshape([own.extents[a] for a in axes])
  np.testing.assert_array_equal(found, want.transpose(order))
  text = print_ugraph(UGraph((t,), ()))
  assert parse_ugraph(text).tensors == (t,)


def test_dimensions_of_several_axes_stay_in_order():
  view = View(Tensor("w", DType.F32, (6, 8)), (0, 2), (6, 8))
  x = RegionTensor("i0", DType.F32, ("a", "b", "c"), Tensor("p", DType.F32, (6, 4)), True,
                   (("a",), ("b", "c")), view)  # fmt: skip
  assert x.windows == (Window(("a",)), Window(("b", "c"), 2, 8))
  assert in_order(x.windows, ("b", "c", "a")) == x.windows[::-1]
  with pytest.raises(ValueError, match="no order of"):
    in_order(x.windows, ("c", "b", "a"))
  with pytest.raises(MirageError) as error:
    dim_permutation(x, ("b", "c", "a"))
  assert error.value.code == "INTERNAL"


@pytest.mark.parametrize("word", ["@1", "a0@1/", "a0@/3", "a0  a1", "a0 "])
def test_no_dimensions_of_memory(word):
  with pytest.raises(ValueError, match="not a"):
    parse_ugraph(f"ugraph 1\ntensor i0 f16[a0] input in {word}")
