"""A step of a decoder with a cache in one buffer, to the end: kernels, in place and beside it."""

from itertools import chain

import numpy as np
import onnxruntime as ort
import pytest
from cached_steps import cached_step, run_step, step_feeds
from small_models import replaced_ops

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import STEPS
from mirage_onnx.rewrite.apply import apply
from mirage_onnx.target import H200

#: (batch, heads of keys, heads of queries for each, size, room), lengths, attributes
CASES = {
  "rotary": ((1, 2, 4, 32, 70), [[0], [33], [69]], {}),
  "sequences of several lengths": ((3, 2, 2, 32, 40), [[39, 0, 17]], {"rotary": False}),
  "window": ((2, 1, 2, 32, 40), [[30, 3]], {"rotary": False, "local_window_size": 5}),
  "fp32": ((1, 1, 2, 32, 24), [[11]], {"dtype": np.float32, "softcap": 3.0, "scale": 0.2}),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_in_place_and_beside_it(name):
  shape, all_lengths, more = CASES[name]
  model = cached_step(*shape, **more)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert replaced_ops(result) == {"it", "it/attended"}
  assert not [n for n in result.model.graph.node if n.op_type == "GroupQueryAttention"]
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain, bodies = (
    ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for m in (model, result.model)
  )
  for lengths in all_lengths:
    feeds = step_feeds(model, lengths)
    for shared in (True, False):
      before = mirage_onnx.launches(kernels)
      want, rows, _ = run_step(plain, feeds, shared=shared)
      for session, near in ((kernels, 4e-3), (bodies, 0)):
        y, own, caches = run_step(session, feeds, shared=shared)
        np.testing.assert_allclose(y.astype(float), want.astype(float), rtol=near, atol=near)
        for a, b in zip(chain(*own), chain(*rows), strict=True):
          np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=near, atol=near)
        if shared:  # what nobody has asked for is as it was
          for cache in caches:
            assert all(np.isnan(c[:, n + 1 :]).all() for c, n in zip(cache, lengths, strict=True))
      after = mirage_onnx.launches(kernels)
      assert len(after) == 2 and all(after[n] > before[n] for n in after)


@pytest.mark.parametrize(
  "more",
  [{"rotary": False}, {}, {"rotary_interleaved": 1, "new": 2}, {"rotary": False, "local_window_size": 5}],
)
def test_several_new_tokens(more):
  """Behind others, as the first of all, and at the end of the cache; rows behind them stay as they are."""
  new, room = more.get("new", 3), 40
  model = cached_step(1, 2, 2, 32, room, **{"new": new, **more})
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert replaced_ops(result) == {"it", "it/attended"}
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  for last in (2, 17, 39):
    feeds = step_feeds(model, [last])
    for n in ("past_k", "past_v"):
      feeds[n][:, :, last + 1 - new :] = np.nan
    for shared in (True, False):
      before = mirage_onnx.launches(kernels)
      want, rows, _ = run_step(plain, feeds, shared=shared)
      y, own, caches = run_step(kernels, feeds, shared=shared)
      np.testing.assert_allclose(y.astype(float), want.astype(float), rtol=4e-3, atol=4e-3)
      for a, b in zip(chain(*own), chain(*rows), strict=True):
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=2e-3, atol=0)
      if shared:
        assert all(np.isnan(c[0][:, last + 1 :]).all() for c in caches)
      after = mirage_onnx.launches(kernels)
      assert len(after) == 2 and all(after[n] > before[n] for n in after)


@pytest.mark.parametrize("how", [{"new": 3}, {"rotary": False, "new": 2}], ids=str)
def test_verified(how):
  """Also tokens whose places nodes name that no original has: it was SHAPES_DIFFER."""
  model = cached_step(1, 1, 2, 32, 24, **how)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  found = mirage_onnx.verify(model, result.model, emulate=True)
  assert found.passed and len(found.regions) == 3 and all(n.launches for n in found.nodes), found


def test_a_prompt_of_sequences_that_end_before_it():
  """Their tokens are turned from row 0 on; bodies, too, take the prompt for as long as it is."""
  batch, new = 2, 3
  model = cached_step(batch, 1, 2, 32, 24, new=new)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert replaced_ops(result) == {"it", "it/attended"}
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain, bodies = (
    ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    for m in (model, result.model)
  )
  for lengths in ([1, 0], [2, 1]):
    feeds = {**step_feeds(model, lengths), "total": np.array(new, np.int32)}
    want, rows, _ = run_step(plain, feeds, shared=True)
    for session, near in ((kernels, 4e-3), (bodies, 0)):
      y, own, _ = run_step(session, feeds, shared=True)
      for b, last in enumerate(lengths):  # what is behind the end of a sequence no run reads
        ours, theirs = (x[b, : last + 1].astype(float) for x in (y, want))
        np.testing.assert_allclose(ours, theirs, rtol=near, atol=near)
      for a, b in zip(chain(*own), chain(*rows), strict=True):
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=near, atol=near)
  assert len(mirage_onnx.launches(kernels)) == 2


