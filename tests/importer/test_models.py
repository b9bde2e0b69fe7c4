"""The committed models: which nodes are lowered, and why the others are not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from mirage_onnx.importer import import_model, load_model

MODELS = Path(__file__).parents[2] / "models"
NAMES = ["llama_decode", "lora", "bert", "rmsnorm_linear"]


def line(node):
  if node.barrier:
    return f"{node.name}: {node.barrier.code}: {node.barrier.reason}"
  steps = " ".join(s.op for s in node.steps)
  out = node.steps[-1].output
  return f"{node.name}: {node.op_type} -> {steps} : {out.dtype}{list(out.shape or ())}"


@pytest.mark.parametrize("name", NAMES)
def test_nodes(name, golden):
  program = import_model(load_model(MODELS / f"{name}.onnx"))
  assert "\n".join(map(line, program.nodes)) + "\n" == golden


@pytest.mark.parametrize("name", NAMES)
def test_only_expected_operators_are_left(name):
  program = import_model(load_model(MODELS / f"{name}.onnx"))
  left = [(n.op_type, n.barrier.code) for n in program.nodes if n.barrier]
  assert left == []


def test_rmsnorm_linear_is_lowered_as_a_whole(bench):
  program = import_model(load_model(MODELS / "rmsnorm_linear.onnx"))
  assert all(n.barrier is None for n in program.nodes)
  assert program.constants and "linear.weight" in program.weights


@pytest.mark.parametrize("name", NAMES)
def test_every_lowered_node_computes_what_onnxruntime_does(name, bench, rng):
  """Node by node, on the values that ONNX Runtime has between the nodes."""
  model = onnx.load(MODELS / f"{name}.onnx")
  program = bench.program(model)
  have = {o.name for o in model.graph.output}
  made = [o for n in program.nodes for o in n.outputs]
  model.graph.output.extend(onnx.ValueInfoProto(name=o) for o in made if o not in have)
  feeds = {}
  for value in model.graph.input:
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    integer = value.type.tensor_type.elem_type == onnx.TensorProto.INT64
    feeds[value.name] = (
      rng.integers(2, size=shape) if integer else rng.standard_normal(shape).astype(np.float16)
    )
  values = feeds | bench.run(model, feeds)
  values |= {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
  checked = 0
  for node in program.nodes:
    if node.barrier is not None:
      continue
    reads = {i: values[i] for i in node.inputs}
    ours = bench.evaluate(replace(program, nodes=(node,)), reads)
    for output in node.outputs:
      want = values[output]
      assert program.tensors[output].shape == want.shape
      scale = np.abs(want.astype(np.float64)).max()
      np.testing.assert_allclose(
        ours[output], want.astype(np.float64), rtol=2e-3, atol=2e-3 * scale, err_msg=output
      )
      checked += 1
  assert checked >= len(program.nodes) / 2
