"""Each elementwise rule, through a row kernel on the emulator, against the table of ``ir.functions``."""

from fractions import Fraction

import numpy as np
import pytest
from golden_texts import PROGRAMS

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.codegen.elementwise import expression, literal
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.ir.functions import ELEMENTWISE, is_elementwise
from mirage_onnx.target import H200

POWERS = [Fraction(n) for n in (0, 1, 2, 3, 5, -1, -3, 32)] + [
  Fraction(1, 2), Fraction(-1, 2), Fraction(3, 2), Fraction(-7, 3)]  # fmt: skip
TEXT = PROGRAMS["operands_of_an_operation"]
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 88.0, -104.0, 1e-30, 3e38, 1e5, 7.5e6]
OPERANDS = {1: "%0", 2: "%0 %1", 3: "%2 %0 %1"}
OPERATIONS = [
  *(f"{op} {OPERANDS[e.arity]}" for op, e in sorted(ELEMENTWISE.items())),
  *(f"powr[{e}] %0" for e in POWERS),
]


@pytest.fixture(scope="module")
def module():
  kernels = []
  for operation in OPERATIONS:
    graph = parse_ugraph(TEXT.format(operation))
    kernels.append(
      emit_kernel(graph, graph.kernels[0], KernelParams((1,), warps=1), {"a0": 2, "a1": 256}, H200)
    )
  return compile_kernels(kernels)


@pytest.mark.parametrize("case", range(len(OPERATIONS)), ids=OPERATIONS)
def test_rule(module, case):
  rng = np.random.default_rng(case)
  x = (rng.standard_normal((2, 256)) * 3).astype(np.float32)
  y = (rng.standard_normal((2, 256)) * 3).astype(np.float32)
  pairs = [(a, b) for a in SPECIAL for b in SPECIAL]
  x[0, : len(pairs)], y[0, : len(pairs)] = zip(*pairs, strict=True)
  op = OPERATIONS[case].split()[0]
  if op in ("sin", "cos"):
    x[np.abs(x) > 1e8] = 0  # beyond this fp64 holds no fraction of a turn that matters
  if op == "powr[-1/2]":
    x = np.abs(x)  # of -0 and -inf, rsqrt and power differ
  c = rng.integers(0, 2, x.shape).astype(bool)
  tensors = {"i0": x, "i1": y, "i2": c, "o0": np.full_like(x, 42)}
  module.run(tensors, [case])
  with np.errstate(all="ignore"):
    if op.startswith("powr"):
      want = np.power(x.astype(np.float64), float(POWERS[case - len(ELEMENTWISE)]))
    else:
      names = OPERANDS[ELEMENTWISE[op].arity].split()
      values = {"%0": x, "%1": y, "%2": c}
      want = ELEMENTWISE[op].reals(*(values[n].astype(np.float64) for n in names))
    want = want.astype(np.float32)
  got = tensors["o0"]
  tiny = np.abs(want) < 1e-37  # denormal results may be flushed
  np.testing.assert_allclose(got[~tiny], want[~tiny], rtol=4e-6, atol=3e-7)
  np.testing.assert_allclose(got[tiny], 0, atol=3e-7)


def test_the_table_has_every_function():
  assert all(is_elementwise(op) for op in ELEMENTWISE)


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (Fraction(1, 2), "0.5f"),
    (Fraction(-3), "(-3.0f)"),
    (Fraction(0), "0.0f"),
    (Fraction(1, 100000), "1.0e-05f"),
    (Fraction(10**30), "1.0e+30f"),
    (Fraction(1, 10**60), "0.0f"),
    ("pi", "3.1415927f"),
    (Fraction(1, 3), "0.33333334f"),
  ],
)
def test_literal(value, text):
  assert literal(value) == text


def test_refusals():
  with pytest.raises(RejectionError, match="no expression for the operation 'gather'"):
    expression("gather", ["x"])
  with pytest.raises(RejectionError, match="not a rational exponent"):
    expression("powr", ["x"], "pi")
