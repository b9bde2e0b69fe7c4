"""Block graphs in canonical text, and what they mean in float64."""

import numpy as np
import pytest
from golden_texts import texts_of

from mirage_onnx.ir import DType, KernelParams, parse_ugraph
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray


def numbers(*tile, c=1, w=2, s=2):
  return KernelParams(tile, cluster=c, loop_tile=32 * w, warps=w, stages=s)


#: What a text ``graphs`` of tests/golden.txt computes:
#: plain: o0 = i0 i1
#: scaled: o0 = rsqrt(mean(i0^2) + eps) * (i0 i1) + i2 + i3
#: layouts: every layout of the loop: o0 = (i0 * i2 + i3) (i1 - i4); sums and maxima on the side
#: pair: o0 = sigmoid(i0 i1) * (i0 i2)
#: small_third: o0 = i0 i1 + half(i0 i2) i3: every block has the columns a3 of i2 whole
#: over_columns: y = i0 i1; o0 = y / max|y|, o1 = y rsqrt(sum y^2), over the columns
#: vector: a vector times a matrix, scaled by its own length
#: batch: one product per a3, which the grid splits into ones
#: depth_first: the weight as the model has it
#: rows: o0 = i0 rsqrt(mean(i0^2) + eps) i1, o1 its factor, o2 = exp(i0 - max i0) / sum, transposed
#: rows_mixed: operands of several orders and subsets of axes; bf16
#: chain: a row kernel feeds a streaming kernel
TEXTS = texts_of("graphs")

#: Of the last bit of a 16-bit result, and of fp32 sums in another order.
TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 1e-4}


class Graphs:
  """``graphs["plain"]``; ``graphs["plain:bf16"]`` has bf16 for f16."""

  def text(self, name):
    base, _, dtype = name.partition(":")
    return TEXTS[base].replace("f16", dtype) if dtype else TEXTS[base]

  def __getitem__(self, name):
    return parse_ugraph(self.text(name))

  def inputs(self, graph, extents, rng):
    tensors = {}
    for tensor in graph.tensors:
      shape = tuple(extents[a] for a in tensor.axes)
      values = np.full(shape, np.nan)
      if tensor.role in ("input", "weight"):
        values = rng.standard_normal(shape)
      tensors[tensor.name] = values.astype(tensor.dtype.numpy)
    return tensors

  def expected(self, graph, extents, tensors):
    """The outputs in float64, casts rounded, each kernel one block."""
    inputs = {
      t.name: NamedArray(tensors[t.name].astype(np.float64)[None], t.axes)
      for t in graph.tensors
      if t.role in ("input", "weight")
    }
    numbers = [
      KernelParams(tuple(extents[a] for a in k.grid), loop_tile=extents[k.loop] if k.loop else 0)
      for k in graph.kernels
    ]
    values = interpret_ugraph(Rounded(), graph, numbers, extents, inputs)
    return {t.name: values[t.name].data[0] for t in graph.tensors if t.role == "output"}

  def check(self, graph, got, want):
    for t in graph.tensors:
      if t.role == "output":
        exact, off = want[t.name], TOLERANCE[t.dtype]
        scale = np.abs(exact).max()
        values = got[t.name].astype(np.float64)
        np.testing.assert_allclose(values, exact, rtol=off, atol=off * scale)


@pytest.fixture(scope="session")
def graphs():
  return Graphs()
