"""When a run of a decoder is a step: the condition, run by onnxruntime, and the sizes that make one."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from step_decoder import CPU, HEADS, OWN, SIZE, decoder

from mirage_onnx.importer.steps_apart import ROOM, is_step, steps_apart


@pytest.mark.parametrize("sizes", [{}, {"batch": 1}, {"batch": 2}])
def test_the_condition(sizes):
  """Of one new token in a cache with room, of as many sequences; the host runs few nodes for it."""
  apart = steps_apart(decoder(), sizes)
  *nodes, holder = (n for n in apart.graph.node if n.op_type == "If" or n.name.startswith("steps/"))
  counted = [n.op_type for n in nodes if n.op_type != "Constant"]
  assert len(counted) <= {0: 6, 1: 8, 2: 9}[sizes.get("batch", 0)], counted
  wanted = [v for v in apart.graph.input if any(v.name in n.input for n in nodes)]
  result = helper.make_tensor_value_info(holder.input[0], TensorProto.BOOL, None)
  graph = helper.make_graph(nodes, "condition", wanted, [result])
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
  session = ort.InferenceSession(model.SerializeToString(), providers=CPU)
  shapes = {"qkv": lambda b, n, r, t: (b, n, (HEADS + 2 * OWN) * SIZE), "mask": lambda b, n, r, t: (b, t)}
  for b, n, r, t in np.ndindex(4, 3, 5, 6):
    feeds = {
      v.name: np.zeros(
        shapes.get(v.name, lambda b, n, r, t: (b, OWN, r, SIZE))(b, n, r, t),
        np.int64 if v.name == "mask" else np.float16,
      )
      for v in wanted
    }
    (holds,) = session.run(None, feeds)
    fits = n == 1 and t <= r and b == sizes.get("batch", b)
    assert holds.size == 1 and bool(holds.reshape(())) == fits, (b, n, r, t)


@pytest.mark.parametrize("attribute", [{"value_int": 1}, {"value_ints": [1]}])
def test_an_index_that_is_no_tensor(attribute):
  """onnxscript writes numbers so: the condition had a tensor of nothing, and no session took the model."""
  model = decoder()
  model.graph.node[0].CopyFrom(helper.make_node("Constant", [], ["one"], **attribute))
  made, plain = (steps_apart(m) for m in (model, decoder()))
  assert [n.op_type for n in made.graph.node] == [n.op_type for n in plain.graph.node]
  ort.InferenceSession(made.SerializeToString(), providers=CPU)


def test_sizes_of_steps():
  """Those of which a run takes the branch of steps: one new token, as many sequences, caches of that size."""
  sizes = {"batch": 2, "new": 1, "past": 512, "all": 300}
  apart = steps_apart(decoder(), {"batch": 2, ROOM: 512})
  assert is_step(apart, sizes)
  assert not any(is_step(apart, sizes | other) for other in ({"new": 256}, {"batch": 1}, {"past": 256}))
  assert is_step(steps_apart(decoder()), {**sizes, "batch": 3, "past": 9})
