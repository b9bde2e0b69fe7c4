"""GroupQueryAttention of one new token against ONNX Runtime, or a refusal that says why."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from mirage_onnx.importer.causal import MOST_PLACES

few = settings(max_examples=200, deadline=None)
MS = "com.microsoft"


def step(bench, rng, batch, own, shared, size, room, *, lengths=None, packed=False, half=False, rotary=0,
         positions=False, sink=False, norms=False, presents=True, new=1, total=None, **more):  # fmt: skip
  """A model of one node whose cache has its own size before and after, and its feeds."""
  dtype, heads = np.float16 if half else np.float32, own * shared

  def normal(*shape):
    return rng.standard_normal(shape).astype(dtype)

  lengths = np.array(rng.integers(0, room, batch) if lengths is None else lengths, np.int32)
  wide = [heads * size, own * size, own * size]
  arrays = [normal(batch, new, sum(wide)), None, None] if packed else [normal(batch, new, n) for n in wide]
  caches = [normal(batch, own, room, size) for _ in range(2)]
  for cache in caches:  # ONNX Runtime writes zeros behind the new row
    for b, n in enumerate(lengths):
      cache[b, :, max(n + 1 - new, 0) :] = 0
  arrays += [*caches, lengths, np.array(total or lengths.max() + 1, np.int32)]
  arrays += [normal(room, rotary // 2) for _ in range(2)] if rotary else [None, None]
  arrays.append(rng.integers(0, room, (batch, 1)) if positions else None)
  arrays += [None, normal(heads) if sink else None, None, None]
  arrays += [normal(size) for _ in range(2)] if norms else []
  while arrays[-1] is None:
    arrays.pop()
  model, feeds = bench.one(
    "GroupQueryAttention", arrays, outputs=["y", "k", "v"] if presents else ["y"], domain=MS,
    num_heads=heads, kv_num_heads=own, do_rotary=int(rotary > 0), **more,
  )  # fmt: skip
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  for value in model.graph.output:
    shape = caches[0].shape if value.name != "y" else (batch, new, wide[0])
    value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
  return model, feeds


@few
@given(
  seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 3), own=st.integers(1, 2), shared=st.integers(1, 3),
  size=st.sampled_from([16, 32]), room=st.integers(1, 9), packed=st.booleans(), half=st.booleans(),
  rotary=st.sampled_from([0, 16, 32]), rotary_interleaved=st.integers(0, 1), positions=st.booleans(),
  window=st.sampled_from([-1, 1, 2, 5]), softcap=st.sampled_from([0.0, 2.0]),
  scale=st.sampled_from([0.0, 0.3]), smooth_softmax=st.integers(0, 1), sink=st.booleans(),
)  # fmt: skip
def test_all_attributes(bench, seed, batch, own, shared, size, room, packed, half, rotary, window, positions,
                        sink, smooth_softmax, **more):  # fmt: skip
  if sink:
    smooth_softmax = 0  # ONNX Runtime takes one of them
  model, feeds = step(
    bench, np.random.default_rng(seed), batch, own, shared, size, room, packed=packed, half=half,
    rotary=min(rotary, size), positions=positions and rotary > 0 and batch == 1, sink=sink,
    local_window_size=window, smooth_softmax=smooth_softmax, **more,
  )  # fmt: skip
  near = 1e-2 if half else 3e-5
  bench.agrees(model, feeds, rtol=near, atol=near)


@few
@given(
  seed=st.integers(0, 2**32 - 1), batch=st.integers(1, 3), own=st.integers(1, 2), shared=st.integers(1, 3),
  size=st.sampled_from([16, 32]), room=st.integers(2, 12), new=st.integers(2, 8), packed=st.booleans(),
  half=st.booleans(), softcap=st.sampled_from([0.0, 2.0]), smooth_softmax=st.integers(0, 1),
  sink=st.booleans(), prompt=st.booleans(), rotary=st.sampled_from([0, 16, 32]),
  rotary_interleaved=st.integers(0, 1), window=st.sampled_from([-1, 1, 2, 3, 7]),
)  # fmt: skip
def test_several_new_tokens(bench, seed, batch, own, shared, size, room, new, packed, half, sink, prompt,
                            smooth_softmax, rotary, window, **more):  # fmt: skip
  """A prompt of which each sequence ends somewhere, or some tokens of one sequence behind others."""
  rng, new = np.random.default_rng(seed), min(new, room)
  batch, smooth_softmax = batch if prompt else 1, 0 if sink else smooth_softmax
  lengths = rng.integers(0, new, batch) if prompt else rng.integers(new - 1, room, 1)
  model, feeds = step(
    bench, rng, batch, own, shared, size, room, lengths=lengths, packed=packed, half=half, sink=sink, new=new,
    total=new if prompt else None, smooth_softmax=smooth_softmax, rotary=min(rotary, size),
    local_window_size=window, **more,
  )  # fmt: skip
  near, made = 1e-2 if half else 3e-5, None
  if rotary and new > 1:  # rows of cosines and sines are named by tensors
    places = np.maximum(lengths.astype(int) - (new - 1), 0)[:, None] + np.arange(new)
    made = {"x5/places": places} | {f"x5/places/{i}": places[:, i : i + 1] for i in range(new)}
  behind = np.arange(new) > lengths[:, None] if window > 0 else np.zeros((batch, new), bool)
  bench.agrees(model, feeds, rtol=near, atol=near, made=made, unread={"y": behind})


@pytest.mark.parametrize(
  ("new", "more", "why"),
  [
    (9, {}, "9 new tokens"), (9, {"rotary": 16}, "9 new tokens"),
    (9, {"local_window_size": 3}, "9 new tokens"),
  ],
)  # fmt: skip
def test_several_new_tokens_that_are_left(bench, new, more, why):
  model, _ = step(bench, np.random.default_rng(0), 1, 1, 2, 16, 12, lengths=[9], new=new, **more)
  assert why in bench.barrier(model)


def test_a_cache_that_is_empty_or_full(bench):
  for lengths in ([0, 6], [6, 6], [0, 0]):
    model, feeds = step(bench, np.random.default_rng(0), 2, 2, 2, 16, 7, lengths=lengths)
    bench.agrees(model, feeds)


def changed(model, name, *shape):
  value = next(v for v in (*model.graph.input, *model.graph.output) if v.name == name)
  kind = value.type.tensor_type.elem_type
  value.CopyFrom(helper.make_tensor_value_info(name, kind, shape))


@pytest.mark.parametrize(
  ("more", "reason"),
  [
    ({"causal": 0}, "OP_FORM: GroupQueryAttention: keys behind the query are seen, too"),
    ({"sliding_window_cache": 1}, "OP_FORM: GroupQueryAttention: the cache holds a window only"),
    ({"k_quant_type": "PER_TENSOR"}, "OP_FORM: GroupQueryAttention: the cache of keys is quantized"),
    ({"v_quant_type": "PER_TENSOR"}, "OP_FORM: GroupQueryAttention: the cache of values is quantized"),
    ({"qk_output": 1}, "OP_FORM: GroupQueryAttention: scores are an output"),
  ],
)
def test_attributes_of_other_operators(bench, more, reason):
  model, _ = step(bench, np.random.default_rng(0), 1, 2, 1, 16, 4, **more)
  assert bench.barrier(model) == reason


@pytest.mark.parametrize(
  ("name", "shape", "reason"),
  [
    ("x0", (1, 3, 32), "OP_FORM: GroupQueryAttention: 3 queries beside other keys and values"),
    ("x0", (1, "n", 32), "DYNAMIC_DIM: GroupQueryAttention: n new tokens, of which a run says where they go"),
    ("x3", (1, 2, "n", 16), "OP_FORM: GroupQueryAttention: the caches of keys and values are not alike"),
    ("x5", (2,), "OP_FORM: GroupQueryAttention: lengths i32 of 2"),
    ("k", (1, 2, "more", 16), "DYNAMIC_DIM: GroupQueryAttention: present may be longer than past"),
  ],
)
def test_shapes_that_only_a_run_knows(bench, name, shape, reason):
  model, _ = step(bench, np.random.default_rng(0), 1, 2, 1, 16, 4)
  changed(model, name, *shape)
  assert bench.barrier(model).startswith(reason)


def test_a_cache_whose_size_a_run_names(bench):
  """One name is one size, of which the model holds as many places as any run may have."""
  model, _ = step(bench, np.random.default_rng(0), 1, 2, 1, 16, 4)
  for name in ("x3", "x4", "k", "v"):
    changed(model, name, 1, 2, "room", 16)
  nodes = bench.program(model).nodes  # what writes the cache, and what attends to it
  assert len(nodes) == 2
  for node in nodes:
    assert node.barrier is None and f"mirage.places.{MOST_PLACES}/room" in node.inputs


def test_without_a_cache(bench):
  model, _ = step(bench, np.random.default_rng(0), 1, 2, 1, 16, 4, presents=False)
  del model.graph.input[3:5]
  model.graph.node[0].input[3] = model.graph.node[0].input[4] = ""
  assert bench.barrier(model).endswith("without a cache there is no step of a decoder")


def test_one_norm_of_two(bench):
  model, _ = step(bench, np.random.default_rng(0), 1, 2, 1, 16, 4, norms=True)
  model.graph.node[0].input[14] = ""
  assert bench.barrier(model).endswith("of norms of queries and keys there is one")


def test_positions_of_several_sequences(bench):
  """At an empty cache ONNX Runtime takes those of the first for all."""
  model, _ = step(bench, np.random.default_rng(0), 2, 2, 1, 16, 4, rotary=16, positions=True)
  assert "positions of 2x1, of which a run takes the first or all" in bench.barrier(model)


def test_a_bias(bench):
  model, _ = step(bench, np.random.default_rng(0), 1, 2, 1, 16, 4, sink=True)
  node = model.graph.node[0]
  node.input[10] = node.input[11]
  assert bench.barrier(model) == ("DYNAMIC_DIM: GroupQueryAttention: a run says how large attention_bias is")


def test_a_default_that_is_said(bench):
  """-1 is what smooth_softmax is where nobody says it: it was taken for yes."""
  bench.agrees(*step(bench, np.random.default_rng(0), 2, 2, 2, 16, 9, smooth_softmax=-1))


@pytest.mark.parametrize(("more", "why"), [
  ({"smooth_softmax": 2}, "smooth_softmax is 2, neither 0 nor 1"),
  ({"rotary": 16, "rotary_interleaved": -1}, "rotary_interleaved is -1, neither 0 nor 1"),
  ({"local_window_size": 0}, "a window of 0 keys"),
  ({"softcap": -1.0}, "softcap is -1.0"),
])  # fmt: skip
def test_values_that_nobody_means(bench, more, why):
  model, _ = step(bench, np.random.default_rng(0), 2, 2, 2, 16, 9, **more)
  barriers = [n.barrier.reason for n in bench.program(model).nodes if n.barrier]
  assert barriers and all(b == f"GroupQueryAttention: {why}" for b in barriers)
