"""Where what a region reads of a cache ends."""

import numpy as np
import onnx
import pytest
from cached_steps import cached_step
from small_models import matches

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import KTensor, UGraph, parse_ugraph, print_ugraph
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.superopt.reach import limits, with_limits


def regions(**more):
  model = cached_step(2, 2, 2, 32, 9, rotary=False, **more)
  found = find_candidates(import_model(load_model(model)), TIMED).candidates
  return {tuple(sorted(c.outputs)): c.region for c in found}


def by_tensor(region):
  """The limits by the names of the model."""
  names = {x.name: x.tensor.name for x in region.inputs}
  axes = {n: {a for x in region.inputs if x.name == n for a in x.axes} for n in names}
  found = limits(region)
  assert all(axis in axes[name] for name, (axis, _, _) in found.items())
  return {(names[x], names[by], more) for x, (_, by, more) in found.items()}


def test_both_caches_end_behind_the_new_row():
  region = regions()["y",]
  assert by_tensor(region) == {("present_k", "lengths", 1), ("present_v", "lengths", 1)}


def test_behind_a_window_too():
  region = regions(local_window_size=3)["y",]
  assert by_tensor(region) == {("present_k", "lengths", 1), ("present_v", "lengths", 1)}


def test_what_is_written_does_not_end():
  """The old row is an output where the new one is not."""
  for outputs, region in regions().items():
    if outputs != ("y",):
      assert limits(region) == {}


def test_a_mask_of_other_numbers_is_no_end():
  """Only of places is it known that they ascend."""
  model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
    g (float16[4, 8] x, int32[4] place, int32 length) => (float16[8] y) <float16 zero = {0}> {
      seen = Less (place, length)
      axes = Constant <value_ints = [1]> ()
      column = Unsqueeze (seen, axes)
      kept = Where (column, x, zero)
      rows = Constant <value_ints = [0]> ()
      y = ReduceSum <keepdims = 0> (kept, rows)
    }""")
  found = matches(model).candidates
  assert found and not any(limits(c.region) for c in found)


def test_the_text_of_a_limit():
  region = regions()["y",]
  tensors = tuple(KTensor(x.name, x.dtype, x.axes, "input", x.windows) for x in region.inputs)
  limited = with_limits(region, UGraph(tensors, ()))
  lines = [line for line in print_ugraph(limited).splitlines() if " upto " in line]
  assert len(lines) == 2 and all("<=" in line for line in lines)
  assert parse_ugraph(print_ugraph(limited)) == limited
  alone = with_limits(region, UGraph(tuple(t for t in tensors if t.dtype.is_float), ()))
  assert not any(t.limit for t in alone.tensors)


@pytest.mark.parametrize("more", [0, 1])
def test_renamed(more):
  tensor = KTensor(
    "i0", next(iter(regions()["y",].inputs)).dtype, ("a0", "a1"), "input", (), ("a0", "i1", more)
  )
  renamed = tensor.renamed("i7", {"a0": "a5"}, {"i1": "i8"})
  assert renamed.limit == ("a5", "i8", more) and tensor.renamed("i7", {}).limit == tensor.limit
  assert np.all(renamed.axes == ("a5", "a1"))
