"""Custom nodes of a model that onnxruntime's CPU provider has no kernels for, by themselves."""

from functools import partial

import ml_dtypes
import numpy as np
import onnx
import pytest
from refused import refused
from small_models import Net

import mirage_onnx
from mirage_onnx import api
from mirage_onnx.custom_op import wide_check
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.compare_inputs import KINDS
from mirage_onnx.custom_op.comparison import ALONE, IN_FP32, NO_KERNEL
from mirage_onnx.custom_op.edge_inputs import EDGES
from mirage_onnx.pipeline import Options


def chain(factor=0.5):
  """Two norms with their products, and between them what stays with onnxruntime."""
  net = Net(ml_dtypes.bfloat16)
  y = net.MatMul(net.rms(net.input(8, 64), net.weight(64)), net.weight(64, 96))
  y = net.Mul(net.CumSum(y, net.constant(1, np.int64)), factor)
  return net.model(net.MatMul(net.rms(y, net.weight(96)), net.weight(96, 32)))


@pytest.fixture(scope="module")
def optimized():
  """With the products, which no prediction chooses in bfloat16."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(api, "Options", partial(Options, every=True))
    return mirage_onnx.optimize(chain(), target="h200", workers=1).model.SerializeToString()


def test_every_node_is_compared_in_fp32(optimized):
  found = compare_models(chain().SerializeToString(), optimized, emulate=True, draws=1)
  assert found.passed and found.note == IN_FP32
  assert [(o.dtype, o.identical) for o in found.outputs] == [("float32", True)]
  assert len(found.regions) == len(found.nodes) == 2
  assert all(n.path == "emulated" and n.launches >= 1 + len(KINDS) for n in found.nodes)
  assert found.inputs == ("normal 0", *KINDS, *EDGES)
  assert all(r.output.dtype == "bfloat16" and r.output.rtol == 8e-2 for r in found.regions)
  needed = max(r.output.needed_rtol for r in found.regions)
  assert 0 < needed < 8e-3, "one rounding to bfloat16"
  assert found.to_dict()["note"] == IN_FP32


def test_a_wrong_node_is_named(optimized):
  """The model that was optimized multiplied by another number."""
  found = compare_models(chain(-0.5).SerializeToString(), optimized, emulate=True, draws=1)
  assert [r.output.passed for r in found.regions] == [True, False]
  assert not found.passed and found.first_divergence == found.regions[1].node


def test_given_inputs(optimized):
  original = chain()
  (name,) = (i.name for i in original.graph.input)
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(ml_dtypes.bfloat16)
  for bits in (x, x.view(np.uint16)):
    found = compare_models(original.SerializeToString(), optimized, emulate=True, inputs={name: bits})
    assert found.passed and found.inputs == ("given",)
  with refused("INPUTS_INVALID", "is float32, not bfloat16"):
    compare_models(original.SerializeToString(), optimized, emulate=True, inputs={name: x.astype(np.float32)})


def test_what_does_not_run_at_all(optimized):
  with refused("SESSION_FAILED", "NOT_IMPLEMENTED"):
    compare_models(chain().SerializeToString(), optimized)
  broken = chain()
  broken.graph.node[0].op_type = "NoSuchOperator"
  with refused("SESSION_FAILED", "NoSuchOperator"):
    compare_models(broken.SerializeToString(), optimized, emulate=True)


def test_without_a_custom_node():
  same, other = (chain(f).SerializeToString() for f in (0.5, -0.5))
  found = compare_models(same, same, emulate=True, draws=1)
  assert found.passed and found.outputs[0].identical and found.note == f"{IN_FP32}; {NO_KERNEL}"
  assert not compare_models(same, other, emulate=True, draws=1).passed


def test_what_differs_outside_of_kernels_fails(optimized):
  """Each node is right by itself, but between them stands another operator."""
  altered = onnx.load_from_string(optimized)
  (between,) = (n for n in altered.graph.node if n.op_type == "CumSum")
  between.attribute.append(onnx.helper.make_attribute("reverse", 1))
  found = compare_models(chain().SerializeToString(), altered.SerializeToString(), emulate=True, draws=1)
  assert not found.passed and not found.outputs[0].passed


def test_a_result_that_does_not_run_in_fp32(optimized, monkeypatch):
  monkeypatch.setattr(wide_check, "is_too_wide", lambda _: True)
  found = compare_models(chain().SerializeToString(), optimized, emulate=True, draws=1)
  assert found.passed and found.outputs == () and found.note == ALONE


def test_types_that_no_file_says(optimized):
  """As where a model has been written by hand: a region reads what a node in front makes."""
  original, rewritten = chain(), onnx.load_from_string(optimized)
  made = {o for n in rewritten.graph.node if n.domain.startswith("ai.mirage") for o in n.output}
  for model in (original, rewritten):
    kept = [v for v in model.graph.value_info if v.name in made]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept if model is rewritten else [])
  found = compare_models(original.SerializeToString(), rewritten.SerializeToString(), emulate=True, draws=1)
  assert found.passed and len(found.regions) == 2
