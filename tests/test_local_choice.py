"""``--target local`` with a GPU whose times are made up (``support/fake_gpu.py``): all of it but kernels.

What is asserted is what default flags once did not do: something is replaced, and the run ends in time.
"""

import time

import pytest
from fake_gpu import FakeGpu
from real_layers import BERT, Layer

from mirage_onnx import events, pipeline
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.pipeline import Options
from mirage_onnx.searching import search_region
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.target import get_target
from mirage_onnx.tune import realise

#: Beyond the ends of the budget, of which a busy machine has its part.
LATE = 1.1


def feed_forward(rows):
  """Norm, up, GELU, down and the residual sum of BERT-base."""
  net = Layer("float16")
  x = net.input(rows, BERT.hidden)
  weights = [net.constant([1.0] * BERT.hidden), net.constant([0.01] * BERT.hidden)]
  normed = net.LayerNormalization(x, *weights, epsilon=1e-5)
  up = net.Gelu(net.linear(normed, BERT.hidden, BERT.inner))
  return net.model(net.Add(x, net.linear(up, BERT.inner, BERT.hidden)))


def seconds_of_searches(loaded):
  """Of this machine, for all regions by themselves: 3 s on a core that does nothing else."""
  start = time.monotonic()
  for region in {c.region.key: c.region for c in find_candidates(import_model(loaded)).candidates}.values():
    assert search_region(loaded, region, get_target("h200"), SearchBound(), 3600.0).candidates
  return time.monotonic() - start


@pytest.mark.slow
def test_something_is_replaced_in_time(monkeypatch):
  """Search and timing side by side, two regions at a time, and all of it in the budget."""
  loaded = load_model(feed_forward(128))
  budget_s = max(60.0, 20 * seconds_of_searches(loaded))  # what a free machine does in a minute
  gpu, told = FakeGpu(monkeypatch), []
  start = time.monotonic()
  options = Options(get_target("h200"), budget_s=budget_s, measure=True)
  run = pipeline.run(loaded, options, lambda e: told.append(e))
  took = time.monotonic() - start
  assert run.chosen and all(o.measured for _, o in run.chosen)
  assert took <= LATE * 0.8 * budget_s  # the rest is the whole model's
  assert 1 <= len(gpu.threads) <= realise.MOST_AT_ONCE + 2
  kinds = [type(e) for e in told]
  assert kinds.index(events.RegionTuned) < len(kinds) - 1 - kinds[::-1].index(events.RegionDone), (
    "nothing was timed before the last search had ended"
  )
  stages = [e.stage for e in told if isinstance(e, events.StageStarted)]
  assert stages == ["importer", "match", "superopt", "tune", "rewrite"]
  assert [e.stage for e in told if isinstance(e, events.StageEnded)] == stages