def test_without_kernels_nothing_names_places():
  model = cached_step(1, 1, 2, 32, 24, new=3)
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert result.model.SerializeToString() == model.SerializeToString()


def test_as_many_sequences_as_a_run_has():
  model = cached_step(2, 2, 2, 32, 40, rotary=False)
  for value in (*model.graph.input, *model.graph.output):
    if value.name != "total":
      value.type.tensor_type.shape.dim[0].dim_param = "batch"
  result = mirage_onnx.optimize(
    model, target="h200", workers=1, margin=-20.0, shapes={"batch": [1, 2]}
  )  # fmt: skip
  assert replaced_ops(result) == {"it", "it/attended"}
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  for lengths in ([5], [39, 0, 17]):
    feeds = step_feeds(cached_step(len(lengths), 2, 2, 32, 40, rotary=False), lengths)
    (y, own, _), (want, rows, _) = (run_step(s, feeds, shared=True) for s in (kernels, plain))
    np.testing.assert_allclose(y.astype(float), want.astype(float), rtol=4e-3, atol=4e-3)
    for a, b in zip(chain(*own), chain(*rows), strict=True):
      np.testing.assert_array_equal(a, b)
  assert all(n >= 2 for n in mirage_onnx.launches(kernels).values())


def test_norms_of_queries_and_keys():
  """Only ONNX Runtime's GPU kernels have them: against what its CPU kernels make of normed ones."""
  batch, own, shared, size, room = 2, 2, 2, 32, 40
  rng = np.random.default_rng(3)
  norms = [(1 + 0.3 * rng.standard_normal(size)).astype(np.float16) for _ in range(2)]
  model = cached_step(batch, own, shared, size, room, norms=norms, qk_norm_epsilon=1e-3)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert replaced_ops(result) == {"it", "it/attended"}
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = cached_step(batch, own, shared, size, room).SerializeToString()
  plain = ort.InferenceSession(plain, providers=["CPUExecutionProvider"])
  for lengths in ([39, 5], [0, 12]):
    feeds = step_feeds(model, lengths)
    x = feeds["qkv"].astype(float).reshape(batch, 1, -1, size)
    heads = own * shared
    for part, weight in zip((x[:, :, :heads], x[:, :, heads : heads + own]), norms, strict=True):
      part *= weight.astype(float) / np.sqrt((part * part).mean(-1, keepdims=True) + 1e-3)
    normed = {**feeds, "qkv": x.reshape(feeds["qkv"].shape).astype(np.float16)}
    (y, rows, _), (want, want_rows, _) = (
      run_step(s, f, shared=True) for s, f in ((kernels, feeds), (plain, normed))
    )
    for a, b in zip((y, *chain(*rows)), (want, *chain(*want_rows)), strict=True):
      np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=4e-3, atol=4e-3)
  assert all(n >= 2 for n in mirage_onnx.launches(kernels).values())


def test_a_cache_whose_size_a_run_gives():
  """Kernels made with 40 rows in mind, at any: in place and beside it."""
  model = cached_step(2, 1, 2, 32, 2048, named="room")
  result = mirage_onnx.optimize(
    model, target="h200", workers=1, margin=-20.0, shapes={"room": [40]}
  )  # fmt: skip
  assert replaced_ops(result) == {"it", "it/attended"}
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  for room, lengths in ((1, [0, 0]), (40, [39, 0]), (129, [128, 63]), (1000, [5, 700])):
    feeds = step_feeds(cached_step(2, 1, 2, 32, room), lengths)
    for shared in (True, False):
      before = mirage_onnx.launches(kernels)
      (y, rows, caches), (want, want_rows, _) = (run_step(s, feeds, shared=shared) for s in (kernels, plain))
      assert caches[0].shape == (2, 1, room, 32)
      for a, b in zip((y, *chain(*rows)), (want, *chain(*want_rows)), strict=True):
        np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=4e-3, atol=4e-3)
      after = mirage_onnx.launches(kernels)
      assert all(after[n] > before[n] for n in after)


