"""Attention against ONNX Runtime: all attributes on random shapes, or a refusal that says why."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_onnx.importer.causal import implied

few = settings(max_examples=60, deadline=None)
SEEDS, MS = st.integers(0, 2**32 - 1), "com.microsoft"
SIDES = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(1, 5),
                  st.integers(1, 5), st.sampled_from((4, 8)), st.sampled_from((4, 6)))  # fmt: skip


def normal(rng, *shape, dtype=np.float32):
  return rng.standard_normal(shape).astype(dtype)


def drawn_mask(rng, kind, shape):
  """Perhaps with rows that see nothing."""
  seen = rng.random(shape) < 0.6
  if kind == "bool":
    return seen
  return normal(rng, *shape) + np.float32(np.where(seen | (kind != "inf"), 0, -np.inf))


def agrees(bench, model, feeds, tolerance=2e-5):
  bench.agrees(model, feeds, rtol=tolerance, atol=tolerance)


def drawn_heads(rng, sides, rank, dtype):
  """Queries, keys and values of ONNX's operator, of four dimensions or three, and its attributes for it."""
  batch, own, shared, queries, keys, size, wide = sides
  arrays = [normal(rng, batch, n, length, d, dtype=dtype) for n, length, d in
            ((own * shared, queries, size), (own, keys, size), (own, keys, wide))]  # fmt: skip
  if rank == 4:
    return arrays, {}
  arrays = [a.transpose(0, 2, 1, 3).reshape(batch, a.shape[2], -1) for a in arrays]
  return arrays, {"q_num_heads": own * shared, "kv_num_heads": own}


@few
@given(sides=SIDES, past=st.integers(0, 3), seed=SEEDS, opset=st.sampled_from([23, 24]),
       rank=st.sampled_from([3, 4]), mask=st.sampled_from([None, "bool", "float", "inf"]),
       fixed=st.booleans(), causal=st.booleans(), softcap=st.sampled_from([0.0, 2.0]),
       scale=st.sampled_from([None, 0.3]), mode=st.sampled_from([None, 0, 1, 2, 3]),
       half=st.booleans(), precision=st.sampled_from([None, 1]))  # fmt: skip
def test_onnx(bench, sides, past, seed, opset, rank, mask, fixed, causal, softcap, scale, mode,
              half, precision):  # fmt: skip
  rng = np.random.default_rng(seed)
  batch, own, shared, queries, keys, size, wide = sides
  dtype = np.float16 if half else np.float32
  arrays, heads = drawn_heads(rng, sides, rank, dtype)
  sizes = [(batch, 1)[rng.integers(2)], (own * shared, 1)[rng.integers(2)]]
  shape = [*sizes[rng.integers(3) :], queries, past + keys]
  arrays.append(drawn_mask(rng, mask, shape) if mask else None)
  if mask in ("float", "inf"):
    arrays[3] = arrays[3].astype(dtype)
  if past:
    arrays += [normal(rng, batch, own, past, d, dtype=dtype) for d in (size, wide)]
  while arrays[-1] is None:
    arrays.pop()
  outputs = ["y", *(["k", "v"] if past else ["", ""]), *([] if mode is None else ["s"])]
  given_ = {"scale": scale, "qk_matmul_output_mode": mode, "softmax_precision": precision}
  given_ = {k: v for k, v in given_.items() if v is not None} | heads
  weights = (3,) if mask and fixed else ()
  model, feeds = bench.one("Attention", arrays, weights, outputs, opset, softcap=softcap,
                           is_causal=int(causal), **given_)  # fmt: skip
  hides = mask == "bool" or (causal and keys > 1)
  hides |= mask in ("inf", "float") and not (fixed and np.isfinite(arrays[3]).all())
  if (queries == 1 < keys and past and causal) or (mode == 2 and hides):
    reason = bench.barrier(model)
    assert reason.endswith(("masked scores are an output", "ONNX Runtime does not")), reason
    return
  agrees(bench, model, feeds, 5e-3 if half else 3e-5)


@few
@given(sides=SIDES, seed=SEEDS, rank=st.sampled_from([3, 4]), mask=st.sampled_from([None, "bool", "float"]),
       softcap=st.sampled_from([0.0, 2.0]), half=st.booleans(), least=st.integers(0, 1),
       causal=st.booleans())  # fmt: skip
