"""Programs for the search: graphs of primitive ONNX operators whose weights have a shape, no data.

``ProgramNet`` declares every weight as a graph input and ``region`` imports it as if it were an
initializer: the search reads only shapes. The methods write what exporters write.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.whole import whole_region

#: What a program may be made of: one primitive step each, or none (layout).
PRIMITIVE = frozenset({
  "MatMul", "Add", "Sub", "Mul", "Div", "Neg", "Pow", "Sqrt", "Reciprocal", "Abs", "Max", "Min",
  "Exp", "Log", "Tanh", "Erf", "Sigmoid", "Relu", "ReduceMean", "ReduceSum", "ReduceMax",
  "Cast", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Expand",
})  # fmt: skip

EPSILON = 1e-5


class ProgramNet(Net):
  """A ``Net`` whose weights are declared only; numbers in the nodes stay constants."""

  def __init__(self):
    super().__init__()
    self.declared = []
    self.values = {}

  def weight(self, *shape, scale=None):
    """A weight of this shape; ``scale`` belongs to the data, which there is none of."""
    name = self.input(*shape)
    self.declared.append(name)
    return name

  def positive_weight(self, size):
    """A vector that a root is taken of, such as a variance: numeric checks need its values."""
    name = self.weight(size)
    self.values[name] = (0.5 + self.rng.random(size)).astype(np.float16)
    return name

  def wide(self, x):
    return self.cast(x, np.float32)

  def half(self, x):
    return self.cast(x, np.float16)

  def shifted(self, x, number):
    return self.Add(x, self.constant(number, np.float32))

  def rms_norm(self, x, gamma=None):
    wide = self.wide(x)
    power = self.Pow(wide, self.constant(2.0, np.float32))
    root = self.Sqrt(self.shifted(self.ReduceMean(power, [-1]), EPSILON))
    y = self.half(self.Div(wide, root))
    return self.Mul(gamma, y) if gamma else y

  def centred(self, x, axes):
    wide = self.wide(x)
    shifted = self.Sub(wide, self.ReduceMean(wide, axes))
    power = self.Pow(shifted, self.constant(2.0, np.float32))
    root = self.Sqrt(self.shifted(self.ReduceMean(power, axes), EPSILON))
    return self.Div(shifted, root)

  def layer_norm(self, x, gamma=None, beta=None):
    y = self.half(self.centred(x, [-1]))
    y = self.Mul(y, gamma) if gamma else y
    return self.Add(y, beta) if beta else y

  def unit(self, x):
    wide = self.wide(x)
    length = self.Sqrt(self.ReduceSum(self.Mul(wide, wide), [-1]))
    return self.half(self.Div(wide, length))

  def softmax(self, x):
    wide = self.wide(x)
    e = self.Exp(self.Sub(wide, self.ReduceMax(wide, [-1])))
    return self.half(self.Div(e, self.ReduceSum(e, [-1])))

  def silu(self, x):
    return self.Mul(x, self.Sigmoid(x))

  def gelu(self, x):
    inner = self.Add(self.Erf(self.Div(x, float(np.sqrt(2)))), 1.0)
    return self.Mul(self.Mul(x, inner), 0.5)

  def transposed(self, x, rank):
    return self.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


#: Writes a program into a net; the names of its outputs.
Build = Callable[[ProgramNet], tuple[str, ...]]


def onnx_model(build):
  """The graph, and those of its inputs that are weights."""
  net = ProgramNet()
  return net.model(*build(net)), tuple(net.declared)


def region(build):
  """All nodes of a program as one region.

  Raises:
      RejectionError: the importer or the matcher has no meaning for a node.
  """
  model, weights = onnx_model(build)
  return whole_region(as_weights(import_model(load_model(model)), weights))


def weight_values(build):
  """The values of those weights that not every value makes sense for, by ONNX name."""
  net = ProgramNet()
  build(net)
  return net.values


def as_weights(program, names):
  """The program with these inputs as initializers that no run can change."""
  return replace(
    program,
    inputs=tuple(i for i in program.inputs if i not in names),
    weights=program.weights | frozenset(names),
  )


def operators(model):
  found = [(n.domain, n.op_type) for n in model.graph.node]
  return frozenset(f"{d}::{name}" if d else name for d, name in found)
