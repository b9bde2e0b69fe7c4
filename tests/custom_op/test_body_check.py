"""Function bodies that were changed: where kernels run, they are compared with the original too."""

import numpy as np
import pytest
from onnx import numpy_helper

from mirage_onnx.custom_op import isolated
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.isolated import compare_isolated
from tests.custom_op.test_isolated import SEGFAULT, TRAP


def compared(chain, model):
  return compare_models(chain.original.SerializeToString(), model.SerializeToString(), emulate=True, draws=1)


def node(model, op_type):
  """The first of this operator in a body."""
  return next(n for f in model.functions for n in f.node if n.op_type == op_type)


@pytest.mark.slow  # kernels are emulated
def test_right_bodies(chain):
  found = compared(chain, chain.model)
  assert found.passed and found.failures == ()
  assert {n.path for n in found.nodes} == {"emulated"}


def other_operator(model):
  node(model, "Sigmoid").op_type = "Tanh"


def other_constant(model):
  """The half of ``chain``'s product."""
  (tensor,) = (
    n.attribute[0].t for f in model.functions for n in f.node
    if n.op_type == "Constant" and np.all(numpy_helper.to_array(n.attribute[0].t) == np.float16(0.5))
  )  # fmt: skip
  tensor.raw_data = np.float16(0.75).tobytes()


def other_operand(model):
  add = next(n for f in reversed(model.functions) for n in f.node if n.op_type == "Add")
  add.input[0] = add.input[1]


def other_axis(model):
  axes = node(model, "ReduceMean").input[1]
  constant = next(n for f in model.functions for n in f.node if n.output[0] == axes)
  constant.attribute[0].t.CopyFrom(numpy_helper.from_array(np.int64([0])))


def other_sign(model):
  """Of the epsilon of a norm, which only small numbers show."""
  (root,) = {n.input[0]: n for f in model.functions for n in f.node if n.op_type == "Sqrt"}.values()
  added = next(n for f in model.functions for n in f.node if n.output[0] == root.input[0])
  assert added.op_type == "Add"
  added.op_type = "Sub"


@pytest.mark.slow  # kernels are emulated
@pytest.mark.parametrize("change", [other_operator, other_constant, other_operand, other_axis, other_sign])
def test_a_body_that_computes_something_else(chain, change):
  model = chain.model
  change(model)
  found = compared(chain, model)
  assert all(o.passed for o in found.outputs) and all(r.output.passed for r in found.regions)
  assert not found.passed
  (line,) = found.failures
  assert line.startswith("SOURCE_MISMATCH: without the library output ")


def no_function(model):
  del model.functions[1]


def no_operand(model):
  node(model, "Sigmoid").input[0] = "nothing"


@pytest.mark.slow  # kernels are emulated
@pytest.mark.parametrize("change", [no_function, no_operand])
def test_a_body_that_cannot_be_run(chain, change):
  model = chain.model
  change(model)
  found = compared(chain, model)
  assert not found.passed
  (line,) = found.failures
  assert line.startswith("SESSION_FAILED: the function bodies: ")


@pytest.mark.slow  # several children, and kernels
def test_bodies_that_kill(chain, monkeypatch):
  where = 'step == "the function bodies on input"'
  monkeypatch.setattr(isolated, "CHILD", TRAP.format(where=where, how=SEGFAULT))
  models = (chain.original.SerializeToString(), chain.model.SerializeToString())
  found = compare_isolated(*models, emulate=True, draws=1)
  line = (
    "SESSION_FAILED: onnxruntime was ended by SIGSEGV: the function bodies on input normal 0: not checked"
  )
  assert found.failures == (line,) and not found.passed
  assert all(o.passed for o in found.outputs) and len(found.regions) == 3


def test_bodies_that_were_run_are_not_run_again(chain):
  def tell(step, name):
    assert step != "the function bodies on input", name

  models = (chain.original.SerializeToString(), chain.model.SerializeToString())
  found = compare_models(*models, draws=1, tell=tell)
  assert found.passed and {n.path for n in found.nodes} == {"body"}
