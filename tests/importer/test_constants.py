"""Scalar constants: exact values, and the few that stand for an irrational number."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from protos import new_node, typed

from mirage_onnx.importer import atoms, import_model, load_model
from mirage_onnx.importer.constants import find_atom, numbers
from mirage_onnx.ir import Constant, DType

HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
TYPES = {DType.F16: np.float16, DType.BF16: ml_dtypes.bfloat16, DType.F32: np.float32,
         DType.F64: np.float64}  # fmt: skip


def stored(value, dtype):
  return Fraction(float(np.array(value).astype(TYPES[dtype])))


def atom(value, dtype, *dims):
  return find_atom(stored(value, dtype), dtype, numbers(dims))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
  ("value", "dims", "expected"),
  [
    (math.sqrt(2), (), Constant(Fraction(2), HALF)),
    (1 / math.sqrt(2), (), Constant(HALF, HALF)),
    (1 / math.sqrt(80), (80,), Constant(Fraction(1, 80), HALF)),
    (math.sqrt(80), (80,), Constant(Fraction(80), HALF)),
    (1 / 80, (80,), Constant(Fraction(1, 80))),
    (80**-0.25, (80,), Constant(Fraction(1, 80), QUARTER)),
    (1 / math.sqrt(144), (144,), Constant(Fraction(1, 12))),
    # no such dimension; 1e-5; what has few bits was meant as it is
    (1 / math.sqrt(80), (96,), None),
    (1e-5, (64, 4096), None),
    (0.125, (64,), None),
    (1 / 1024, (1024, 1025), None),
    (3.0, (9,), None),
    (-1 / math.sqrt(2), (), None),
    (0.0, (), None),
  ],
)
def test_atoms(dtype, value, dims, expected):
  assert atom(value, dtype, *dims) == expected


@pytest.mark.parametrize("dtype", TYPES)
def test_reach(dtype):
  """A unit away still counts in fp32, where exporters compute; never in 16 bits."""
  near = np.nextafter(np.array(80**-0.5).astype(TYPES[dtype]), np.array(1).astype(TYPES[dtype]))
  far = np.nextafter(near, np.array(1).astype(TYPES[dtype]))
  found = atom(float(near), dtype, 80)
  assert (found is not None) == (dtype in (DType.F32, DType.F64))
  assert atom(float(far), dtype, 80) is None


def test_short_values_stand_for_themselves():
  """1/1025 rounds to 1/1024 in bf16; who wrote 1/1024 meant it."""
  assert stored(1 / 1025, DType.BF16) == Fraction(1, 1024)
  assert atom(1 / 1024, DType.BF16, 1025) is None
  assert atom(1 / 1024, DType.BF16, 1024) is None


@given(st.integers(2, 8192), st.sampled_from([HALF, -HALF, QUARTER, -QUARTER, Fraction(-1)]))
def test_every_dimension(d, exponent):
  """Found from its fp32 rounding and from a unit beside it; the number is within reach."""
  value = float(d) ** float(exponent)
  for direction in (None, 0, np.inf):
    near = np.float32(value)
    near = near if direction is None else np.nextafter(near, np.float32(direction))
    found = find_atom(Fraction(float(near)), DType.F32, numbers({d}))
    if found is not None:
      assert float(found.base) ** float(found.exponent) == pytest.approx(value, rel=2e-7)
    elif direction is None:  # short: a power of two
      assert math.log2(value) == int(math.log2(value)) or value == int(value)


@settings(max_examples=200)
@given(st.floats(2**-9, 1000, width=16), st.sets(st.integers(2, 5000), max_size=20))
def test_atoms_of_half_round_to_what_is_stored(value, dims):
  """Whatever is chosen, the fp16 constant of the model is its rounding."""
  found = find_atom(Fraction(value), DType.F16, numbers(dims))
  if found is not None:
    assert np.float16(float(found.base) ** float(found.exponent)) == np.float16(value)


def scaled(bench, value, width=80, by_node=False, **attribute):
  nodes = [new_node("Mul", "x c", "y")]
  if by_node or attribute:
    attribute = attribute or {"value": numpy_helper.from_array(value)}
    nodes.insert(0, new_node("Constant", "", "c", **attribute))
  weights = {} if len(nodes) == 2 else {"c": value}
  return bench.model(nodes, {"x": (value.dtype, [2, width])}, ["y"], weights)


@pytest.mark.parametrize("by_node", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_in_a_model(bench, shape, by_node):
  value = np.full(shape, 80**-0.5, np.float32)
  loaded = load_model(scaled(bench, value, by_node=by_node))
  program = import_model(loaded)
  expected = Constant(Fraction(1, 80), HALF, "c")
  assert program.constants == {"c": expected}
  assert program.weights == {"c"}
  assert [n.op_type for n in program.nodes] == ["Mul"]
  assert program.nodes[0].steps[0].inputs == ("x", expected)
  assert [str(a) for a in atoms(loaded, program.constants)] == [
    "'c' = 0.111803398 (f32) is taken as (1/80)^(1/2)"
  ]


def test_exact_constants_are_not_reported(bench):
  loaded = load_model(scaled(bench, np.array(1e-5, np.float32)))
  program = import_model(loaded)
  assert program.constants["c"].base == Fraction(float(np.float32(1e-5)))
  assert program.constants["c"].base.denominator == 2**38
  assert atoms(loaded, program.constants) == ()


def test_half(bench):
  program = bench.program(scaled(bench, np.array(0.5, np.float16)))
  assert program.constants["c"] == Constant(HALF, source="c")


@pytest.mark.parametrize(
  ("attribute", "expected"),
  [({"value_float": 0.1}, Fraction(float(np.float32(0.1)))), ({"value_floats": [2.5]}, 2.5)],
)
def test_other_forms_of_constant_nodes(bench, attribute, expected):
  program = bench.program(scaled(bench, np.array(0, np.float32), **attribute))
  assert program.constants["c"].base == expected
  assert program.nodes[0].barrier is None


def test_integers_from_constant_nodes(bench):
  nodes = [
    new_node("Constant", "", "axes", value_ints=[1]),
    new_node("ReduceSum", "x axes", "y"),
  ]
  bench.agrees(bench.model(nodes, {"x": (np.float32, [2, 3])}, ["y"]),
               {"x": np.ones((2, 3), np.float32)})  # fmt: skip


def test_an_initializer_that_is_an_input_can_change(bench):
  model = scaled(bench, np.array(0.5, np.float32))
  model.graph.input.append(typed("c", 1, []))
  program = bench.program(model)
  assert program.constants == {} and program.weights == frozenset()
  assert program.inputs == ("x", "c")
  assert program.nodes[0].steps[0].inputs == ("x", "c")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_strange_values_stay_tensors(bench, value):
  program = bench.program(scaled(bench, np.array(value, np.float32)))
  assert program.constants == {} and program.weights == {"c"}


def test_dimensions_of_index_tensors_do_not_count(bench):
  model = scaled(bench, np.array(7**-0.5, np.float32))
  model.graph.initializer.append(numpy_helper.from_array(np.zeros((7, 2), np.int64), "indices"))
  loaded = load_model(model)
  assert atoms(loaded, import_model(loaded).constants) == ()


@pytest.mark.parametrize("op", ["Add", "Sub", "Max", "Min", "Sum", "Clip", "Where", "Mul", "Div"])
def test_only_factors_stand_for_others(bench, op):
  """Of 0.1 in fp16 and the same, added with another sign, nothing is left; 1/10 would leave 2e-5."""
  x, c = np.full((2, 10), 0.1, np.float16), np.array(0.1, np.float16)
  arrays = {"Where": [x > 0, x, c], "Clip": [x, c]}.get(op, [x, c])
  model, _ = bench.one(op, arrays, weights=(len(arrays) - 1,), opset=18)
  step, *bound = bench.program(model).nodes[0].steps
  assert len(bound) == (op == "Clip")  # the end of the type
  (constant,) = (i for i in step.inputs if not isinstance(i, str))
  assert constant.base == (Fraction(1, 10) if op in ("Mul", "Div") else Fraction(float(c)))
