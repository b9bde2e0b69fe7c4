"""CostWeights that were put in come out, and kernels are told apart by what they are."""

from dataclasses import fields, replace

import fit_costs
import kernel_times
import numpy as np
import pytest

from mirage_onnx.cost.counts import BlockCounts
from mirage_onnx.cost.kernel_time import CostWeights, time_us
from mirage_onnx.target import H100

HIDDEN = replace(fit_costs.PRIOR, start=1.2, request=12.0, barrier_us=0.05, memory=1.2, overlap=2.0)


@pytest.fixture(scope="module")
def sample():
  """Kernels of the corpus with times that follow from other weights."""
  works = list(kernel_times.every_kernel(("goldens", "speed"), 0))[::2]
  rows = [fit_costs.counted("h100", (*w, w[0].params[w[1]])) for w in works]
  rows = [r for r in rows if r]
  times = {r[0]: ("", float(time_us(r[2], r[3], r[4], H100, HIDDEN))) for r in rows}
  return fit_costs.Sample(rows, times)


def test_arrays_are_the_kernels_one_by_one(sample):
  for n in range(0, len(sample.us), 7):
    one = BlockCounts(**{f.name: float(getattr(sample.counts, f.name)[n]) for f in fields(BlockCounts)})
    assert time_us(one, sample.moved[n], sample.share[n], H100, HIDDEN) == pytest.approx(sample.us[n])


def test_the_fit_finds_what_explains_the_times(sample):
  before = np.abs(sample.ratios(H100, CostWeights()))
  found = fit_costs.fitted(sample, H100, np.ones(len(sample.us), bool))
  after = np.abs(sample.ratios(H100, found))
  assert np.quantile(after, 0.95) < 0.08 < 0.2 < np.quantile(before, 0.95)


def test_the_table_is_of_kinds(sample):
  ratios = np.where(np.array(sample.kinds) == "StreamedPlan", np.log(2.0), 0.0)
  rows = {name: (count, mean) for name, count, mean, _ in fit_costs.table(sample, ratios)}
  assert rows["StreamedPlan"][1] == "2.000" and rows["TiledPlan"][1] == "1.000"
  assert int(rows["all"][0]) == len(sample.us) == int(rows["golden programs and speed rows"][0])


def test_kernels_of_the_record_are_still_those_of_the_corpus():
  """Most are; what has another size or grid by now is left out."""
  work = next(iter(kernel_times.every_kernel(("speed",), 0)))
  row = fit_costs.counted("h100", (*work, work[0].params[work[1]]))
  known = ("", 1.0, row[3], row[2].blocks)
  assert fit_costs.same(row, known)
  assert not fit_costs.same(row, (*known[:3], known[3] + 1)) and not fit_costs.same(
    row, (*known[:2], 1, known[3])
  )


def test_what_is_written_of_the_formula_is_what_the_record_says():
  """docs/decisions.md: golden programs and speed rows, a factor for 95 % of them."""
  path = fit_costs.ROOT / "bench" / "results" / "h100" / "kernel_times.json"
  times = fit_costs.measured([path])
  works = kernel_times.every_kernel(("goldens", "programs", "speed"), 0)
  works = [(*w, times[n][0]) for w in works if (n := kernel_times.name_of(*w)) in times]
  rows = [r for r in (fit_costs.counted("h100", w) for w in works) if r and fit_costs.same(r, times[r[0]])]
  sample = fit_costs.Sample(rows, times)
  ((_, count, mean, spread), *_) = fit_costs.table(sample, sample.ratios(H100, CostWeights()))
  assert int(count) > 240 and 1.0 < float(mean) < 1.1 and float(spread) < 1.6
