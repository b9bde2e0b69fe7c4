"""The record of kernels' times, without a GPU: what is built, and what is said of it."""

from contextlib import contextmanager
from itertools import pairwise
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
    assert kind in ("StreamedPlan", "TiledPlan"), name
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
  rows = [
    ("a", "S", "", 2.0, 1.0, 1.0),
    ("b", "S", "", 0.5, 1.0, 1.0),
    ("c", "T", "", 3.0, None, None),
  ]
  assert list(kernel_times.summary(rows)) == [("S", "2", "1.00", "2.00")]


class FakeGpu:
  """Hands out memory; what was made inside a scope is gone behind it, as with ``Gpu``."""

  def __init__(self):
    self.alive, self.undo, self.end, self.launched = {}, [], 1 << 40, []

  @contextmanager
  def scope(self):
    mark = len(self.undo)
    yield
    while len(self.undo) > mark:
      del self.alive[self.undo.pop()]

  def empty(self, size):
    at, self.end = self.end, self.end + size
    self.alive[at] = at + size
    self.undo.append(at)
    return at

  def put(self, data):
    return self.empty(data.nbytes)

  def write(self, at, data):
    assert self.there(at, data.nbytes)

  def there(self, at, size):
    return any(first <= at and at + size <= end for first, end in self.alive.items())

  def load(self, *_):
    return "function"

  def capture(self, run):
    run()
    return run

  def launch_source(self, function, source, at):
    self.launched.append(dict(at))

  def time_us(self, arms, samples):
    return np.full((len(arms), samples), 96.0)


def test_a_row_of_kernels_has_tensors_of_their_own(works):
  """Each launch has all of the memory that its tensors lie in, none of it another launch's."""
  gpu = FakeGpu()
  pool = kernel_times.Pool(gpu)
  for entry, at, _ in works[:40:8]:
    graph, extents, source, cubin, _ = kernel_times.build("h100", (entry, at, 0))
    gpu.launched.clear()
    us = kernel_times.timed(gpu, pool, graph, extents, source, cubin)
    assert us == 96.0 / len(gpu.launched) and len(gpu.launched) >= kernel_times.MOST_SETS[0]
    places = sorted(
      (a, a + graph.tensor(n).bytes(extents)) for given in gpu.launched for n, a in given.items()
    )
    assert all(end <= first for (_, end), (first, _) in pairwise(places))
    assert all(
      gpu.there(first, end - first) for first, end in places
    )  # also behind the scope of the last one


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch):
  monkeypatch.setattr(kernel_times, "facts", dict)
  path = tmp_path / "kernel_times.json"
  assert kernel_times.kept(path) == ([], [])
  rows = [("b", "T", "", 2.0), ("a", "T", "", 1.0)]
  path.write_text(kernel_times.record_of(rows, ["c"], {}))
  assert kernel_times.kept(path) == (sorted(rows), ["c"])
