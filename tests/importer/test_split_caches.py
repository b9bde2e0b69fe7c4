"""A node that writes a cache and attends to it is two, and one again."""

import numpy as np
import pytest
from cached_steps import cached_step, run_step, step_feeds
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.split_caches import is_attended, split_caches, whole_again
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED


def test_the_parts_compute_what_the_node_does():
  model = cached_step(2, 2, 2, 32, 9)
  split = split_caches(model)
  assert [list(n.output)[:1] for n in split.graph.node] == [["y/written"], ["y"]]
  assert [is_attended(n) for n in split.graph.node] == [False, True]
  del split.graph.node[1].output[3:]
  feeds = step_feeds(model, [4, 8], garbage=0)
  wants, gots = (
    run_step(InferenceSession(m.SerializeToString()), feeds, shared=False) for m in (model, split)
  )
  assert wants[0].tobytes() == gots[0].tobytes()
  assert [c.tobytes() for c in wants[2]] == [c.tobytes() for c in gots[2]]


def test_one_again():
  model = cached_step(1, 1, 2, 32, 9)
  split = split_caches(model)
  assert len(split.graph.value_info) == 3
  whole_again(split)
  assert split.SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("left", [0, 1])
def test_what_is_left_of_two_has_no_mark(left):
  split = split_caches(cached_step(1, 1, 2, 32, 9))
  del split.graph.node[1 - left]
  whole_again(split)
  (node,) = split.graph.node
  assert not node.metadata_props and node.output[0] == ("y/written", "y")[left]


def test_names_that_are_taken():
  model = cached_step(1, 1, 2, 32, 9)
  model.graph.node.append(helper.make_node("Identity", ["y"], ["y/written"], name="it/attended"))
  split = split_caches(model)
  assert split.graph.node[0].output[0] == "y/written_" and split.graph.node[1].name == "it/attended_"
  whole_again(split)
  assert split.SerializeToString() == model.SerializeToString()


def test_without_presents_it_stays():
  model = cached_step(1, 1, 2, 32, 9)
  del model.graph.node[0].output[1:], model.graph.output[1:]
  assert split_caches(model) is model


def test_both_are_regions_where_queries_are_apart():
  """No new row depends on the queries that its node reads, which is no reason to leave it (and the other)."""
  program = import_model(load_model(cached_step(1, 2, 2, 32, 64, apart=True)))
  found = find_candidates(program, TIMED).candidates
  assert {c.nodes for c in found} >= {frozenset({"it"}), frozenset({"it/attended"})}


def test_a_split_in_front_is_in_both():
  """Keys and values are written by one region with the Split inside, which then nobody needs."""
  model = cached_step(1, 2, 2, 32, 64, apart=True)
  packed = helper.make_tensor_value_info("qkv", TensorProto.FLOAT16, (1, 1, 256))
  kept = [i for i in model.graph.input if i.name not in "qkv"]
  del model.graph.input[:]
  model.graph.input.extend([packed, *kept])
  sizes = numpy_helper.from_array(np.array([128, 64, 64]), "sizes")
  model.graph.initializer.append(sizes)
  split = helper.make_node("Split", ["qkv", "sizes"], ["q", "k", "v"], name="apart", axis=-1)
  model.graph.node.insert(0, split)
  found = {(c.nodes, c.outputs) for c in find_candidates(import_model(load_model(model)), TIMED).candidates}
  assert (frozenset({"apart", "it"}), frozenset({"present_k", "present_v"})) in found
  assert (frozenset({"apart", "it/attended"}), frozenset({"y"})) in found
