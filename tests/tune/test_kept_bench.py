"""What was measured is not measured again: a race against a bench that counts what it is asked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage_onnx import pipeline
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import H200
from mirage_onnx.tune import kept_bench as module
from mirage_onnx.tune import measure
from mirage_onnx.tune.device import PresentGpu
from mirage_onnx.tune.kept_bench import KeptBench, kept_bench, kept_times, kernel_text
from mirage_onnx.tune.machine import machine_of
from mirage_onnx.tune.race import raced

MODELS = Path(__file__).resolve().parents[2] / "models"
SETTING = machine_of(PresentGpu("NVIDIA H200", (9, 0), 132, 232448), "580").text


@pytest.fixture(scope="module")
def small():
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  ((_, outcome),) = pipeline.run(loaded, pipeline.Options(H200)).chosen
  return loaded, outcome


class Scripted:
  """A bench with the time and the verdict of each kernel; ``asked``: what it had to run."""

  def __init__(self, us, ort_us=30.0, wrong=None):
    self.us, self.ort_us, self.wrong, self.asked = us, ort_us, wrong or {}, []

  def complaints(self, some):
    self.asked.append(("complaints", [c.sources[0].text for c in some]))
    return [self.wrong.get(c.sources[0].text) for c in some]

  def times_us(self, some, samples, *, beside_ort):
    texts = [c.sources[0].text for c in some]
    self.asked.append(("times", texts))
    arms = [self.ort_us] * beside_ort + [self.us[t] for t in texts]
    return np.array(arms)[:, None] + np.linspace(-0.1, 0.1, samples)


def kernels(outcome, *texts):
  """Programs with these texts."""
  c = outcome.compiled
  return [replace(c, sources=(replace(c.sources[0], text=t), *c.sources[1:])) for t in texts]


def run(small, folder, bench, compiled, *, setting=SETTING, more=lambda best, tried: (), loaded=None):
  region = small[1].region
  kept = KeptBench(bench, KeptFolder(folder, setting), loaded or small[0], region)
  return raced(kept, region.nodes, compiled, more)


def test_a_second_race_asks_for_nothing(small, tmp_path):
  a, b, c = kernels(small[1], "a", "b", "c")
  more = lambda best, tried: {2: [c], 3: []}[len(tried)]  # noqa: E731
  times = {"a": 12.0, "b": 10.0, "c": 8.0}
  first = Scripted(times)
  best, measured = run(small, tmp_path, first, [a, b], more=more)
  assert best is c and (measured.kernel_us, measured.ort_us, measured.tried) == (8.0, 30.0, 3)
  assert [kind for kind, _ in first.asked] == ["complaints", "times"] * 2 + ["times"]
  second = Scripted(times)
  assert run(small, tmp_path, second, [a, b], more=more) == (best, measured)
  assert second.asked == []


def test_the_answer_of_the_first_run_counts_though_it_is_slower_today(small, tmp_path):
  (a,) = kernels(small[1], "a")
  run(small, tmp_path, Scripted({"a": 10.0}), [a])
  found, measured = run(small, tmp_path, Scripted({"a": 99.0}), [a])
  assert found is a and measured.kernel_us == 10.0


def test_times_that_are_compared_are_of_one_look(small, tmp_path):
  """One kernel more: all are timed again, side by side; what was right is not checked again."""
  a, b = kernels(small[1], "a", "b")
  run(small, tmp_path, Scripted({"a": 10.0}), [a])
  bench = Scripted({"a": 20.0, "b": 15.0})
  best, measured = run(small, tmp_path, bench, [a, b])
  assert best is b and measured.kernel_us == 15.0
  assert bench.asked == [("complaints", ["b"]), ("times", ["a", "b"]), ("times", ["b", "a"])]


def test_a_wrong_kernel_stays_wrong(small, tmp_path):
  a, b = kernels(small[1], "a", "b")
  first = Scripted({"b": 10.0}, wrong={"a": "off by 3"})
  assert run(small, tmp_path, first, [a, b])[0] is b
  second = Scripted({"b": 10.0})  # it would be right today: its text was wrong once
  assert run(small, tmp_path, second, [a, b])[0] is b and second.asked == []
  _, refused = run(small, tmp_path, Scripted({}), [a])
  assert refused == Rejection("KERNEL_WRONG", "off by 3", small[1].region.nodes)


def test_what_is_not_faster_is_not_timed_again(small, tmp_path):
  (a,) = kernels(small[1], "a")
  _, first = run(small, tmp_path, Scripted({"a": 30.1}), [a])
  second = Scripted({"a": 1.0})
  assert run(small, tmp_path, second, [a]) == (None, first)
  assert first.code == "NOT_FASTER" and second.asked == []
  assert (first.measured.kernel_us, first.measured.ort_us) == (30.1, 30.0)  # for what is expected of others


class Undecided(Scripted):
  def complaints(self, some):
    super().complaints(some)
    raise RejectionError("INCONCLUSIVE", "nothing is finite", ("n",))


def test_a_region_without_finite_values_is_remembered(small, tmp_path):
  a, b = kernels(small[1], "a", "b")
  first, second = Undecided({}), Undecided({})
  _, refused = run(small, tmp_path, first, [a, b])
  assert refused.code == "INCONCLUSIVE"
  again = run(small, tmp_path, second, [a, b])[1]
  assert (again.code, again.reason, again.nodes) == ("INCONCLUSIVE", refused.reason, small[1].region.nodes)
  assert second.asked == []


@pytest.mark.parametrize("part", ["gpu", "driver", "onnxruntime", "protocol"])
def test_another_machine_is_another_measurement(small, tmp_path, part):
  (a,) = kernels(small[1], "a")
  run(small, tmp_path, Scripted({"a": 10.0}), [a])
  bench = Scripted({"a": 11.0})
  _, measured = run(small, tmp_path, bench, [a], setting={**SETTING, part: "another"})
  assert measured.kernel_us == 11.0 and len(bench.asked) == 3


def test_other_weights_are_checked_but_not_timed(small, tmp_path):
  (a,) = kernels(small[1], "a")
  run(small, tmp_path, Scripted({"a": 10.0}), [a])
  model = load_model(MODELS / "rmsnorm_linear.onnx").given
  large = max(model.graph.initializer, key=lambda t: len(t.raw_data))
  large.raw_data = bytes(len(large.raw_data))
  bench = Scripted({"a": 11.0})
  _, measured = run(small, tmp_path, bench, [a], loaded=load_model(model))
  assert measured.kernel_us == 10.0
  assert bench.asked == [("complaints", ["a"])]


@pytest.mark.parametrize("value", [{}, {"us": "x"}, {"us": [[1.0]]}, {"us": None}, {"us": [[1, 2], [3]]}])
def test_what_makes_no_sense_is_measured_again(tmp_path, value):
  store = KeptFolder(tmp_path, SETTING)
  store.put(store.key("look", "(1, 2)", "a"), value)
  asked = []

  def timed():
    asked.append(1)
    return np.array([[5.0, 6.0]])

  for _ in range(2):
    np.testing.assert_array_equal(kept_times(store, ("look", "a"), (1, 2), timed), [[5.0, 6.0]])
  assert asked == [1]


def test_no_time_is_not_kept(tmp_path):
  store = KeptFolder(tmp_path, SETTING)
  kept_times(store, ("look", "a"), (1, 1), lambda: np.array([[np.nan]]))
  assert kept_times(store, ("look", "a"), (1, 1), lambda: np.array([[4.0]])) == 4.0


def test_a_damaged_verdict_is_asked_again(small, tmp_path):
  (a,) = kernels(small[1], "a")
  run(small, tmp_path, Scripted({"a": 10.0}), [a])
  for path in tmp_path.iterdir():
    path.write_bytes(path.read_bytes()[:-9])
  bench = Scripted({"a": 12.0})
  assert run(small, tmp_path, bench, [a])[1].kernel_us == 12.0
  assert len(bench.asked) == 3


def test_all_that_runs_is_in_the_key(small):
  c = small[1].compiled
  (source, *rest), (cubin, *images) = c.sources, c.cubins
  changed = [
    replace(c, sources=(replace(source, **change), *rest))
    for change in (
      {"text": "x"},
      {"grid": (1, 2, 3)},
      {"block": 7},
      {"smem_bytes": 9},
      {"pdl": not source.pdl},
    )
  ]
  changed.append(replace(c, cubins=(replace(cubin, image=b"x"), *images)))
  assert len({kernel_text(x) for x in (c, *changed)}) == 7
  assert kernel_text(replace(c, candidate=replace(c.candidate, predicted_us=1.0))) == kernel_text(c)


def test_it_obeys_the_cache_switch(small, tmp_path, monkeypatch):
  loaded, outcome = small
  monkeypatch.setattr(module, "present_machine", lambda: machine_of(PresentGpu("G", (9, 0), 1, 232448), "1"))
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  bench = Scripted({})
  assert kept_bench(bench, loaded, outcome.region) is bench  # as all tests are run
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  assert isinstance(kept_bench(bench, loaded, outcome.region), KeptBench)
  monkeypatch.setattr(module, "present_machine", lambda: None)
  assert kept_bench(bench, loaded, outcome.region) is bench


def test_a_measured_region_needs_no_gpu_the_second_time(small, tmp_path, monkeypatch):
  """Through ``measure_region``: on the emulator first, then without any GPU."""
  from emulated_gpu import EmulatedGpu

  loaded, outcome = small
  monkeypatch.setattr(module, "present_machine", lambda: machine_of(PresentGpu("G", (9, 0), 1, 232448), "1"))
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  gpu = EmulatedGpu()
  gpu.time_us = lambda arms, samples: np.full((len(arms), samples), [[30.0], [10.0]][-len(arms) :])
  monkeypatch.setattr(measure, "gpu_of", lambda target: gpu)
  monkeypatch.setattr(measure, "ort_replay", lambda *args: None)
  first = measure.measure_region(loaded, outcome.region, [outcome.compiled], H200)
  assert first[0] is outcome.compiled and first[1].ort_us == 30.0

  def fails(*args):
    raise AssertionError("there is no GPU")

  for name in ("gpu_of", "ort_replay", "hard_draws"):
    monkeypatch.setattr(measure, name, fails)
  assert measure.measure_region(loaded, outcome.region, [outcome.compiled], H200) == first