def test_lengths_of_a_run(bench, sides, seed, rank, mask, softcap, half, least, causal):
  """The cache of a model of opset 24, which TensorScatter writes."""
  rng = np.random.default_rng(seed)
  batch, own, shared, queries, keys, _size, _wide = sides
  dtype = np.float16 if half else np.float32
  arrays, heads = drawn_heads(rng, sides, rank, dtype)
  masked = drawn_mask(rng, mask, (batch, own * shared, queries, keys)) if mask else None
  arrays.append(masked.astype(dtype) if mask == "float" else masked)
  arrays += [None, None, rng.integers(least, keys + 1, batch)]
  model, feeds = bench.one("Attention", arrays, opset=24, softcap=softcap, is_causal=int(causal), **heads)
  agrees(bench, model, feeds, 5e-3 if half else 3e-5)


MASKS = ("", "keys", "rows", "ends", "both", "one")


def drawn_integers(rng, kind, batch, queries, keys):
  """A mask of com.microsoft: which keys, for each query, where they end, or where they begin too."""
  ends = rng.integers(0, keys + 2, batch)
  return {
    "": None,
    "keys": rng.integers(-1, 2, (batch, keys), np.int32),
    "rows": rng.integers(0, 2, (batch, queries, keys), np.int32),
    "ends": ends.astype(np.int32),
    "both": np.concatenate([ends, rng.integers(0, keys, batch)]).astype(np.int32),
    "one": np.zeros((batch, 1), np.int32),
  }[kind]


@few
@given(sides=SIDES, past=st.integers(0, 3), seed=SEEDS,
       apart=st.booleans(), bias=st.booleans(),
       mask=st.sampled_from(MASKS[:4]), added=st.booleans(), causal=st.booleans(),
       more=st.sampled_from([{}, {"scale": 0.3}, {"mask_filter_value": -3.0}]))  # fmt: skip
def test_multi_head_attention(bench, sides, past, seed, apart, bias, mask, added, causal, more):
  rng = np.random.default_rng(seed)
  batch, heads, _, queries, keys, size, _ = sides
  if apart:  # keys and values of an encoder, which have no past
    past, bias = 0, False
  q = normal(rng, batch, queries, heads * size)
  k, v = (normal(rng, batch, heads, keys, size) for _ in range(2))
  if not apart:
    k, v = (x.transpose(0, 2, 1, 3).reshape(batch, keys, -1) for x in (k, v))
  total = past + keys
  arrays = [
    q, k, v,
    normal(rng, heads * 3 * size) if bias else None,
    drawn_integers(rng, mask, batch, queries, total),
    normal(rng, batch, heads, queries, total) if added else None,
    *(normal(rng, batch, heads, past, size) for _ in range(2) if past),
  ]  # fmt: skip
  while arrays[-1] is None:
    arrays.pop()
  outputs = ["y", "k", "v"] if past else ["y"]
  model, feeds = bench.one("MultiHeadAttention", arrays, outputs=outputs, domain=MS,
                           num_heads=heads, unidirectional=int(causal), **more)  # fmt: skip
  if causal and queries != keys:
    assert bench.barrier(model).endswith("with other lengths of queries and keys")
    return
  lowered(bench, model, feeds)


@few
@given(sides=SIDES, past=st.integers(0, 3), seed=SEEDS, mask=st.sampled_from(MASKS),
       added=st.booleans(), causal=st.booleans(), uneven=st.booleans(),
       more=st.sampled_from([{}, {"scale": 0.3}, {"mask_filter_value": -3.0}]))  # fmt: skip
def test_fused_attention(bench, sides, past, seed, mask, added, causal, uneven, more):
  rng = np.random.default_rng(seed)
  batch, heads, _, queries, deep, size, wide = sides
  if not uneven or past:
    wide = size
  sizes = [heads * size, heads * size, heads * wide]
  total = past + queries
  arrays = [
    normal(rng, batch, queries, deep) / 4, normal(rng, deep, sum(sizes)),
    normal(rng, sum(sizes)),
    drawn_integers(rng, mask, batch, queries, total),
    normal(rng, 2, batch, heads, past, size) if past else None,
    normal(rng, batch, heads, queries, total) if added and not past else None,
  ]  # fmt: skip
  while arrays[-1] is None:
    arrays.pop()
  if uneven:
    more = more | {"qkv_hidden_sizes": sizes}
  model, feeds = bench.one("Attention", arrays, (1,), ["y", "p"] if past else ["y"], domain=MS,
                           num_heads=heads, unidirectional=int(causal), **more)  # fmt: skip
  lowered(bench, model, feeds)


