"""The counters of launches, with many sessions and threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest
from refused import refused

from mirage_onnx.custom_op import launches
from mirage_onnx.custom_op.library import get_library_path, load_library
from tests.custom_op.host import CPU, host_session, run


def test_sessions_and_threads_count_apart(models, vectors, driver):
  sessions = [host_session(models, driver, models.add_plan(), nodes=2) for _ in range(2)]
  expected = vectors["a"] + 2 * vectors["b"]
  wrong = []

  def work(session, times):
    for _ in range(times):
      if not np.allclose(run(session, vectors), expected, rtol=1e-6):
        wrong.append(session)

  with ThreadPoolExecutor(6) as pool:
    for done in [pool.submit(work, sessions[i % 2], 50 * (1 + i % 2)) for i in range(6)]:
      done.result()
  assert not wrong
  assert launches(sessions[0]) == {"node0": 150, "node1": 150}
  assert launches(sessions[1]) == {"node0": 300, "node1": 300}


def test_sessions_made_in_parallel_count_apart(models, vectors, driver):
  counts = []

  def work(times):
    session = host_session(models, driver, models.add_plan())
    for _ in range(times):
      run(session, vectors)
    counts.append((times, launches(session)["node0"]))

  with ThreadPoolExecutor(8) as pool:
    for done in [pool.submit(work, i + 1) for i in range(8)]:
      done.result()
  assert sorted(counts) == [(i + 1, i + 1) for i in range(8)]


@pytest.mark.slow  # 280 sessions
def test_many_sessions_use_few_tags(models, vectors, driver):
  for _ in range(280):  # more than the library keeps registrations for
    session = host_session(models, driver, models.add_plan())
    run(session, vectors)
    assert launches(session) == {"node0": 1}
    del session
  tags = {c.session for c in load_library(get_library_path()).counters()}
  assert len(tags) < 50


def test_foreign_sessions_have_no_counts(models):
  session = ort.InferenceSession(models.add(), providers=CPU)
  with refused("LAUNCHES_UNKNOWN"):
    launches(session)
