"""Threads that make, run and drop sessions of the custom-op library at once, for a thread sanitizer.

    LD_PRELOAD=libtsan.so python tests/support/concurrent_sessions.py SECONDS LIBRARY DRIVER

Prints the number of sessions, each of which gave the right sums.
"""

import os
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import numpy as np
import onnxruntime

from mirage_onnx.custom_op import InferenceSession, launches, read_bundle, write_bundle
from tests.custom_op.conftest import Models

THREADS = 4
#: Sessions of each thread, however long they take.
LEAST = 4


def work(models, driver, ready, end, counts, k):
  rng = np.random.default_rng(k)
  ready.wait()
  while time.monotonic() < end or counts[k] < LEAST:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    data, nodes = models[int(rng.integers(len(models)))]
    session = InferenceSession(data, options, ["CPUExecutionProvider"], ep="host", driver=driver)
    a, b = (rng.standard_normal(64).astype(np.float32) for _ in "ab")
    for _ in range(3):
      (got,) = session.run(None, {"a": a, "b": b})
      want = a
      for _ in range(nodes):
        want = want + b
      np.testing.assert_array_equal(got, want)
    assert all(count == 3 for count in launches(session).values())
    del session
    counts[k] += 1


def main():
  seconds, library, driver = float(sys.argv[1]), sys.argv[2], sys.argv[3]
  os.environ["MIRAGE_ONNX_OPS_LIBRARY"] = library
  made = [(Models(str(i)), nodes) for i in range(3) for nodes in (1, 3)]
  models = [(m.add(write_bundle(read_bundle(m.bundle(m.add_plan()))), nodes=n), n) for m, n in made]
  counts, ready = [0] * THREADS, threading.Barrier(THREADS)
  end = time.monotonic() + seconds
  threads = [
    threading.Thread(target=work, args=(models, driver, ready, end, counts, k)) for k in range(THREADS)
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  if not all(counts):
    return 1
  print(sum(counts))
  return 0


if __name__ == "__main__":
  sys.exit(main())
