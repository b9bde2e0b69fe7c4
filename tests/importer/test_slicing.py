"""Parts of tensors against ONNX Runtime: slices, splits, concatenations, picked ranges, rotary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_onnx.importer.slicing import MOST_NEW

few = settings(max_examples=40, deadline=None)
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
F32, MS = np.float32, "com.microsoft"


def ramp(shape, dtype=F32):
  return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


def lowered(bench, model, feeds):
  barrier = bench.program(model).nodes[0].barrier
  if barrier is None:
    bench.agrees(model, feeds)
  return barrier is None


@few
@given(shape=SHAPES, data=st.data())
def test_slice(bench, shape, data):
  """Any bounds; strides that divide a dimension, from either of its elements."""
  axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
  steps = [data.draw(st.sampled_from((1, 1, 2, 3))) for _ in axes]
  bounds = [[data.draw(st.integers(-7, 7)) for _ in axes] for _ in range(2)]
  signed = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
  arrays = [ramp(shape), *(np.array(x, np.int64) for x in (*bounds, signed, steps))]
  model, feeds = bench.one("Slice", arrays, weights=(1, 2, 3, 4))
  taken = [range(shape[a])[slice(*b)] for a, *b in zip(axes, *bounds, steps, strict=True)]
  if lowered(bench, model, feeds):
    assert all(taken)
  else:
    assert not all(taken) or any(
      shape[a] % s and len(t) > 1 for a, s, t in zip(axes, steps, taken, strict=True)
    )


@few
@given(shape=SHAPES, data=st.data(), opset=st.sampled_from([13, 18, 26]))
def test_split(bench, shape, data, opset):
  axis = data.draw(st.integers(0, len(shape) - 1))
  cuts = sorted(data.draw(st.sets(st.integers(1, max(1, shape[axis] - 1)), max_size=2)))
  cuts = [c for c in cuts if c < shape[axis]]
  sizes = np.diff([0, *cuts, shape[axis]])
  if data.draw(st.booleans()) and len(set(sizes)) == 1:
    more = {"num_outputs": len(sizes)} if opset > 13 else {}
    arrays, weights = [ramp(shape)], ()
  else:
    more, arrays, weights = {}, [ramp(shape), sizes.astype(np.int64)], (1,)
  model, feeds = bench.one("Split", arrays, weights, outputs=len(sizes), opset=opset, axis=axis, **more)
  bench.agrees(model, feeds)


@few
@given(shape=SHAPES, data=st.data(), dtype=st.sampled_from([F32, np.float16, np.int64]))
def test_concat(bench, shape, data, dtype):
  axis = data.draw(st.integers(-len(shape), len(shape) - 1))
  sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
  arrays = []
  for n in sizes:
    own = list(shape)
    own[axis] = n
    arrays.append(ramp(own, dtype))
  bench.agrees(*bench.one("Concat", arrays, axis=axis))


@pytest.mark.parametrize(
  ("indices", "is_range"),
  [(2, True), (-1, True), ([1], True), ([1, 2, 3], True), ([-3, -2], True), ([1, 3, 5], True),
   ([[1, 2], [3, 4]], True), ([2, 1], False), ([1, 1], False), ([0, 1, 3], False)],
)  # fmt: skip
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_of_a_range(bench, indices, is_range, axis):
  arrays = [ramp((6, 6, 6)), np.array(indices)]
  assert lowered(bench, *bench.one("Gather", arrays, weights=(1,), axis=axis)) == is_range
  if axis:
    model, _ = bench.one("Gather", arrays, axis=axis)
    assert bench.barrier(model) == "OP_FORM: Gather: picks other parts than rows where a run says"


@few
@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=3).map(tuple), data=st.data())
def test_gather_of_rows_that_a_run_picks(bench, shape, data):
  """Ids of any shape; they may come again, and count from either end."""
  by = data.draw(st.lists(st.integers(1, 3), max_size=3).map(tuple))
  ids = st.lists(st.integers(-shape[0], shape[0] - 1), min_size=int(np.prod(by)), max_size=int(np.prod(by)))
  rows = np.array(data.draw(ids), data.draw(st.sampled_from([np.int32, np.int64]))).reshape(by)
  program = bench.agrees(*bench.one("Gather", [ramp(shape), rows]))
  assert program.nodes[0].steps[0].op == "gather"


def test_gather_of_what_is_not_known(bench):
  """Elements of a list are no rows; a table of any size, or any number of ids, would not be read safely."""
  rows = np.array([[1]])
  assert bench.barrier(bench.one("Gather", [ramp((3,)), rows])[0]).startswith("OP_FORM: Gather: picks other")
  model, _ = bench.one("Gather", [ramp((3, 2)), rows])
  model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
  assert bench.barrier(model) == "DYNAMIC_DIM: Gather: the rows that it picks of are not known"
  model, _ = bench.one("Gather", [ramp((3, 2)), rows])
  model.graph.input[1].type.tensor_type.ClearField("shape")
  for n in (1, 1, 2):
    model.graph.output[0].type.tensor_type.shape.dim.add().dim_value = n
  assert bench.barrier(model) == "RANK_UNKNOWN: Gather: how many rows it picks is not known"


@pytest.mark.parametrize(
  ("rows", "is_range"),
  [([2], True), ([0, 1], True), ([-2, -1], True), ([1, 2, 3], True), ([0, 1, 2, 3, 4, 5], True),
   ([2, 1], False), ([1, 1], False), ([1, 3, 5], False)],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [F32, np.int64])
def test_rows_that_are_replaced(bench, rows, is_range, dtype):
  arrays = [ramp((6, 2, 3), dtype), np.array(rows)[:, None], -ramp((len(rows), 2, 3), dtype)]
  assert lowered(bench, *bench.one("ScatterND", arrays, weights=(1,))) == is_range


def test_refused_scatters(bench):
  x, rows = ramp((6, 2)), np.array([[1], [2]])

  def reason(arrays, weights=(1,), **more):
    return bench.barrier(bench.one("ScatterND", arrays, weights=weights, **more)[0])

  assert reason([x, rows, ramp((2, 2))], ()) == "OP_FORM: ScatterND: the indices 'x1' are not constant"
  assert reason([x, rows, ramp((2, 2))], reduction="add") == "OP_FORM: ScatterND: reduction 'add'"
  single = [x, np.array([[1, 0], [1, 1]]), ramp((2,))]
  assert reason(single) == "OP_FORM: ScatterND: indices of shape [2, 2] do not name rows"
  every = [x, np.array([[1], [3], [5]]), ramp((3, 2))]
  assert reason(every) == "OP_FORM: ScatterND: replaces every 2th row"
  twice = [x, np.array([[1], [1]]), ramp((2, 2))]
  assert reason(twice) == "OP_FORM: ScatterND: picks elements that do not ascend in equal steps"


@pytest.mark.parametrize(
  ("op", "arrays", "more", "reason"),
  [
    ("Slice", [[5], [0], [0], [-1]], {}, "takes every -1th of 5 elements"),
    ("Slice", [[5], [3], [0], [2]], {}, "takes every 2th of 5 elements"),
    ("Gather", [[2, 0]], {}, "picks elements that do not ascend in equal steps"),
  ],
)
def test_refusals(bench, op, arrays, more, reason):
  held = [np.array(a) for a in arrays]
  if op == "Slice":
    ends, starts, axes, steps = held
    starts, ends = (np.array([4]), np.array([-9])) if steps[0] < 0 else (axes, ends)
    held = [starts, ends, axes, steps]
  model, _ = bench.one(op, [ramp((5,)), *held], weights=range(1, 1 + len(held)), **more)
  assert bench.barrier(model) == f"OP_FORM: {op}: {reason}"


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("turned", [0, 4])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("domain", ["", MS])
def test_rotary_embedding(bench, rng, domain, rank, turned, interleaved):
  batch, heads, length, size = 2, 3, 5, 8
  shape = (batch, heads, length, size) if rank == 4 else (batch, length, heads * size)
  x, half = rng.standard_normal(shape).astype(F32), (turned or size) // 2
  more = {"interleaved": interleaved, "num_heads": heads, "rotary_embedding_dim": turned}
  tables = rng.standard_normal((2, 9, half)).astype(F32)
  rows = np.tile(np.arange(2, 2 + length), (batch, 1))
  order = (lambda t, p: [x, p, *t]) if domain else (lambda t, p: [x, *t, p])
  at = 1 if domain else 3
  for given_rows in (rows, np.array([2])) if domain else (rows,):
    model, feeds = bench.one("RotaryEmbedding", order(tables, given_rows), weights=(at,),
                             opset=23, domain=domain, **more)  # fmt: skip
    bench.agrees(model, feeds)
  if not domain:
    tables = rng.standard_normal((2, batch, length, half)).astype(F32)
    bench.agrees(*bench.one("RotaryEmbedding", [x, *tables], opset=23, **more))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 3), length=st.integers(1, 4),
       rank=st.sampled_from([3, 4]), domain=st.sampled_from(["", MS]), turned=st.sampled_from([0, 4]),
       interleaved=st.integers(0, 1), one=st.booleans())  # fmt: skip
def test_rotary_embedding_at_positions_of_a_run(
  bench, seed, batch, length, rank, domain, turned, interleaved, one
):
  """A place for each row, in no order; of one row for all of the batch, too."""
  rng, heads, size, room = np.random.default_rng(seed), 3, 8, 9
  shape = (batch, heads, length, size) if rank == 4 else (batch, length, heads * size)
  x, tables = rng.standard_normal(shape).astype(F32), rng.standard_normal((2, room, (turned or size) // 2))
  rows = rng.integers(0, room, (1,) if one and domain else (batch, length))
  arrays = [x, rows, *tables.astype(F32)] if domain else [x, *tables.astype(F32), rows]
  if one and domain and length > 1:
    rows[:] = 2
  model, feeds = bench.one("RotaryEmbedding", arrays, opset=23, domain=domain, interleaved=interleaved,
                           num_heads=heads, rotary_embedding_dim=turned)  # fmt: skip
  if one and domain and length > 1:
    assert bench.barrier(model).endswith("a run names 1 positions, not one for each of the sequence")
  else:
    bench.agrees(model, feeds)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 3), room=st.integers(1, 10),
       count=st.integers(1, MOST_NEW), axis=st.sampled_from([None, 1, 2, -1]), around=st.booleans(),
       places=st.booleans())  # fmt: skip
def test_tensor_scatter(bench, seed, batch, room, count, axis, around, places):
  """A place around the end may be any number, of which onnxruntime takes the rest."""
  rng = np.random.default_rng(seed)
  shape, count = [batch, 2, 3, 4], min(count, room)
  at = 2 if axis is None else axis % 4
  shape[at] = room
  cache = rng.standard_normal(shape).astype(np.float32)
  shape[at] = count
  new = rng.standard_normal(shape).astype(np.float32)
  more = ({} if axis is None else {"axis": axis}) | ({"mode": "circular"} if around else {})
  first = [rng.integers(0, 3 * room if around else room - count + 1, batch)] if places else []
  model, feeds = bench.one("TensorScatter", [cache, new, *first], opset=24, **more)
  if around and places:
    assert bench.barrier(model).endswith("a run may name a place behind the end, which is one around it")
  else:
    bench.agrees(model, feeds)


@pytest.mark.parametrize(
  ("new", "more", "reason"),
  [
    ((2, 3, 9, 5), {}, "OP_FORM: TensorScatter: 9 rows of 9: it takes up to 8, with a place for"),
  ],
)
def test_tensor_scatter_of_other_rows(bench, new, more, reason):
  arrays = [np.ones((2, 3, 9, 5), "f"), np.ones(new, "f"), np.array([0, 1])]
  model, _ = bench.one("TensorScatter", arrays, opset=24, **more)
  assert bench.barrier(model).startswith(reason)


def test_tensor_scatter_of_rows_that_a_run_counts(bench):
  arrays = [np.ones((2, 3, 9, 5), "f"), np.ones((2, 3, 2, 5), "f"), np.array([0, 1])]
  model, _ = bench.one("TensorScatter", arrays, opset=24)
  model.graph.input[1].type.tensor_type.shape.dim[2].dim_param = "new"
  assert bench.barrier(model).startswith("DYNAMIC_DIM: TensorScatter: of a cache or of rows")
