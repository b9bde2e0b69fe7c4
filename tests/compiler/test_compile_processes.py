"""Programs from other processes are those that are made here; a process that ends costs nothing but time."""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mirage_onnx import deadline
from mirage_onnx.compiler import candidates, compile_processes
from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.compiler.compile_processes import LEAST_CORES, CompileProcesses, apart, compiling_in
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.searching import search_region
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.target import H200
from mirage_onnx.tune.refine import other_numbers

LOADED = load_model(Path(__file__).parents[2] / "models" / "lora.onnx")


@cache
def programs():
  """A region and three of its programs: two that compile, and numbers that nothing is emitted for."""
  every = {c.region.key: c.region for c in find_candidates(import_model(LOADED)).candidates}
  region = min(every.values(), key=lambda r: (len(r.nodes), r.key))
  result = search_region(LOADED, region, H200, SearchBound(), 900.0)
  good = [v.candidate for v in result.candidates][:2]
  (first, *others) = good[0].params
  return region, (good[0], replace(good[0], params=(replace(first, warps=3), *others)), good[1])


@pytest.fixture
def processes():
  made = CompileProcesses(2)
  yield made
  made.close()


def test_the_same_programs(processes):
  region, some = programs()
  here, refused = compile_candidates(region, some, H200, keep=3, workers=2)
  with candidates.made_elsewhere(processes):
    there, refused_there = compile_candidates(region, some, H200, keep=3, workers=2)
  assert processes.asked == len(some)
  assert [c.candidate for c in there] == [c.candidate for c in here] and len(here) >= 2
  assert [c.sources for c in there] == [c.sources for c in here]
  assert [[i.image for i in c.cubins] for c in there] == [[i.image for i in c.cubins] for c in here]
  assert refused_there == refused
  # What is known is not asked again, nor is one program alone.
  with candidates.made_elsewhere(processes):
    again = compile_candidates(region, some, H200, keep=3, workers=2)[0]
    compile_candidates(region, some[:1], H200, keep=1)
  assert processes.asked == len(some) and all(a is b for a, b in zip(again, there, strict=True))


def test_what_a_process_that_ended_had_is_made_here(processes, monkeypatch):
  region, some = programs()
  monkeypatch.setattr(processes, "_start", lambda: _Gone())
  with candidates.made_elsewhere(processes):
    done, _ = compile_candidates(region, some, H200, keep=3, workers=2)
  assert len(done) >= 2 and all(isinstance(c, Compiled) for c in done)


class _Gone:
  """A process that takes a job and ends."""

  def send(self, value):
    pass

  def receive(self):
    raise EOFError

  def kill(self):
    pass

  close = kill


def test_rankings_are_those_that_are_made_here():
  region, (candidate, *_) = programs()
  here = other_numbers(region, candidate, H200, 4)
  assert apart(other_numbers, region, candidate, H200, 4) == here  # no processes: here
  with compiling_in(LEAST_CORES):
    (made,) = compile_processes._present
    assert apart(other_numbers, region, candidate, H200, 4) == here and made.asked == 1
    with pytest.raises(AttributeError):  # what fails there fails here, too
      apart(other_numbers, None, candidate, H200, 4)
  assert not compile_processes._present


def test_no_time_is_a_refusal_that_is_not_remembered(processes):
  region, some = programs()
  with deadline.until(time.monotonic() - 1):
    assert {r.code for r in processes(region, some, H200)} == {"BUDGET"}
  assert any(isinstance(r, Compiled) for r in processes(region, some, H200))


def test_few_cores_have_no_processes():
  with compiling_in(LEAST_CORES - 1):
    assert not candidates._elsewhere
  with compiling_in(LEAST_CORES):
    assert len(candidates._elsewhere) == 1
  assert not candidates._elsewhere
