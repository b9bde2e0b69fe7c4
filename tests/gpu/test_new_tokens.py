"""Several new tokens of a step on the GPU: turned by their places, behind others and as the first of all."""

import numpy as np
import onnxruntime as ort
import pytest
from cached_steps import cached_step, step_feeds

import mirage_onnx

pytestmark = pytest.mark.gpu
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.mark.parametrize(
  ("dtype", "more"),
  [
    (np.float16, {}), (np.float16, {"rotary_interleaved": 1}), (np.float32, {}),
    (np.float16, {"rotary": False, "local_window_size": 70}),
  ],
  ids=["turned", "interleaved", "fp32", "window"],
)  # fmt: skip
def test_as_the_cpu(more, dtype, tmp_path, h200):
  if CUDA[0] not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  new, room, out = 3, 192, tmp_path / "o.onnx"
  model = cached_step(1, 2, 4, 64, room, new=new, dtype=dtype, **more)
  mirage_onnx.optimize(model, out, target="h200", margin=-20.0)  # by all cores
  kernels = mirage_onnx.InferenceSession(out, providers=CUDA)
  plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  near = 5e-3 if dtype is np.float16 else 1e-5
  for last in (2, 100, 191):
    feeds = step_feeds(model, [last], garbage=0)
    before = mirage_onnx.launches(kernels)
    for got, want in zip(kernels.run(None, feeds), plain.run(None, feeds), strict=True):
      rows = slice(0, last + 1) if got.ndim == 4 else slice(None)
      a, b = (x[:, :, rows].astype(float) if x.ndim == 4 else x.astype(float) for x in (got, want))
      assert np.linalg.norm(a - b) <= near * np.linalg.norm(b)
    after = mirage_onnx.launches(kernels)
    assert len(after) == 2 and all(after[n] > before[n] for n in after)
