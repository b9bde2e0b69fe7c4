"""A predicted choice runs once, reduced, before it ships; one that is wrong makes way for the next."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from packed_models import norm
from small_models import region_of, search_region

from mirage_onnx.emulator import EmulationError, toolchain
from mirage_onnx.ir import parse_ugraph, print_ugraph
from mirage_onnx.target import H200
from mirage_onnx.tune import emulated, tuning
from mirage_onnx.tune.emulated import EMULATED, NEVER_RAN, Emulated
from mirage_onnx.tune.outcome import Outcome
from tests.support.rewritten import any_rows, chain


@pytest.fixture(scope="module")
def small():
  return chain()


@pytest.fixture(autouse=True)
def _own_verdicts(tmp_path, monkeypatch):
  monkeypatch.setattr(emulated, "cache_folder", lambda: tmp_path)


def wrong(small):
  return small.recompiled(1, "const[-1/2]", "const[-9/16]").candidate


def test_right_programs_and_a_wrong_one(small, monkeypatch):
  look = Emulated(H200, 1000.0)
  right = small.compiled[1].candidate
  assert look(small.regions[1], right) == (EMULATED, None)
  ran, refusal = look(small.regions[1], wrong(small))
  assert ran == EMULATED and refusal.code == "KERNEL_WRONG" and "float64" not in refusal.reason
  assert refusal.nodes == small.regions[1].nodes
  assert look.left_s < 1000
  # What was found out is kept: nothing is compiled again, and no time is needed.
  monkeypatch.setattr(emulated, "compile_kernels", None)
  again = Emulated(H200, 0.0)
  assert again(small.regions[1], right) == (EMULATED, None)
  assert again(small.regions[1], wrong(small)) == (EMULATED, refusal)


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"it is wrong"])
def test_a_damaged_verdict_is_none(small, tmp_path, monkeypatch, damage):
  """A file that was cut to nothing said that the program is right."""
  region, candidate = small.regions[1], small.compiled[1].candidate
  assert Emulated(H200, 1000.0)(region, candidate) == (EMULATED, None)
  (path,) = tmp_path.iterdir()
  whole = path.read_bytes()
  path.write_bytes(damage)
  assert Emulated(H200, 0.0)(region, candidate) == (NEVER_RAN, None)
  assert Emulated(H200, 1000.0)(region, candidate) == (EMULATED, None)
  assert path.read_bytes() == whole


def test_reduced_sizes_keep_two_tiles(small):
  region, candidate = small.regions[0], small.compiled[0].candidate
  extents, sources = emulated._reduced(region, candidate, H200)
  assert extents == {"a0": 2, "a1": 64, "a2": 2} and region.extents["a2"] == 64
  assert sources[0].grid != small.compiled[0].sources[0].grid


def test_what_only_a_run_counts():
  """The text that ships, where nothing else is reduced; the verdict is of the numbers as well."""
  dynamic = any_rows()
  region, compiled = dynamic.regions[0], dynamic.compiled[0]
  extents, sources = emulated._reduced(region, compiled.candidate, H200)
  (axis,) = region.runtime
  (tile,) = {t for s in sources for a, t in s.tiles if a == axis}
  assert (extents[axis] == 2 * tile * 3 // 4 + 1 and extents[axis] % tile) or tile == 1
  assert [s.tiles for s in sources] == [s.tiles for s in compiled.sources]
  assert Emulated(H200, 1000.0)(region, compiled.candidate) == (EMULATED, None)
  broken = dynamic.recompiled(0, "const[-1/2]", "const[-9/16]").candidate
  ran, refusal = Emulated(H200, 1000.0)(region, broken)
  assert ran == EMULATED and refusal.code == "KERNEL_WRONG"


def test_what_never_ran(small, monkeypatch):
  region, candidate = small.regions[0], small.compiled[0].candidate
  assert Emulated(H200, 0.0)(region, candidate) == (NEVER_RAN, None), "no time"
  monkeypatch.setattr(emulated, "MOST_WORK", 10)
  assert Emulated(H200, 99.0)(region, candidate) == (NEVER_RAN, None), "too large"
  monkeypatch.undo()
  monkeypatch.setenv("CXX", "/nowhere/g++")
  toolchain.host_compiler.cache_clear()
  try:
    assert Emulated(H200, 99.0)(region, candidate) == (NEVER_RAN, None), "no compiler"
  finally:
    toolchain.host_compiler.cache_clear()


def test_what_the_emulator_stops_is_wrong(small, monkeypatch):
  def stop(sources):
    raise EmulationError("kernel k0: a race", kind="race")

  monkeypatch.setattr(emulated, "compile_kernels", stop)
  ran, refusal = Emulated(H200, 99.0)(small.regions[0], small.compiled[0].candidate)
  assert ran == EMULATED and refusal.reason == "emulated at reduced sizes: kernel k0: a race"


def test_a_time_out_says_nothing(small, monkeypatch):
  def stop(sources):
    raise EmulationError("kernel k0: too long", kind="timeout")

  monkeypatch.setattr(emulated, "compile_kernels", stop)
  assert Emulated(H200, 99.0)(small.regions[0], small.compiled[0].candidate) == (NEVER_RAN, None)


def test_time_is_counted(small, monkeypatch):
  """After one that took longer than what is left, no other one begins."""
  look = Emulated(H200, 5.0)
  clock = iter([0.0, 4.5])
  monkeypatch.setattr(emulated, "time", SimpleNamespace(monotonic=lambda: next(clock)))
  monkeypatch.setattr(emulated, "_complaint", lambda *_: "")
  assert look(small.regions[0], small.compiled[0].candidate) == (EMULATED, None)
  assert look.left_s == 0.5
  assert look(small.regions[1], small.compiled[1].candidate) == (NEVER_RAN, None)


def test_the_next_candidate_is_taken(small):
  """The first is wrong: what ships is the second; where all are, the region stays as it was."""
  region, right = small.regions[1], small.compiled[1].candidate
  first = small.recompiled(1, "const[-1/2]", "const[-9/16]")
  outcome, look = Outcome(region, (), 1.0), Emulated(H200, 1000.0)
  found = tuning._looked_at(outcome, first, [first.candidate, right], H200, look)
  assert found.compiled.candidate == right and found.ran == EMULATED and found.rejection is None
  none = tuning._looked_at(outcome, first, [first.candidate], H200, look)
  assert none.compiled is None and none.rejection.code == "KERNEL_WRONG"
  unseen = tuning._looked_at(outcome, first, [first.candidate], H200, None)
  assert unseen.compiled is first and unseen.ran == ""


@pytest.mark.parametrize("how", [{}, {"zero": True, "block": 128}, {"bits": 8, "bias": True}], ids=str)
def test_weights_of_few_bits_run_too(how):
  region = region_of(norm(2, 2048, 512, **how))
  candidate = search_region(region).candidates[0].candidate
  assert Emulated(H200, 1000.0)(region, candidate) == (EMULATED, None)
  (kernel,), text = candidate.ugraph.kernels, print_ugraph(candidate.ugraph)
  other = replace(candidate, ugraph=parse_ugraph(text.replace("= rsqrt", "= sqrt")))
  ran, refusal = Emulated(H200, 1000.0)(region, other)
  assert ran == EMULATED and refusal.code == "KERNEL_WRONG" and kernel.lane_depth > 8
