"""As what a node is looked up in a grid of measured times (``operator_grid.py``): kind, type and sizes.

The kinds are those of ``bench/operator_times.py``. An elementwise operator is several: both operands of one
shape (``Add``), a number (``AddScalar``), a row of the last dimension (``AddRow``), one number a row
(``AddColumn``), and other broadcasts (``AddMiddle``). Products of two activations are ``scores`` (about as
many columns as rows, of a short depth) or ``values`` (about as deep as they have rows); a library's kernels
for them depend on what divides their sizes. What reduces its last dimensions has rows and columns. None: a
node of which no grid says anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from math import gcd, prod
from typing import NamedTuple

from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Node, Program, Step
from mirage_onnx.targets import table_path

TYPES = {DType.F16: "fp16", DType.BF16: "bf16", DType.F32: "fp32"}
#: Operators with two operands of one shape, and the one whose broadcasts were measured for it.
BINARY = {"Add": "Add", "Sub": "Add", "Mul": "Mul", "Div": "Mul", "Max": "Add", "Min": "Add"}
#: How the kinds of its broadcasts end.
BROADCASTS = ("Scalar", "Row", "Column", "Middle")
#: What counts by what it yields.
OTHERS = ("Slice", "Split", "Expand", "Gather", "Cast", "Where", "Pow", "Clip")
REDUCTIONS = ("mean", "sum", "rmax")
#: What divides the sizes of a product matters up to here.
ALIGNED = 8


class GridPlace(NamedTuple):
  """Where a node is looked up."""

  kind: str
  dtype: str
  sizes: tuple[int, ...]


def place_of(node: Node, program: Program) -> GridPlace | None:
  """The place of a node of static shapes."""
  out = program.tensors.get(node.outputs[0]) if node.outputs else None
  if out is None or not out.is_static:
    return None
  shapes = [program.numbers(i) for i in node.inputs if i]
  first = program.tensors.get(node.inputs[0]) if node.inputs else None
  typed = program.tensors.get(node.inputs[1]) if node.op_type == "Where" else first
  if typed is None or first is None or typed.dtype not in TYPES or any(s is None for s in shapes):
    return None
  dtype = TYPES[typed.dtype]
  if any(s.op == "matmul" for s in node.steps):
    return _product(node, program, dtype)
  op = _alike().get(node.op_type, node.op_type)
  made = sum(prod(program.numbers(o) or ()) for o in node.outputs)
  if op in BINARY and len(node.inputs) == 2:
    return GridPlace(_broadcast(op, node, program), dtype, (made,))
  if reduced := next((s for s in node.steps if s.op in REDUCTIONS), None):
    found = _rows(reduced, program.numbers(node.inputs[0]) or ())
    return GridPlace(op, dtype, found) if found else None
  if op == "Transpose":
    attr = next((s.attr for s in node.steps if s.op == "transpose"), None)
    turned = isinstance(attr, tuple) and attr[-1] != len(attr) - 1
    return GridPlace("Turned" if turned else "Transpose", dtype, (made,))
  if op == "Concat":
    same = len({s[-1] for s in shapes if s}) == 1
    return GridPlace("Append" if same else "Concat", dtype, (made,))
  return GridPlace(op, dtype, (made if op in OTHERS else max(made, prod(shapes[0] or ())),))


def _product(node: Node, program: Program, dtype: str) -> GridPlace | None:
  """Of a product: with a weight, or of two activations."""
  if sum(s.op == "matmul" for s in node.steps) > 1 or any(s.op == "stored" for s in node.steps):
    return None
  out = program.numbers(node.outputs[0]) or (1,)
  weights = [program.numbers(i) or () for i in node.inputs[:2] if i in program.weights]
  if weights and len(weights[0]) >= 2:
    n = out[-1]
    k = prod(weights[0]) // max(1, n)
    return GridPlace("MatMul", dtype, (max(1, prod(out[:-1])), k, n))
  left = program.numbers(node.inputs[0]) or ()
  if len(out) < 2 or len(left) < 2:
    return None
  return batched(dtype, prod(out[:-2]), out[-2], left[-1], out[-1])


def batched(dtype: str, b: int, m: int, k: int, n: int) -> GridPlace:
  """The place of ``b`` products of m x k with k x n, neither of them a weight.

  With another number of rows than columns those count as more or fewer of as many rows as columns.
  """
  divisor = gcd(gcd(k, n), ALIGNED)
  # Scores have about as many columns as rows, values are as deep as they have rows.
  is_scores = n >= k if m == 1 else max(m, n) * min(m, k) <= max(m, k) * min(m, n)
  name, length, depth = ("scores", n, k) if is_scores else ("values", k, n)
  if m == 1:
    return GridPlace(f"{name} of a row/{divisor}", dtype, (b, length, depth))
  return GridPlace(f"{name}/{divisor}", dtype, (max(1, round(b * m / length)), length, depth))


def _broadcast(op: str, node: Node, program: Program) -> str:
  """The kind of an elementwise operator of two operands."""
  out = program.numbers(node.outputs[0]) or ()
  small = min((program.numbers(i) or () for i in node.inputs), key=prod)
  if prod(small) == 1 and prod(out) > 1:
    return f"{op}Scalar" if op not in ("Max", "Min") else "AddScalar"
  if prod(small) == prod(out):
    return op if op not in ("Max", "Min") else "Add"
  like = BINARY[op]
  if prod(small) == small[-1] == out[-1]:
    return f"{like}Row"
  if small[-1] == 1 and prod(small) == prod(out[:-1]):
    return f"{like}Column"
  return f"{like}Middle"


def _rows(reduced: Step, shape: tuple[int, ...]) -> tuple[int, int] | None:
  """Rows, and columns that are taken together; None where those are not the last dimensions."""
  axes = sorted(reduced.attr) if isinstance(reduced.attr, tuple) else []
  if not axes or axes != [*range(len(shape) - len(axes), len(shape))]:
    return None
  columns = prod(shape[len(shape) - len(axes) :])
  return max(1, prod(shape) // max(1, columns)), columns


@cache
def _alike() -> Mapping[str, str]:
  """Operator -> the one that was measured for it."""
  found: dict[str, str] = json.loads(table_path("ort_fusions").read_text())["alike"]
  return found
