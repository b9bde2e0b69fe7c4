"""The record of kernels' times, without a GPU: what is built, and what is said of it."""

from types import SimpleNamespace

import kernel_times
import numpy as np
import pytest

from mirage_onnx.cost.counts import BlockCounts


@pytest.fixture(scope="module")
def works():
  return list(kernel_times.every_kernel(("goldens", "speed"), 0))


def test_each_text_once(works):
  digests = [entry.made[at][:64] for entry, at, _ in works]
  assert len(digests) == len(set(digests)) > 50


def test_rows_have_all_columns(works, monkeypatch):
  monkeypatch.setattr(
    kernel_times, "compile_cubin", lambda *_, **__: SimpleNamespace(registers=40, spill_bytes=0)
  )
  built = [kernel_times.build("h100", work) for work in works[::12]]
  rows = [b[4] for b in built if not isinstance(b, str)]
  assert len(rows) >= 4
  for name, kind, *rest in rows:
    assert kind in ("StreamGraph", "RowGraph", "ThreadGraph"), name
    assert len((name, kind, 1.0, *rest)) == len(kernel_times.COLUMNS)
    counts = BlockCounts(*rest[6:])
    assert counts.blocks > 0 < counts.loaded_bytes


def test_other_numbers_are_others(works, monkeypatch):
  """Each kernel with further numbers of the solver, where it has so many."""
  monkeypatch.setattr(
    kernel_times, "compile_cubin", lambda *_, **__: SimpleNamespace(registers=0, spill_bytes=0)
  )
  found = {}
  for entry, at, point in kernel_times.every_kernel(("goldens",), 1):
    built = kernel_times.build("h100", (entry, at, point))
    if not isinstance(built, str):
      name, _, params, *_ = built[4]
      found[name] = params
  more = [n for n in found if n.endswith(".p1")]
  assert len(more) >= 5
  assert all(found[n] != found[n.removesuffix(".p1")] for n in more)


def test_summary_is_of_ratios():
  rows = [("a", "S", "", 2.0, 1.0, 1.0), ("b", "S", "", 0.5, 1.0, 1.0), ("c", "T", "", 3.0, None, None)]
  assert list(kernel_times.summary(rows)) == [("S", "2", "1.00", "2.00")]


def test_times_are_of_data_of_the_type(works):
  """What is put on the GPU has the tensors' types and sizes."""
  put = []

  class Scope:
    def __enter__(self):
      return self

    def __exit__(self, *_):
      return False

  class Gpu:
    scope = Scope
    put = staticmethod(lambda data: put.append(data) or len(put))
    load = staticmethod(lambda *_: "function")
    capture = staticmethod(lambda run: run)
    launch_source = staticmethod(lambda *_: None)
    time_us = staticmethod(lambda arms, samples: np.full((len(arms), samples), 7.0))

  entry, at, _ = works[0]
  graph, extents, source, cubin, _ = kernel_times.build("h100", (entry, at, 0))
  assert kernel_times.timed(Gpu, graph, extents, source, cubin) == 7.0
  assert [d.size for d in put] == [
    int(np.prod([extents[a] for a in graph.tensor(n).axes])) for n in source.args
  ]
