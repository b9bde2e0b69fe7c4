"""The inputs of the shift check reach what it promises, at extents that split evenly."""

import numpy as np
import pytest
from goldens import GOLDENS, golden
from search_programs import PROGRAMS

from mirage_onnx.ir.ugraph import ugraph_extents
from mirage_onnx.verify.adversarial import (
  CASES,
  LARGE,
  additive_inputs,
  adversarial_inputs,
  even_instantiation,
  mask_inputs,
)

each_golden = pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)


def test_masks_are_the_inputs_that_are_added_to_logits():
  assert additive_inputs(golden("attention_online").region) == {"i1"}
  assert additive_inputs(golden("gqa_decode").region) == {"i0"}
  assert additive_inputs(golden("norm_linear").region) == set()


def test_what_a_norm_before_the_logits_is_taken_of_is_no_mask():
  norm, mask = (PROGRAMS[n]() for n in ("qknorm_layernorm_attention", "attention_additive_mask"))
  assert additive_inputs(norm) == {"i0", "i1"} and mask_inputs(norm) == set()
  assert additive_inputs(mask) == mask_inputs(mask) == {"i2"}


@each_golden
def test_every_split_has_several_equal_parts(given):
  sizes = even_instantiation(given.ugraph, given.region)
  extents = ugraph_extents(given.ugraph, sizes.params, sizes.extents)
  for kernel, numbers in zip(given.ugraph.kernels, sizes.params, strict=True):
    left = dict(extents)
    for axis, tile in zip(kernel.grid, numbers.tile, strict=True):
      assert extents[axis] % tile == 0 and extents[axis] > tile
      left[axis] = tile
    if kernel.cluster is not None:
      assert numbers.cluster > 1 and left[kernel.cluster] % numbers.cluster == 0
      left[kernel.cluster] //= numbers.cluster
    if kernel.loop is not None:
      assert left[kernel.loop] % numbers.loop_tile == 0
      assert left[kernel.loop] // numbers.loop_tile == 3


@each_golden
def test_inputs_reach_their_extremes_and_weights_stay(given):
  sizes = even_instantiation(given.ugraph, given.region)
  inputs = adversarial_inputs(given.region, sizes.extents, np.random.default_rng(0))
  masks = additive_inputs(given.region)
  for i in given.region.inputs:
    data = inputs[i.name]
    assert data.shape == (len(CASES), *(sizes.extents[a] for a in i.axes))
    if i.is_weight:
      assert (data == data[0]).all()
      continue
    finite = data[np.isfinite(data)]
    assert finite.max() >= LARGE and finite.min() <= -LARGE
    assert np.isneginf(data).any() == (i.name in masks)
