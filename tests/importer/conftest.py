"""Build small models, evaluate their steps in float64, and compare with ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import NodeProto, helper, numpy_helper

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.causal import implied
from mirage_onnx.ir import Constant, DType, round_to
from mirage_onnx.ir.functions import ELEMENTWISE, IRRATIONAL


class Bench:
  @staticmethod
  def model(nodes, inputs, outputs, weights=None, opset=20, domains=()):
    """``inputs``: name -> (numpy type or TensorProto type, shape)."""
    nodes = [nodes] if isinstance(nodes, NodeProto) else list(nodes)
    graph = helper.make_graph(
      nodes,
      "test",
      [helper.make_tensor_value_info(n, _onnx(t), s) for n, (t, s) in inputs.items()],
      [onnx.ValueInfoProto(name=o) for o in outputs],
      [numpy_helper.from_array(v, n) for n, v in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)

  @classmethod
  def one(cls, op, arrays, weights=(), outputs=1, opset=20, domain="", **attributes):
    """A model of one node on ``arrays``, those at ``weights`` as initializers; its feeds."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    out = [f"y{i}" for i in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(op, names, out, name="it", domain=domain, **attributes)
    fed = {n: a for i, (n, a) in enumerate(zip(names, arrays, strict=True))
           if a is not None and i not in weights}  # fmt: skip
    held = {names[i]: arrays[i] for i in weights}
    model = cls.model(
      node,
      {n: (a.dtype, a.shape) for n, a in fed.items()},
      [o for o in out if o],
      held,
      opset,
      [domain] if domain else [],
    )
    return model, fed

  @staticmethod
  def program(model):
    return import_model(load_model(model))

  @classmethod
  def barrier(cls, model, node=0):
    """``CODE: reason`` of a node, which must be a barrier."""
    found = cls.program(model).nodes[node]
    assert found.barrier is not None, f"{found.op_type} was lowered"
    assert found.steps == ()
    assert found.barrier.nodes == (found.name,)
    return f"{found.barrier.code}: {found.barrier.reason}"

  @staticmethod
  def evaluate(program, values, others=()):
    """Run the steps on float64 arrays, rounding each to its type and checking its shape.

    ``others``: operators that run as they are, with what is read of them among ``values``.
    """
    known = {n: np.asarray(v).astype(np.float64) for n, v in values.items()}
    for node in program.nodes:
      if node.op_type in others:
        continue
      assert node.barrier is None, str(node.barrier)
      for step in node.steps:
        value = run_step(step, [_value(i, known) for i in step.inputs])
        assert value.shape == step.output.shape, (step, value.shape)
        assert step.output.name not in known
        assert step.output.dtype is not None
        known[step.output.name] = round_to(value, step.output.dtype)
      assert node.steps, node.name
      assert {s.output.name for s in node.steps} & set(node.outputs)
    return known

  @staticmethod
  def run(model, feeds):
    """The outputs that ONNX Runtime computes, without its graph optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in model.graph.output]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))

  @classmethod
  def agrees(cls, model, feeds, rtol=2e-5, atol=2e-5, made=None, unread=None):
    """The steps compute what ONNX Runtime computes: values, shapes and types.

    ``made``: what the loader's own nodes make (integers, which no steps compute), by name. ``unread``: of
    outputs, parts that have finite values, no more.
    """
    program = cls.program(model)
    theirs = cls.run(model, feeds)
    held = [*model.graph.initializer, *filter(None, map(implied, program.weights))]
    weights = {t.name: numpy_helper.to_array(t) for t in held}
    others = ("Constant", "Cast", "Reshape", "Sub", "Max", "Add", "Concat") if made else ()
    ours = cls.evaluate(program, {**weights, **feeds, **(made or {})}, others)
    for name in program.outputs:
      want = theirs[name]
      tensor = program.tensors[name]
      assert tensor.shape == want.shape, (name, tensor.shape, want.shape)
      assert tensor.dtype is not None and tensor.dtype.numpy == want.dtype
      got, want = ours[name], want.astype(np.float64)
      if unread and name in unread:
        assert np.isfinite(got).all()
        got, want = got[~unread[name]], want[~unread[name]]
      np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=name)
    return program


def _onnx(dtype):
  return dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _value(operand, known):
  if isinstance(operand, str):
    return known[operand]
  base = IRRATIONAL[operand.base] if isinstance(operand.base, str) else float(operand.base)
  return np.float64(base ** float(operand.exponent) if operand.exponent != 1 else base)


def run_step(step, args):
  with np.errstate(all="ignore"):
    match step.op:
      case "pow":
        assert isinstance(step.inputs[1], Constant)
        return np.power(args[0], args[1])
      case "cast":
        assert isinstance(step.attr, DType) and step.attr is step.output.dtype
        return args[0]
      case "matmul":
        return np.matmul(*args)
      case "sum":
        return args[0].sum(axis=step.attr, keepdims=True)
      case "mean":
        return args[0].mean(axis=step.attr, keepdims=True)
      case "rmax":
        return args[0].max(axis=step.attr, keepdims=True)
      case "transpose":
        return args[0].transpose(step.attr)
      case "reshape":
        return args[0].reshape(step.attr)
      case "slice":
        axis, *bounds = step.attr
        return args[0].take(range(*bounds), axis)
      case "concat":
        return np.concatenate(args, *step.attr)
      case "gather":
        return args[0][args[1].astype(int).reshape(-1)]
      case "expand":
        return np.broadcast_to(args[0], step.attr)
      case op:
        assert step.attr is None
        return np.asarray(ELEMENTWISE[op].reals(*args))


@pytest.fixture(scope="session")
def bench():
  return Bench()
