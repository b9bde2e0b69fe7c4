"""What is chosen for a GPU that is not here takes no less than its data sheet allows, and not far more."""

from functools import cache
from math import prod

import pytest
from search_programs import PROGRAMS

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.targets import TARGETS
from mirage_onnx.verify.prover import prover

#: Programs with scores: reading, and products that reach this share of the peak at least without the
#: instructions of one generation.
SCORING, LEAST_PEAK = ("attention", "attention_causal"), 0.15
#: Programs whose time is reading: a share of the bandwidth at least, beside what every kernel takes.
READING = ("rmsnorm_linear", "gated_mlp_silu", "lora", "ngpt_step")
LEAST_SHARE, BESIDE_US = 0.55, 12.0


@cache
def chosen(program, name):
  region, target = PROGRAMS[program](), TARGETS[name]
  prove = prover(region, derived=True)
  found = search(region, target, prove, bound=SearchBound(), space=space_of(region), budget_s=900.0)
  return region, found.candidates[0].candidate


def moved(region):
  """Bytes that every program reads and writes."""
  tensors = (*region.inputs, *region.outputs)
  return sum(prod(region.extents[a] for a in t.axes) * t.dtype.size_bytes for t in tensors)


def products(region):
  """Operations of the products with weights: two for each number of a weight and row."""
  weights = [i for i in region.inputs if i.is_weight and len(i.axes) > 1]
  rows = min(region.extents.values())
  return sum(2 * rows * prod(region.extents[a] for a in w.axes) for w in weights)


def scored(region):
  """Operations of two products of a query and every key."""
  assert [s.op for s in region.steps].count("matmul") == 2
  batch, keys, depth, queries, columns = (region.extents[f"a{i}"] for i in range(5))
  return 2 * batch * keys * queries * (depth + columns)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
  "program", [pytest.param(p, marks=[pytest.mark.slow] if p != SCORING[0] else []) for p in SCORING]
)
def test_scores_are_no_faster_than_the_peaks_and_near_them(program, name):
  region, candidate = chosen(program, name)
  target, us = TARGETS[name], candidate.predicted_us
  read_us = moved(region) / (target.published_tbps * 1e6)
  peak_us = scored(region) / (target.published_tflops * 1e6)
  assert us >= max(read_us, peak_us)
  assert us <= read_us / LEAST_SHARE + peak_us / LEAST_PEAK + BESIDE_US, candidate.params


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
  "program", [pytest.param(p, marks=[pytest.mark.slow] if p != READING[0] else []) for p in READING]
)
def test_no_faster_than_published_and_near_it(program, name):
  region, candidate = chosen(program, name)
  target, us = TARGETS[name], candidate.predicted_us
  read_us = moved(region) / (target.published_tbps * 1e6)
  assert us >= read_us and us >= products(region) / (target.published_tflops * 1e6)
  assert us <= read_us / LEAST_SHARE + BESIDE_US, candidate.params
  for source in emit_candidate(candidate, region.extents, target, "k"):
    assert source.smem_bytes <= target.smem_bytes and source.cluster <= target.max_cluster
    assert source.pdl <= target.has_pdl and source.block <= target.sm_threads


def test_what_has_more_bandwidth_is_faster():
  """Of two GPUs, the one that reads half as fast again is predicted faster."""
  times = {n: chosen(READING[0], n)[1].predicted_us for n in TARGETS}
  for a, of_a in TARGETS.items():
    for b, of_b in TARGETS.items():
      if of_a.published_tbps > 1.5 * of_b.published_tbps:
        assert times[a] < times[b], (a, b)
