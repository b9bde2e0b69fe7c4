"""Modules of one text share a library: one that goes must not take the stacks another runs on."""

import gc
import threading
import time

import numpy as np
import pytest

from mirage_onnx.emulator import compile_kernels, run
from tests.emulator.kernels import body

STEPS = body(
  "steps",
  """
  float* s = ptx::smem<float>();
  for (int i = 0; i < 60; ++i) {
    s[ptx::thread()] = x[ptx::thread()] + i;
    ptx::sync_block();
    y[ptx::thread()] = s[(ptx::thread() + i) % 256];
    ptx::sync_block();
  }
""",
  block=256,
  smem=1024,
)


def test_modules_go_while_others_run():
  kept = compile_kernels([STEPS])
  x = np.arange(256, dtype=np.float32)
  want = np.roll(x, -59) + 59
  wrong, runs, enough = [], [], threading.Event()

  def work():
    while not enough.is_set():
      y = np.zeros(256, np.float32)
      try:
        kept.run({"x": x, "y": y})
      except Exception as error:
        wrong.append(error)
      if not np.array_equal(y, want):
        wrong.append(y)
      runs.append(len(runs))

  thread = threading.Thread(target=work)
  thread.start()
  gone, end = 0, time.monotonic() + 60  # counts, not seconds, say that both met: a machine may be busy
  while (gone <= 20 or len(runs) < 20) and time.monotonic() < end:
    compile_kernels([STEPS])  # from the cache; it is given back at once
    gone += 1
    enough.wait(0.001)
  enough.set()
  thread.join()
  gc.collect()
  assert not wrong
  assert gone > 20
  assert len(runs) >= 20
  assert not run._gone


def test_a_module_goes_while_its_own_thread_runs(monkeypatch):
  """The collector may run anywhere, here with the lock held: what waits is given back afterwards."""
  gc.collect()  # what other tests left goes first: it would be counted
  released = []
  kept, going = compile_kernels([STEPS]), compile_kernels([STEPS])
  place = run.PlacedTensors

  class Collecting(place):
    def __init__(self, *arguments):
      nonlocal going
      if going:
        going = None
        gc.collect()
        released.append(len(run._gone))
      super().__init__(*arguments)

  monkeypatch.setattr(run, "PlacedTensors", Collecting)
  x, y = np.ones((2, 256), np.float32)
  kept.run({"x": x, "y": y})
  assert released == [1]
  assert not run._gone
  assert y[0] == pytest.approx(60)
