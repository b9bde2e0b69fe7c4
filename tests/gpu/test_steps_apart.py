"""A decoder whose steps have a branch, on the GPU, without kernels of ours: as it was."""

import numpy as np
import onnxruntime as ort
import pytest
from step_decoder import HEADS, OWN, SIZE, decoder

from mirage_onnx.importer.steps_apart import is_apart, steps_apart

pytestmark = pytest.mark.gpu
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
#: (new tokens, rows of the cache, all tokens); lengths differ from one run to the next.
RUNS = ((60, 64, 60), (7, 0, 7), (1, 64, 61), (33, 0, 33), (1, 64, 8), (64, 64, 64), (2, 0, 2), (48, 50, 48))


def _feeds(new, room, total):
  rng = np.random.default_rng(total)
  made = {"qkv": rng.standard_normal((1, new, (HEADS + 2 * OWN) * SIZE)).astype(np.float16)}
  made["mask"] = np.ones((1, total), np.int64)
  for name in ("past_0_k", "past_0_v"):
    made[name] = rng.standard_normal((1, OWN, room, SIZE)).astype(np.float16)
  return made


def test_as_the_flat_graph(h200):
  """What a branch took from outside came to the GPU and back too late: attention saw another length."""
  if CUDA[0] not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  model = decoder()
  apart = steps_apart(model)
  assert is_apart(apart)
  flat, parted = (ort.InferenceSession(m.SerializeToString(), providers=CUDA) for m in (model, apart))
  for new, room, total in RUNS:
    feeds = _feeds(new, room, total)
    (want, *caches), (got, *own) = (s.run(None, feeds) for s in (flat, parted))
    np.testing.assert_allclose(want.astype(float), got.astype(float), rtol=2e-3, atol=2e-3, err_msg=f"{new}")
    for a, b in zip(caches, own, strict=True):
      assert np.array_equal(a[:, :, :total], b[:, :, :total])