def lowered(bench, model, feeds):
  barrier = bench.program(model).nodes[0].barrier
  assert barrier is None, barrier
  agrees(bench, model, feeds, 3e-3)  # fp32 has steps of 1e-3 at scores of -10000


@few
@given(sides=SIDES, seed=SEEDS, both=st.booleans(), bias=st.booleans(), mask=st.sampled_from(MASKS[:4]))
def test_heads_beside_each_other(bench, sides, seed, both, bias, mask):
  """As ONNX Runtime has them apart: its CPU kernels have no such form."""
  rng = np.random.default_rng(seed)
  batch, heads, _, queries, keys, size, _ = sides
  keys = queries if both else keys
  q, k, v = (normal(rng, batch, n, heads, size) for n in (queries, keys, keys))
  more = [normal(rng, 3 * heads * size) if bias else None, drawn_integers(rng, mask, batch, queries, keys)]
  apart = [x.reshape(batch, -1, heads * size) for x in (q, k, v)]
  packed = [np.stack([q, k, v], 3), None, None] if both else [apart[0], np.stack([k, v], 3), None]
  model, feeds = bench.one("MultiHeadAttention", packed + more, domain=MS, num_heads=heads)
  plain, fed = bench.one("MultiHeadAttention", apart + more, domain=MS, num_heads=heads)
  program = bench.program(model)
  assert program.tensors["y0"].shape == (batch, queries, heads * size)
  got = bench.evaluate(program, feeds | implied_of(program))["y0"]
  np.testing.assert_allclose(got, bench.run(plain, fed)["y0"], rtol=3e-3, atol=3e-3)


def implied_of(program):
  found = {name: implied(name) for name in program.weights}
  return {name: onnx.numpy_helper.to_array(t) for name, t in found.items() if t is not None}


Q, K = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 5, 4), np.float32)
ROWS, CACHE = np.ones((1, 3, 8), np.float32), np.ones((1, 2, 2, 4), np.float32)
LENGTHS, PAIRS = np.array([2], np.int32), np.ones((1, 3, 2, 2, 4), np.float32)


@pytest.mark.parametrize(
  ("op", "domain", "arrays", "more", "reason"),
  [
    ("Attention", "", [Q, K, K, None, K, K, np.array([4])], {}, "nonpad_kv_seqlen beside a past"),
    ("Attention", "", [Q, K, K, None, None, None, np.array([4, 2])], {}, "lengths of 2"),
    ("Attention", "", [Q, K, K, np.ones((3, 4), bool)], {}, "the mask has 4 of 5 keys"),
    ("Attention", "", [Q, K[:, :1], K], {}, "2 heads of queries, 1 and 2 of keys"),
    ("Attention", "", [Q.astype("d"), *[K.astype("d")] * 2], {}, "scores of f64"),
    ("Attention", "", [ROWS] * 3, {"q_num_heads": 3, "kv_num_heads": 2}, "3 heads of 8"),
    ("Attention", "", [Q.repeat(2**10, 2)] * 3, {"is_causal": 1}, "a causal mask of 3072 x"),
    ("Attention", "", [Q, K, K], {"qk_matmul_output_mode": 7}, "its attributes or shapes do"),
    ("MultiHeadAttention", MS, [ROWS, ROWS], {}, "of queries, keys and values there is 1x3x8"),
    ("MultiHeadAttention", MS, [np.ones((1, 3, 2, 2, 4), "f")], {}, "of queries, keys and values there"),
    ("MultiHeadAttention", MS, [ROWS, PAIRS] + [None] * 4 + [CACHE] * 2, {}, "a past be"),
    ("MultiHeadAttention", MS, [ROWS, K, K, np.ones(24, "f")], {}, "a bias beside heads"),
    ("MultiHeadAttention", MS, [ROWS] * 3 + [None, LENGTHS.repeat(5)], {}, "a mask i32 of 5, not"),
    ("MultiHeadAttention", MS, [ROWS] * 3 + [None] * 3 + [CACHE] * 2 + [LENGTHS], {}, "past_"),
    ("Attention", MS, [ROWS, np.ones((8, 24), "f")], {}, "ONNX Runtime takes none without"),
    ("Attention", MS, [ROWS, np.ones((8, 24), "f"), np.ones(24, "f")], {"do_rotary": 1}, "do_"),
  ],
)  # fmt: skip
def test_refusals(bench, op, domain, arrays, more, reason):
  if domain:
    more = more | {"num_heads": 2}
  outputs = ["y", "", "", "s"] if "qk_matmul_output_mode" in more else 1
  model, _ = bench.one(op, arrays, outputs=outputs, opset=24, domain=domain, **more)
  code, _, said = bench.barrier(model).partition(f": {op}: ")
  assert code == ("DTYPE" if "f64" in reason else "OP_FORM") and said.startswith(reason), said


