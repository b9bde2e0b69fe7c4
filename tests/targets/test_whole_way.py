"""From a model to kernels that run, for GPUs that are not here: compiled, emulated with their features."""

import numpy as np
import pytest
from small_models import Net, check_kernels, feeds, replaced_ops

import mirage_onnx
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.targets import get_target


@pytest.mark.parametrize(
  "name", ["A100", "H100", "rtx 3090", "orin", "L4", "sm_90", "b200", "b300", "rtx5090"]
)
def test_a_model_for(name):
  net = Net(seed=1)
  x = net.input(8, 48)
  model = net.model(net.Mul(net.Tanh(net.Add(x, net.weight(48))), x))
  result = mirage_onnx.optimize(model, target=name, workers=1)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  target = get_target(name)
  assert result.report["target"] == target.name
  domains = {n.domain for n in ModelFile.read(result.model.SerializeToString()).custom_nodes()}
  assert domains == {f"ai.mirage.v1.{target.suffix}"}
  check_kernels(model, result, feeds(model, np.random.default_rng(0)))
