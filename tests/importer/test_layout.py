"""Layout operators against ONNX Runtime: shapes with common factors, and repeated elements."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_onnx.ir.factors import have_common_factors

few = settings(max_examples=25, deadline=None)
SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def ramp(shape, dtype=np.float32):
  return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


@few
@given(shape=SHAPES, data=st.data(), opset=st.sampled_from([13, 21, 26]))
def test_transpose(bench, shape, data, opset):
  perm = data.draw(st.none() | st.permutations(range(len(shape))))
  attributes = {} if perm is None else {"perm": perm}
  bench.agrees(*bench.one("Transpose", [ramp(shape)], opset=opset, **attributes))


@few
@given(sides=st.lists(st.integers(2, 4), max_size=3), data=st.data(),
       opset=st.sampled_from([13, 14, 26]))  # fmt: skip
def test_reshape(bench, sides, data, opset):
  """Ones inserted and removed anywhere, with -1 or 0 in the place of what it stands for."""
  shapes = []
  for _ in range(2):
    shape = list(sides)
    for _ in range(data.draw(st.integers(0, 2))):
      shape.insert(data.draw(st.integers(0, len(shape))), 1)
    shapes.append(shape)
  have, want = shapes
  target = list(want)
  if target and data.draw(st.booleans()):
    target[data.draw(st.integers(0, len(target) - 1))] = -1
  elif have and want and have[0] == want[0] and data.draw(st.booleans()):
    target[0] = 0
  arrays = [ramp(have), np.array(target, np.int64)]
  program = bench.agrees(*bench.one("Reshape", arrays, weights=(1,), opset=opset))
  assert program.tensors["y0"].shape == tuple(want)


@few
@given(sides=st.lists(st.integers(2, 4), max_size=2), data=st.data())
def test_squeeze_and_unsqueeze(bench, sides, data):
  rank = len(sides) + 2
  axes = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=2, max_size=2)))
  wide = list(sides)
  for a in axes:
    wide.insert(a, 1)
  signed = [a - rank if data.draw(st.booleans()) else a for a in axes]
  listed = np.array(signed, np.int64)
  bench.agrees(*bench.one("Unsqueeze", [ramp(sides), listed], weights=(1,)))
  bench.agrees(*bench.one("Squeeze", [ramp(wide), listed], weights=(1,)))
  bench.agrees(*bench.one("Squeeze", [ramp(wide)]))


@few
@given(sides=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data())
def test_reshape_that_regroups(bench, sides, data):
  """Neighbours joined and dimensions split at random; a refusal says that nothing fits."""
  want = list(sides)
  for _ in range(3):
    k = data.draw(st.integers(0, len(want) - 1))
    if data.draw(st.booleans()) and k:
      want[k - 1 : k + 1] = [want[k - 1] * want[k]]
    else:
      n = data.draw(st.sampled_from([d for d in range(1, want[k] + 1) if want[k] % d == 0]))
      want[k : k + 1] = [n, want[k] // n]
  model, feeds = bench.one("Reshape", [ramp(sides), np.array(want)], weights=(1,))
  node = bench.program(model).nodes[0]
  if node.barrier is None:
    assert bench.agrees(model, feeds).tensors["y0"].shape == tuple(want)
  else:
    assert not have_common_factors(sides, want)
    assert node.barrier.reason.startswith("Reshape: regroups dimensions")


@pytest.mark.parametrize(
  ("shape", "axis"),
  [((1, 3), 1), ((3, 1, 1), 1), ((1, 1, 4), -1), ((5,), 0), ((2, 3, 4), 1), ((2, 3, 4), 3)],
)
def test_flatten(bench, shape, axis):
  bench.agrees(*bench.one("Flatten", [ramp(shape)], axis=axis))


@pytest.mark.parametrize(
  ("have", "want"), [((3,), (1, 3)), ((2, 3), (2, 3)), ((2, 3), (1, 1)), ((3, 1), (1, 1, 3, 1))]
)
def test_expand_that_repeats_nothing(bench, have, want):
  bench.agrees(*bench.one("Expand", [ramp(have), np.array(want)], weights=(1,)))


@pytest.mark.parametrize(
  ("have", "want"),
  [((2, 1), (2, 4)), ((), (4,)), ((3, 1), (2, 1, 4)), ((1, 2, 1, 3), (1, 2, 5, 3))],
)
def test_expand_that_repeats(bench, have, want):
  model, feeds = bench.one("Expand", [ramp(have), np.array(want)], weights=(1,))
  program = bench.agrees(model, feeds)
  assert [s.op for s in program.nodes[0].steps] == ["expand"]


def test_half_and_double_move_too(bench):
  for dtype in (np.float16, np.float64):
    bench.agrees(*bench.one("Transpose", [ramp((2, 3), dtype)]))


@pytest.mark.parametrize(
  ("op", "have", "parameter", "reason"),
  [
    ("Reshape", (2, 3), [3, 2], "Reshape: regroups dimensions: 2x3 to 3x2"),
    ("Reshape", (4, 6), [3, 8], "Reshape: regroups dimensions: 4x6 to 3x8"),
    ("Reshape", (5, 4, 6), [5, 3, 8], "Reshape: regroups dimensions: 5x4x6 to 5x3x8"),
  ],
)
def test_refusals(bench, op, have, parameter, reason):
  model, _ = bench.one(op, [ramp(have), np.array(parameter)], weights=(1,))
  assert bench.barrier(model) == f"OP_FORM: {reason}"


def test_shape_from_a_run_is_refused(bench):
  model, _ = bench.one("Reshape", [ramp((2, 3)), np.array([3, 2])])
  assert bench.barrier(model).split(":")[0] in ("RANK_UNKNOWN", "DYNAMIC_DIM")


@few
@given(shape=SHAPES, data=st.data(), dtype=st.sampled_from([np.float32, np.float16, np.bool_]))
def test_gather_nd_of_everything(bench, shape, data, dtype):
  """Every element once, in order, named from either end; a mask between dimensions of 1."""
  places = np.stack(np.indices(shape), -1).astype(np.int64)
  if data.draw(st.booleans()):
    places -= np.array(shape)
  places = places[None] if data.draw(st.booleans()) else places
  arrays = [(ramp(shape, np.float32) % 3).astype(dtype), places]
  program = bench.agrees(*bench.one("GatherND", arrays, weights=(1,)))
  assert next(s.op for s in program.nodes[0].steps) in ("reshape", "cast")


def test_gather_nd_of_anything_else(bench):
  x, order = ramp((2, 3)), np.stack(np.indices((2, 3)), -1)
  other = "OP_FORM: GatherND: picks other elements than all of them, in order"
  part = "OP_FORM: GatherND: picks parts of a tensor"
  parts = "OP_FORM: GatherND: picks other parts than rows where a run says"

  def reason(indices, weights=(1,), **attributes):
    return bench.barrier(bench.one("GatherND", [x, indices], weights, **attributes)[0])

  assert reason(order[::-1].copy()) == reason(order[:1]) == other
  assert reason(order + np.array([2, 0])) == other  # beyond the end
  assert reason(order[..., :1].copy()) == part
  assert reason(order[:, 0, 1:].copy(), batch_dims=1) == part
  assert reason(order, ()) == parts
  assert reason(order[:, 0, 1:].copy(), (), batch_dims=1) == parts


@few
@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=3).map(tuple), data=st.data())
def test_gather_nd_of_rows_that_a_run_picks(bench, shape, data):
  """They may come again, and count from either end."""
  count = data.draw(st.lists(st.integers(-shape[0], shape[0] - 1), min_size=1, max_size=5))
  rows = np.array(count, np.int64).reshape(data.draw(st.sampled_from([(-1, 1), (1, -1, 1), (-1, 1, 1, 1)])))
  rows = data.draw(st.sampled_from([rows, np.stack([rows, rows])]))
  program = bench.agrees(*bench.one("GatherND", [ramp(shape), rows]))
  assert next(s.op for s in program.nodes[0].steps) == "gather"


def test_rows_of_a_table_of_any_size(bench):
  """What is not known of it would not be read safely."""
  model, _ = bench.one("GatherND", [ramp((3, 2)), np.array([[1]])])
  model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
  reason = "DYNAMIC_DIM: GatherND: the rows that it picks of are not known"
  assert bench.barrier(model) == reason


def test_rows_of_unknown_rank(bench):
  model, _ = bench.one("GatherND", [ramp((3, 2)), np.array([[1]])])
  model.graph.input[1].type.tensor_type.ClearField("shape")
  del model.graph.output[0].type.tensor_type.shape.dim[:]
  for n in (1, 2):
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = n
  reason = "RANK_UNKNOWN: GatherND: how many rows it picks is not known"
  assert bench.barrier(model) == reason