def test_windows_of_keys(bench):
  model, _ = bench.one("Attention", [Q, K, K], opset=25, left_window_size=2)
  assert bench.barrier(model).endswith("a window of keys is not supported")


def test_a_mask_of_the_models_own_name(bench):
  """The name of an implied mask is taken: the node stays."""
  name = "mirage.causal.3x5+0"
  node = onnx.helper.make_node("Attention", ["q", "k", "k", name], ["y"], is_causal=1)
  inputs = {"q": ("f", Q.shape), "k": ("f", K.shape), name: (bool, (3, 5))}
  model = bench.model(node, inputs, ["y"], opset=23)
  assert bench.barrier(model).endswith(f"the model has a {name!r} of its own")


@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention", "GroupQueryAttention"])
@pytest.mark.parametrize("more", [{}, {"num_heads": "two"}, {"num_heads": 0, "kv_num_heads": 0},
                                  {"qkv_hidden_sizes": [8]}, {"num_heads": -2}])  # fmt: skip
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_what_contradicts_itself_stays(bench, op, more, count):
  for x in (ROWS, ROWS[0, 0, 0], np.ones((1, 3, 2, 3, 4), "f")):
    for outputs in (["y"], ["", "k"]):
      model, _ = bench.one(op, [x] * count, outputs=outputs, domain=MS, **more)
      assert bench.barrier(model)


@pytest.mark.parametrize("packed", [False, True])
def test_shapes_behind_operators_onnx_does_not_know(bench, packed):
  """What reads their results is lowered; a wrong guess of theirs is no error."""
  query = np.ones((1, 3, 16 if packed else 8), np.float32)
  arrays = [query, *[None if packed else ROWS[..., :4]] * 2, CACHE[:, :1], CACHE[:, :1],
            LENGTHS, LENGTHS[0]]  # fmt: skip
  model, _ = bench.one("GroupQueryAttention", arrays, outputs=["y", "k", "v"], domain=MS,
                       num_heads=2, kv_num_heads=1)  # fmt: skip
  model.graph.node.append(onnx.helper.make_node("Relu", ["y"], ["z"]))
  assert bench.program(model).tensors["z"].shape == (1, 3, 8)
  wide, _ = bench.one("MultiHeadAttention", [ROWS, ROWS, np.ones((1, 3, 10), "f")],
                      domain=MS, num_heads=2)  # fmt: skip
  wide.graph.node.append(onnx.helper.make_node("MatMul", ["y0", "w"], ["z"]))
  wide.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((10, 4), "f"), "w"))
  assert bench.program(wide).nodes[0].barrier.code == "RANK_UNKNOWN"


@pytest.mark.parametrize("value", [2, -1])
def test_switches_are_0_or_1(bench, value):
  """ONNX Runtime asks whether an attribute is 1, where a truth value was taken."""
  x = np.ones((2, 2, 3, 8), np.float32)
  model, _ = bench.one("Attention", [x, x, x], opset=23, is_causal=value)
  assert bench.barrier(model) == f"OP_FORM: Attention: is_causal is {value}, neither 0 nor 1"