@pytest.mark.parametrize("named", ["", "room"])
def test_lengths_that_are_no_places_of_the_cache(named):
  """Nothing is written, nothing outside is read (the emulator has the bounds of every tensor)."""
  room = 24
  model = cached_step(2, 1, 2, 32, room, named=named)
  result = mirage_onnx.optimize(
    model, target="h200", workers=1, margin=-20.0, shapes={named: [room]} if named else None
  )  # fmt: skip
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  feeds = step_feeds(cached_step(2, 1, 2, 32, room), [room - 1, room - 1], garbage=0)
  for wrong in (-1, room, room + 1, 2**30, -(2**31), 2**31 - 1):
    wrongly = {**feeds, "lengths": np.array([3, wrong], np.int32)}
    y, _, caches = run_step(kernels, wrongly, shared=True)
    right, _, kept = run_step(kernels, {**feeds, "lengths": np.array([3, 5], np.int32)}, shared=True)
    assert np.isfinite(y).all() and y[0].tobytes() == right[0].tobytes()
    for cache, fine, n in zip(caches, kept, ("past_k", "past_v"), strict=True):
      assert cache[1].tobytes() == feeds[n][1].tobytes() and cache[0].tobytes() == fine[0].tobytes()
  assert all(n >= 12 for n in mirage_onnx.launches(kernels).values())


@pytest.mark.parametrize("more", [{"rotary": False}, {"rotary": False, "local_window_size": 4}, {}])
def test_several_tokens_that_are_nowhere_in_the_cache(more):
  """Whatever a run says of their places, what is read and written is inside, and a result is a number."""
  room, new = 24, 3
  model = cached_step(1, 1, 2, 32, room, new=new, **more)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  kernels = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  feeds = step_feeds(model, [room - 1], garbage=0)
  wrong = (-1, room, room + 1, 2**30, -(2**31), 2**31 - 1)
  for length in wrong:
    y, _, caches = run_step(kernels, {**feeds, "lengths": np.array([length], np.int32)}, shared=True)
    assert np.isfinite(y).all() and all(np.isfinite(c).all() for c in caches)
    for cache, n in zip(caches, ("past_k", "past_v"), strict=True):
      changed = (cache != feeds[n]).any(axis=(0, 1, 3))
      assert changed.sum() <= new  # rows of the new tokens at most
  assert all(n >= len(wrong) for n in mirage_onnx.launches(kernels).values())


@pytest.mark.parametrize("left", ["it", "it/attended"])
def test_one_part_alone_is_not_replaced(left):
  """The operator would run beside it."""
  loaded = load_model(cached_step(1, 1, 2, 32, 24, rotary=False))
  run = pipeline.run(loaded, pipeline.Options(H200, margin=-20.0, workers=1))
  kernels = [(c.region, o.compiled) for c, o in run.chosen]
  assert sorted(n for r, _ in kernels for n in r.nodes) == ["it", "it/attended"]
  done = apply(loaded, [k for k in kernels if k[0].nodes == (left,)], H200)
  assert done.used == () and done.model is loaded.given
  assert [(r.code, r.nodes) for r in done.refused.values()] == [("NOT_FASTER", (left,))]


def test_a_cache_that_may_grow_stays():
  """Without kernels the node is one again, byte for byte."""
  model = cached_step(1, 1, 2, 32, 24, fixed=False)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert result.model.SerializeToString() == model.SerializeToString()
  assert result.report["barriers"] == {"DYNAMIC_DIM": 1}


def test_keys_and_values_that_are_apart_have_regions():
  """With both caches and what says where they are six tensors: one region yields both, one each of them."""
  model = cached_step(1, 2, 4, 32, 70, apart=True)
  found = find_candidates(import_model(load_model(model)), STEPS)
  assert not found.rejections
  caches = {"present_k", "present_v"}
  assert {frozenset(caches), *(frozenset({c}) for c in caches)} <= {c.outputs for c in found.candidates}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("norms", [(), (np.ones(32, np.float16),) * 2])
def test_both_caches_have_the_same_axes(apart, norms):
  """So one kernel writes the new row of keys (turned, by halves) and of values."""
  model = cached_step(1, 2, 4, 32, 70, apart=apart, norms=norms)
  found = find_candidates(import_model(load_model(model)), STEPS)
  (both,) = (c.region for c in found.candidates if len(c.outputs) == 2)
  assert len(both.outputs) == 4 and len({o.axes for o in both.outputs}) == 1
