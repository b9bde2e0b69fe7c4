"""Products fed by the copy engine, through the library: any address, CUDA graphs, several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest
from altered_models import bundle_of
from small_models import Net

import mirage_onnx
from tests.gpu.test_staging import CUDA, device_memory
from tests.test_fed import fed

__all__ = ["fed"]

pytestmark = pytest.mark.gpu

ROWS, DEPTH, COLUMNS = 1664, 768, 1536
RUNS = 25


@pytest.fixture
def model(fed, h200, tmp_path):
  """tanh(x w + b) + y; several tiles of a block, two tensor maps of a kernel."""
  if CUDA not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  net = Net(seed=3)
  x, w, b = net.input(ROWS, DEPTH), net.weight(DEPTH, COLUMNS), net.weight(COLUMNS)
  original = net.model(net.Add(net.Tanh(net.Add(net.MatMul(x, w), b)), net.input(ROWS, COLUMNS)))
  result = mirage_onnx.optimize(original, target="h200", workers=1, margin=-20.0)
  assert fed
  (plan,) = bundle_of(result.model, tmp_path).plans
  assert plan.count(" t:0:") == 2
  return original.SerializeToString(), result.model.SerializeToString()


def drawn(seed):
  rng = np.random.default_rng(seed)
  return [rng.standard_normal(shape).astype(np.float16) for shape in ((ROWS, DEPTH), (ROWS, COLUMNS))]


class Bound:
  """A session's inputs and output in memory of the GPU, so many elements behind its beginning."""

  def __init__(self, session, offset=0):
    self.session, self.offset, self.binding = session, offset, session.io_binding()
    each = np.dtype(np.float16).itemsize
    self.given = [device_memory(x, offset) for x in drawn(0)]
    self.made = device_memory(np.zeros((ROWS, COLUMNS), np.float16), offset)
    for i, memory, x in zip(session.get_inputs(), self.given, drawn(0), strict=True):
      self.binding.bind_input(i.name, "cuda", 0, np.float16, x.shape, memory.data_ptr() + offset * each)
    (o,) = session.get_outputs()
    self.binding.bind_output(
      o.name, "cuda", 0, np.float16, (ROWS, COLUMNS), self.made.data_ptr() + offset * each
    )

  def run(self, values):
    none = np.zeros(self.offset, np.float16)
    for memory, x in zip(self.given, values, strict=True):
      memory.update_inplace(np.concatenate([none, x.ravel()]))
    self.made.update_inplace(np.concatenate([none, np.full(ROWS * COLUMNS, np.nan, np.float16)]))
    self.binding.synchronize_inputs()
    self.session.run_with_iobinding(self.binding)
    self.binding.synchronize_outputs()
    whole = self.made.numpy()
    assert (whole[: self.offset] == 0).all(), "nothing before it is written"
    return whole[self.offset :].reshape(ROWS, COLUMNS).copy()


def test_graphs_and_addresses(model):
  """A tensor map holds an address, and a graph the map: both are right when the values change."""
  original, optimized = model
  theirs = Bound(ort.InferenceSession(original, providers=[CUDA]))
  values = [drawn(seed) for seed in range(4)]
  want = [theirs.run(v) for v in values]
  for graph in "01":
    for offset in (0, 1, 4, 8):
      session = mirage_onnx.InferenceSession(optimized, providers=[(CUDA, {"enable_cuda_graph": graph})])
      bound = Bound(session, offset)
      for v, w in zip(values, want, strict=True):
        np.testing.assert_allclose(bound.run(v).astype(float), w.astype(float), rtol=4e-3, atol=4e-3)
      assert all(mirage_onnx.launches(session).values()), (graph, offset)


def test_threads(model):
  """Four of them in one session, each with memory of its own: the same bits as one after the other."""
  session = mirage_onnx.InferenceSession(model[1], providers=[CUDA])
  bounds, values = [Bound(session, 8 * n) for n in range(4)], [drawn(seed) for seed in range(4)]
  want = [b.run(v).tobytes() for b, v in zip(bounds, values, strict=True)]
  assert len({*want}) == len(want)

  def wrong(n):
    return [r for r in range(RUNS) if bounds[n].run(values[n]).tobytes() != want[n]]

  with ThreadPoolExecutor(len(want)) as pool:
    assert list(pool.map(wrong, range(len(want)))) == [[]] * len(want)
  assert min(mirage_onnx.launches(session).values()) >= len(want) * (RUNS + 1)
