"""Nodes that run their bodies: what is left alone keeps its kernel, and results are the original's."""

import numpy as np
import onnx
import pytest
from rewritten import chain

import mirage_onnx
from mirage_onnx.custom_op.bodies import BODY_DOMAIN, with_bodies


@pytest.fixture(scope="module")
def three():
  return chain()


def custom(model):
  return [n for n in model.graph.node if n.op_type.startswith("MuGraph_")]


def run(model, emulate):
  session = mirage_onnx.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"], emulate=emulate
  )
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  (y,) = session.run(None, {session.get_inputs()[0].name: x})
  return y, mirage_onnx.launches(session)


@pytest.mark.parametrize("left", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_some_run_their_bodies(three, left):
  whole = three.model
  nodes = custom(whole)
  outputs = {nodes[k].output[0] for k in left}
  model = with_bodies(whole, outputs)
  assert whole == three.model, "the model given is left as it was"
  onnx.checker.check_model(model)
  assert [n.domain == BODY_DOMAIN for n in custom(model)] == [k in left for k in range(3)]
  got, launches = run(model, emulate=len(left) < 3)
  assert sum(map(bool, launches.values())) == 3 - len(left)
  want, _ = run(three.original, emulate=False)
  assert np.linalg.norm(got.astype(np.float64) - want) <= 5e-3 * np.linalg.norm(want.astype(np.float64))
  if len(left) == 3:
    assert got.tobytes() == want.tobytes()


def test_places_of_one_kernel_can_differ(three):
  """A function that one node still calls as a kernel, and another one as its body."""
  model = three.model
  twin = model.graph.node.add()
  first = custom(model)[0]
  twin.CopyFrom(first)
  twin.name, twin.output[0] = "twin", "again"
  model.graph.output.append(onnx.helper.make_tensor_value_info("again", onnx.TensorProto.FLOAT16, [8, 64]))
  some = with_bodies(model, {"again"})
  domains = {n.name: n.domain for n in custom(some)}
  assert domains["twin"] == BODY_DOMAIN and domains[first.name] == first.domain
  assert {f.domain for f in some.functions if f.name == first.op_type} == {BODY_DOMAIN, first.domain}
  onnx.checker.check_model(some)
