"""Opsets 7 to 12: the forms that operators had then, through ``optimize`` and the emulator."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_models import Net, check_kernels, feeds, replaced_ops

import mirage_onnx
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import import_model, load_model


def optimized(model):
  # ONNX Runtime's kernels are faster at these sizes: the margin takes ours anyway.
  return mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)


def norm(net, x):
  """Axes of reductions are attributes."""
  square = net.ReduceMean(net.Mul(x, x), axes=[-1], keepdims=1)
  return net.Div(x, net.Sqrt(net.Add(square, net.constant(1e-3))))


def squeezed(net, x):
  """ReduceSum without keepdims, Unsqueeze and Squeeze with axes as attributes."""
  total = net.ReduceSum(net.Mul(x, x), axes=[1], keepdims=0)
  back = net.Unsqueeze(net.Squeeze(net.Unsqueeze(total, axes=[0, 2]), axes=[0]), axes=[2])
  return net.Mul(x, net.Squeeze(net.Sqrt(net.Add(back, net.constant(1.0))), axes=[2]))


def clipped(net, x):
  y = net.Mul(x, net.constant(3.0))
  low = net.constant(-0.25) if net.opset >= 11 else None
  y = net.Clip(y, low, net.constant(1.5)) if low else net.Clip(y, min=-0.25, max=1.5)
  return net.Tanh(y)


def half_clipped(net, x):
  """Only one bound; the other one's default says none, however it is written."""
  if net.opset >= 11:
    return net.Exp(net.Clip(x, "", net.constant(0.5)))
  return net.Exp(net.Clip(x, min=float(np.finfo(np.float32).min), max=0.5))


def dropped(net, x):
  return net.Exp(net.Dropout(net.Neg(x), **({"ratio": 0.5} if net.opset < 12 else {})))


def softmax(net, x):
  """Over all from axis 1 on, which is the default."""
  return net.Softmax(net.Mul(net.Reshape(x, net.constant([8, 4, 16], np.int64)), net.constant(0.5)))


def softmax_of_all(net, x):
  return net.Softmax(net.Mul(x, net.constant(0.5)), axis=0)


def log_softmax(net, x):
  y = net.Reshape(net.Neg(x), net.constant([8, 4, 16], np.int64))
  return net.Exp(net.LogSoftmax(y, axis=2))


def sliced(net, x):
  """Bounds are attributes before opset 10."""
  y = net.MatMul(norm(net, x), net.weight(64, 64))
  bounds = {"axes": [1], "starts": [16], "ends": [48]}
  if net.opset < 10:
    return net.Tanh(net.Slice(y, **bounds))
  return net.Tanh(net.Slice(y, *(net.constant(bounds[k], np.int64) for k in ("starts", "ends", "axes"))))


def split(net, x):
  y = net.MatMul(norm(net, x), net.weight(64, 96))
  parts = ["part0", "part1"]
  net.nodes.append(onnx.helper.make_node("Split", [y], parts, name="Split", axis=1, split=[32, 64]))
  return net.Add(net.MatMul(net.Tanh("part0"), net.weight(32, 64)), "part1")


def linear(net, x):
  """Gemm has a bias, and a matrix product what follows it."""
  y = net.Gemm(norm(net, x), net.weight(48, 64), net.weight(48), transB=1, alpha=0.5)
  return net.Mul(y, net.Sigmoid(y))


def powers(net, x):
  centered = net.Sub(x, net.ReduceMean(x, axes=[-1]))
  variance = net.ReduceMean(net.Pow(centered, net.constant(2.0)), axes=[-1])
  return net.Div(centered, net.Pow(net.Add(variance, net.constant(1e-2)), net.constant(0.5)))


#: A form, and opsets at and before the edges of what it looks like; a fast one first.
FORMS = (
  (norm, (8, 7, 9, 10, 11, 12)),
  (squeezed, (7, 12)),
  (clipped, (10, 7, 11)),
  (half_clipped, (10, 11)),
  (dropped, (7, 11, 12)),
  (softmax, (12, 7, 8)),
  (softmax_of_all, (11,)),
  (log_softmax, (12,)),
  (sliced, (9, 10)),
  (split, (12, 8)),
  (linear, (8, 11)),
  (powers, (7, 12)),
)
FAST = {(norm, 8), (clipped, 10), (softmax, 12), (dropped, 7)}
CASES = [
  pytest.param(form, k, marks=() if (form, k) in FAST else pytest.mark.slow, id=f"{form.__name__}-{k}")
  for form, opsets in FORMS
  for k in opsets
]


@pytest.mark.parametrize(("form", "opset"), CASES)
def test_the_old_form_of_an_operator_becomes_part_of_a_kernel(form, opset):
  net = Net(np.float32, seed=opset, opset=opset)
  model = net.model(form(net, net.input(8, 64)))
  program = import_model(load_model(model))
  assert not [str(n.barrier) for n in program.nodes if n.barrier]
  result = optimized(model)
  onnx.checker.check_model(result.model)
  assert [i.version for i in result.model.opset_import if not i.domain] == [opset]
  assert replaced_ops(result)
  check_kernels(model, result, feeds(model, np.random.default_rng(opset)))


def old_model():
  """Of an IR version in which initializers must be inputs too."""
  net = Net(np.float32, opset=8)
  x = net.input(8, 64)
  model = net.model(net.Mul(norm(net, x), net.weight(64)))
  model.ir_version = 3
  for t in model.graph.initializer:
    model.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
  onnx.checker.check_model(model)
  return model, x


def test_initializers_of_an_old_ir_version_are_constants():
  model, x = old_model()
  before = model.SerializeToString()
  result = optimized(model)
  assert model.SerializeToString() == before
  assert [i.name for i in result.model.graph.input] == [x]
  onnx.checker.check_model(result.model)
  assert "Mul" in {op.split("_")[0] for op in replaced_ops(result)}
  del model.graph.input[1:]
  model.ir_version = 4
  check_kernels(old_model()[0], result, feeds(model, np.random.default_rng(0)))


def test_initializers_that_are_inputs_stay_so_in_later_versions():
  model, _ = old_model()
  model.ir_version = 4
  loaded = load_model(model)
  assert loaded.proto is model
  assert not loaded.initializers


def folded(opset):
  """How TorchScript computes a shape: Squeeze, Unsqueeze and Slice with attributes."""
  net = Net(np.float32, opset=opset)
  x = net.input(8, 64)
  rows = net.Slice(net.Shape(x), starts=[0], ends=[1])
  row = net.Squeeze(rows, axes=[0])
  shape = net.Concat(net.Unsqueeze(row, axes=[0]), net.constant([4, 16], np.int64), axis=0)
  return load_model(net.model(net.Reshape(x, shape))), shape


def test_attributes_of_old_forms_are_read_when_shapes_are_folded():
  loaded, shape = folded(9)
  assert numpy_helper.to_array(loaded.folded[shape]).tolist() == [8, 4, 16]


@pytest.mark.parametrize("opset", [1, 6, 27])
def test_an_opset_that_is_not_known_is_refused(opset):
  net = Net(np.float32, opset=12)
  model = net.model(net.Exp(net.input(2, 2)))
  model.opset_import[0].version = opset
  with pytest.raises(MirageError) as caught:
    load_model(model)
  assert caught.value.code == "OPSET_UNSUPPORTED"
  assert f"opset {opset}, supported are 7 to 26" in caught.value.line()


def test_an_old_model_in_which_nothing_is_replaced_stays_as_it_is():
  model, _ = old_model()
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=0.99)
  assert not replaced_ops(result)
  assert result.model.SerializeToString() == model.SerializeToString()
