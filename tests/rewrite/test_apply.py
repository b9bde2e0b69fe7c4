"""What cannot be rewritten stays as it was, and the rest is replaced all the same."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from rewritten import chain

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.rewrite import apply as module
from mirage_onnx.rewrite import model as model_module
from mirage_onnx.target import H200


@pytest.fixture(scope="module")
def three():
  return chain()


def applied(three):
  pairs = list(zip(three.regions, three.compiled, strict=True))
  return module.apply(load_model(three.original), pairs, H200)


def outputs(model):
  feeds = {i.name: np.linspace(-2, 2, 512, dtype=np.float16).reshape(8, 64) for i in model.graph.input}
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  return session.run(None, feeds)


#: Where a fault is planted: a function of each module, and whether its arguments are of a region.
STAGES = {
  "plan": (module, "plan_candidate", lambda args, region: args[0] is region),
  "body": (model_module, "build_body", lambda args, region: args[1].nodes == region.nodes),
  "number": (module.BundleBuilder, "add", lambda args, region: args[1] is region),
  "rewrite": (module, "rewrite_model", lambda args, region: any(r.nodes == region.nodes for r in args[1])),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("error", [MirageError("INTERNAL", "planted"), MemoryError("planted")], ids=str)
def test_a_fault_in_one_region(three, monkeypatch, stage, k, error):
  where, name, is_mine = STAGES[stage]
  region, right = three.regions[k], getattr(where, name)

  def wrong(*args, **more):
    if is_mine(args, region):
      raise error
    return right(*args, **more)

  monkeypatch.setattr(where, name, wrong)
  done = applied(three)
  assert done.used == tuple(i for i in range(3) if i != k)
  (refused,) = done.refused.items()
  assert refused[0] == k and refused[1].code == "REGION_FAILED" and refused[1].nodes == region.nodes
  assert "planted" in refused[1].reason
  onnx.checker.check_model(done.model)
  assert [o.tobytes() for o in outputs(done.model)] == [o.tobytes() for o in outputs(three.original)]


def test_a_fault_in_all_regions(three, monkeypatch):
  monkeypatch.setattr(module, "write_bundle", lambda bundle: 1 / 0)
  done = applied(three)
  assert done.used == () and sorted(done.refused) == [0, 1, 2]
  assert done.model == three.original


def test_an_error_of_the_run(three, monkeypatch):
  def missing(*_):
    raise MirageError("EXTERNAL_DATA_MISSING", "gone")

  monkeypatch.setattr(module, "plan_candidate", missing)
  with pytest.raises(MirageError, match="gone"):
    applied(three)


@pytest.mark.parametrize(
  ("declared", "left"), [([8, 65], [8, 0]), ([3, 65], [0, 0]), ([8, 8, 8], [0, 0])], ids=str
)
def test_an_output_that_is_declared_as_it_is_not(three, declared, left):
  """As in a model that was exported at another batch: a session with kernels would not be made."""
  original = onnx.ModelProto()
  original.CopyFrom(three.original)
  (output,) = original.graph.output
  kind = output.type.tensor_type.elem_type
  output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, kind, declared))
  pairs = list(zip(three.regions, three.compiled, strict=True))
  done = module.apply(load_model(original), pairs, H200)
  assert done.used == (0, 1, 2)
  (output,) = done.model.graph.output
  assert [d.dim_value for d in output.type.tensor_type.shape.dim] == left
  onnx.checker.check_model(done.model)
  assert [o.tobytes() for o in outputs(done.model)] == [o.tobytes() for o in outputs(original)]
