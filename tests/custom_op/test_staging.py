"""Tensors that are bound at any address: kernels get aligned copies, and they are counted."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mirage_onnx.custom_op import InferenceSession, launches
from mirage_onnx.custom_op.library import get_library_path, load_library
from tests.custom_op.host import host_session, replace_launch


def at(offset, x):
  """``x`` so many bytes after an address that is a multiple of 64."""
  memory = np.zeros(x.nbytes + 128, np.uint8)
  start = -memory.ctypes.data % 64 + offset
  found = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
  found[:] = x
  assert found.ctypes.data % 64 == offset
  return found


def run_bound(session, inputs, output):
  """With every tensor where it is."""
  binding = session.io_binding()
  for name, x in (*inputs.items(), ("", output)):
    bind = binding.bind_input if name else binding.bind_output
    name = name or session.get_outputs()[0].name
    bind(name, "cpu", 0, x.dtype, x.shape, x.ctypes.data)
  session.run_with_iobinding(binding)


def copies(session):
  (node,) = launches(session)
  (counter,) = (c for c in load_library(get_library_path()).counters()[-1:] if c.node == node)
  return counter.copies


@pytest.mark.parametrize(
  ("offsets", "count"),
  [((0, 0, 0), 0), ((4, 0, 0), 1), ((0, 8, 0), 1), ((0, 0, 12), 1), ((4, 8, 36), 3), ((16, 32, 48), 0)],
)
def test_what_is_not_aligned_is_copied(models, driver, driver_log, vectors, offsets, count):
  session = host_session(models, driver, models.add_plan())
  a, b = (at(offset, vectors[n]) for n, offset in zip("ab", offsets, strict=False))
  out = at(offsets[2], np.full(100, -1, np.float32))
  run_bound(session, {"a": a, "b": b}, out)
  assert np.array_equal(out, vectors["a"] + vectors["b"])
  assert launches(session) == {"node0": 1} and copies(session) == count
  assert [len(driver_log(kind)) for kind in ("alloc", "copy", "free")] == [count] * 3
  words = driver_log("launch")[0]
  pointers = words[words.index("params") + 1 :][:3]
  assert all(int(p) % 16 == 0 for p in pointers), "what the kernel gets"
  assert {w[1] for w in driver_log("alloc")} == {w[1] for w in driver_log("free")}


def test_small_tensors_need_no_alignment(models, driver):
  """Nothing of fewer than 16 bytes is loaded 16 bytes at a time."""
  session = host_session(models, driver, models.add_plan())
  x, out = at(4, np.ones(3, np.float32)), at(4, np.zeros(3, np.float32))
  run_bound(session, {"a": x, "b": x}, out)
  assert out.tolist() == [2, 2, 2] and copies(session) == 0


def test_a_kernel_beside_a_copy_does_not_begin_early(models, driver, driver_log, vectors):
  session = host_session(models, driver, replace_launch(models, pdl=True))
  for offset in (0, 4):
    out = np.zeros(100, np.float32)
    run_bound(session, {"a": at(offset, vectors["a"]), "b": vectors["b"]}, at(0, out))
  first, second = driver_log("launch")
  assert "pdl" in first and "pdl" not in second


@pytest.mark.parametrize("entry", ["cuMemAllocAsync", "cuMemcpyAsync"])
def test_a_driver_that_fails(models, driver, driver_log, vectors, monkeypatch, entry):
  session = host_session(models, driver, models.add_plan())
  x, out = at(4, vectors["a"]), np.zeros(100, np.float32)
  monkeypatch.setenv("STANDIN_FAIL", entry)
  with pytest.raises(Exception, match=f"input 1 is not aligned to 16 bytes.*{entry} failed"):
    run_bound(session, {"a": x, "b": x}, at(0, out))
  assert len(driver_log("alloc")) == len(driver_log("free")), "nothing is kept"
  monkeypatch.delenv("STANDIN_FAIL")
  run_bound(session, {"a": x, "b": x}, at(0, out))


def test_a_driver_without_such_memory(models, old_driver, vectors):
  session = host_session(models, old_driver("STANDIN_NO_MEMORY"), models.add_plan())
  x, out = at(4, vectors["a"]), at(0, np.zeros(100, np.float32))
  with pytest.raises(Exception, match="the driver has no memory in stream order"):
    run_bound(session, {"a": x, "b": x}, out)
  run_bound(session, {"a": at(0, x), "b": at(0, x)}, out)
  assert np.array_equal(out, 2 * vectors["a"])


def test_threads(models, driver, vectors):
  """Each run has copies of its own."""
  session = host_session(models, driver, models.add_plan())

  def work(offset):
    for _ in range(50):
      a, out = at(4 * offset, vectors["a"]), at(4, np.zeros(100, np.float32))
      run_bound(session, {"a": a, "b": vectors["b"]}, out)
      assert np.array_equal(out, vectors["a"] + vectors["b"])

  with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))


def test_emulated_kernels(chain):
  """The emulator stops a load of 16 bytes that is not aligned, so these are the copies."""
  session = InferenceSession(chain.model.SerializeToString(), emulate=True)
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  want = session.run(None, {"x0": at(0, x)})[0]
  got = at(6, np.zeros_like(want))
  run_bound(session, {"x0": at(2, x)}, got)
  assert np.array_equal(got, want)
  mine = {c.node: c.copies for c in load_library(get_library_path()).counters() if c.node in chain.nodes}
  assert mine[chain.nodes[0]] == 1 and mine[chain.nodes[2]] == 1
