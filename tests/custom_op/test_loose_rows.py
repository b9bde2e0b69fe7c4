"""What of a cache is no measure: found by onnxruntime's own two ways, and nothing besides."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from mirage_onnx.custom_op.difference import difference
from mirage_onnx.custom_op.loose_rows import caches, loose_rows, measured
from mirage_onnx.custom_op.measure import KnownOriginal

HEADS, OWN, SIZE, ROOM = 4, 2, 32, 12


@pytest.fixture(scope="module")
def model():
  info, half = helper.make_tensor_value_info, TensorProto.FLOAT16
  cache = (2, OWN, ROOM, SIZE)
  node = helper.make_node(
    "GroupQueryAttention", ["qkv", "", "", "k", "v", "lengths", "total"], ["y", "more_k", "more_v"],
    domain="com.microsoft", num_heads=HEADS, kv_num_heads=OWN,
  )  # fmt: skip
  graph = helper.make_graph(
    [node], "one token",
    [info("qkv", half, (2, 1, (HEADS + 2 * OWN) * SIZE)), info("k", half, cache), info("v", half, cache),
     info("lengths", TensorProto.INT32, (2,)), info("total", TensorProto.INT32, ())],
    [info("y", half, (2, 1, HEADS * SIZE)), info("more_k", half, cache), info("more_v", half, cache)],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("lengths", [(4, 11), (11, 11), (0, 7)])
def test_rows_behind_the_length_and_no_other(model, lengths):
  rng = np.random.default_rng(0)
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  feeds = {
    i.name: rng.standard_normal(i.shape).astype(np.float16) for i in session.get_inputs() if len(i.shape) > 1
  }
  feeds |= {"lengths": np.array(lengths, np.int32), "total": np.array(max(lengths) + 1, np.int32)}
  want = dict(zip(("y", "more_k", "more_v"), session.run(None, feeds), strict=True))
  pairs = caches(model.graph)
  assert pairs == {"more_k": "k", "more_v": "v"}
  kept = {n: x.copy() for n, x in feeds.items()}
  found = loose_rows(session, pairs, feeds, want)
  assert all((feeds[n] == x).all() for n, x in kept.items())
  behind = np.arange(ROOM) > np.array(lengths)[:, None]
  if not behind.any():
    assert found == {}
  for mask in found.values():
    assert (mask == behind[:, None, :, None]).all()

  def measure(name, want, got, known):
    return difference(name, want, got, 1e-3, 1e-6, known.kind)

  one, known = measured(measure, found), KnownOriginal("normal 0")
  for name in pairs:
    got = want[name] + found.get(name, np.False_)
    assert one(name, want[name], got, known).passed
    got[0, 0, 0, 0] += 1
    assert not one(name, want[name], got, known).passed
