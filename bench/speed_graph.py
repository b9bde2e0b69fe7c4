"""A model of one benchmark case, written node by node as torch's exporter writes it, in fp16."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: What torch's exporter stores for a norm's epsilon.
EPSILON = float(np.float32(1e-6))
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
  """A model with random weights, its input and what it yields.

  ``oracle`` gets feeds and weights in float64 (by name) and returns the outputs without any
  rounding on the way. ``unread``: bytes of weights that the feeds leave out.
  """

  name: str
  model: onnx.ModelProto
  feeds: Arrays
  weights: Arrays
  oracle: Callable[[Callable[[str], np.ndarray]], Arrays]
  unread: int = 0

  @property
  def bytes(self):
    """What every program for it has to read: weights and inputs, once."""
    return sum(x.nbytes for x in (*self.feeds.values(), *self.weights.values())) - self.unread

  def exact(self):
    """The outputs in float64, by name."""
    known = self.weights | self.feeds
    return self.oracle(lambda name: known[name].astype(np.float64))


class Graph:
  """Any other method adds the node of this name; numbers become constants of the model."""

  def __init__(self, seed=0):
    self._rng = np.random.default_rng(seed)
    self._nodes = []
    self._constants = []
    self.feeds = {}
    self.weights = {}

  def _normal(self, shape, scale):
    x = self._rng.standard_normal(shape, dtype=np.float32)
    x *= scale
    return x.astype(np.float16)

  def input(self, name, *shape, scale=1.0):
    self.feeds[name] = self._normal(shape, scale)
    return name

  def rows(self, name, count, of):
    """Which rows of a table of this many a run picks, none twice."""
    self.feeds[name] = self._rng.permutation(of)[:count]
    return name

  def weight(self, name, *shape, depth):
    """A matrix that keeps the size of what it is applied to; ``depth``: its summed extent."""
    self.weights[name] = self._normal(shape, 1 / sqrt(depth))
    return name

  def gain(self, name, size):
    """A factor per channel, near 1."""
    self.weights[name] = np.float16(1) + self._normal((size,), 0.1)
    return name

  def constant(self, value, dtype):
    name = f"val_{len(self._constants)}"
    self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name

  def __getattr__(self, op):
    if op.startswith("_"):
      raise AttributeError(op)

    def add(*inputs, **attributes):
      names = [i if isinstance(i, str) else self._constant(i) for i in inputs]
      number = len(self._nodes)
      self._nodes.append(helper.make_node(op, names, [f"v{number}"], name=f"n{number}", **attributes))
      return f"v{number}"

    return add

  def _constant(self, value):
    return self.constant(value, np.int64 if isinstance(value, (list, tuple)) else np.float16)

  def linear(self, x, weight):
    """A layer without bias behind a matrix: the weight is (out, in)."""
    return self.Gemm(x, weight, transB=1)

  def silu(self, x):
    return self.Mul(x, self.Sigmoid(x))

  def rms_norm(self, x, gain):
    """As transformers computes it: in float32, narrowed before the gain."""
    wide = self.Cast(x, to=TensorProto.FLOAT)
    square = self.Pow(wide, self.constant(2, np.float32))
    mean = self.ReduceMean(square, [-1], keepdims=1)
    safe = self.Add(mean, self.constant(EPSILON, np.float32))
    unit = self.Mul(wide, self.Reciprocal(self.Sqrt(safe)))
    return self.Mul(gain, self.Cast(unit, to=TensorProto.FLOAT16))

  def case(self, name, outputs, oracle):
    """``outputs``: name -> (the value that gets it, shape)."""
    renamed = {value: name for name, (value, _) in outputs.items()}
    for node in self._nodes:
      for names in (node.input, node.output):
        names[:] = [renamed.get(n, n) for n in names]
    kind = TensorProto.FLOAT16
    graph = helper.make_graph(
      self._nodes, name.split()[0],
      [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in self.feeds.items()
      ],
      [helper.make_tensor_value_info(n, kind, s) for n, (_, s) in outputs.items()],
      [*self._constants, *(numpy_helper.from_array(x, n) for n, x in self.weights.items())],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return Case(name, model, self.feeds, self.weights, oracle)


def exact_rms_norm(x, gain):
  return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * gain)


def exact_silu(x):
  return np.asarray(x / (1 + np.exp(-x)))


def exact_softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return np.asarray(e / e.sum(-1, keepdims=True))


def times(*extents):
  """4096x4096."""
  return "x".join(map(str, extents))
