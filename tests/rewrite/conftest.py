"""A model of RMSNorm+Linear layers whose regions are known, and a way to run models."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import typed

from mirage_onnx.rewrite.model import rewrite_model
from mirage_onnx.rewrite.replacement import Replacement, WeightUse

HIDDEN = 16
BUNDLE = b"no kernels: the bodies run"
STEPS = ("pow", "mean", "add", "sqrt", "div", "scale", "linear")


def layer_nodes(i, x, y):
  p = f"l{i}_"
  rows = [
    ("Pow", "pow", [x, "two"]),
    ("ReduceMean", "mean", [p + "pow", "axes"]),
    ("Add", "add", [p + "mean", "eps"]),
    ("Sqrt", "sqrt", [p + "add"]),
    ("Div", "div", [x, p + "sqrt"]),
    ("Mul", "scale", [p + "div", p + "gamma"]),
    ("MatMul", "linear", [p + "scale", p + "w"]),
  ]
  nodes = []
  for op, step, inputs in rows:
    output = y if step == "linear" else p + step
    nodes.append(helper.make_node(op, inputs, [output], name=p + step))
    nodes[-1].metadata_props.add(key="trace", value=f"line {len(nodes)} of layer {i}")
  return nodes


def build(layers=1, dtype=np.float16, hidden=HIDDEN):
  rng = np.random.default_rng(7)
  weights = {
    "two": np.array(2, dtype),
    "axes": np.array([-1], np.int64),
    "eps": np.array(1e-3, dtype),
  }
  nodes = []
  for i in range(layers):
    weights[f"l{i}_gamma"] = rng.uniform(0.5, 1.5, hidden).astype(dtype)
    weights[f"l{i}_w"] = (rng.standard_normal((hidden, hidden)) / 4).astype(dtype)
    nodes += layer_nodes(i, f"h{i}", f"h{i + 1}")
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  model = helper.make_model(
    helper.make_graph(
      nodes,
      "toy",
      [typed("h0", kind, ["batch", hidden])],
      [typed(f"h{layers}", kind, ["batch", hidden])],
      [numpy_helper.from_array(value, name) for name, value in weights.items()],
    ),
    opset_imports=[helper.make_opsetid("", 20)],
    ir_version=10,
  )
  return onnx.shape_inference.infer_shapes(model)


def region(i, *, plan=0, workspace=True, kmajor=True):
  return Replacement(
    nodes=tuple(f"l{i}_{step}" for step in STEPS),
    inputs=(f"h{i}", f"l{i}_gamma", f"l{i}_w"),
    weights=(WeightUse(f"l{i}_w", (1, 0)),) if kmajor else (),
    outputs=(f"h{i + 1}",),
    workspace=workspace,
    plan=plan,
  )


def run(model, feeds):
  options = ort.SessionOptions()
  options.log_severity_level = 3
  options.intra_op_num_threads = 1
  source = model if isinstance(model, Path) else model.SerializeToString()
  session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
  names = [value.name for value in session.get_outputs()]
  return dict(zip(names, session.run(names, feeds), strict=True))


def same(a, b, **feeds):
  left, right = run(a, feeds), run(b, feeds)
  return list(left) == list(right) and all(
    left[k].tobytes() == right[k].tobytes() and left[k].shape == right[k].shape for k in left
  )


def rewritten(model, x, regions=None):
  """The rewritten model, which computes the same of x."""
  result = rewrite_model(model, regions or [region(0)], BUNDLE)
  assert same(model, result, h0=x)
  return result


@pytest.fixture
def toy():
  return SimpleNamespace(
    build=build, region=region, run=run, same=same, rewritten=rewritten, hidden=HIDDEN,
    bundle=BUNDLE,
  )  # fmt: skip


@pytest.fixture
def x(rng):
  def make(rows=5, dtype=np.float16):
    return rng.standard_normal((rows, HIDDEN)).astype(dtype)

  return make


def make_if(captured, output):
  kind = TensorProto.FLOAT16
  out = typed("branch", kind, None)
  branches = [
    helper.make_graph([helper.make_node(op, [captured], ["branch"])], f"with_{op}", [], [out])
    for op in ("Neg", "Abs")
  ]
  return helper.make_node(
    "If", ["yes"], [output], name="choice", then_branch=branches[0], else_branch=branches[1]
  )


@pytest.fixture
def with_if():
  def add(model, captured):
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    model.graph.node.append(make_if(captured, "chosen"))
    model.graph.output.append(typed("chosen", TensorProto.FLOAT16, None))
    return model

  return add
