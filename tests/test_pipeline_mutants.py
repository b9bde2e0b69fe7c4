"""Faults planted in the stages of ``optimize`` do not get through: a sample of bench/pipeline_mutants.py."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "bench"))

import pipeline_mutants
from mutants import harness
from mutants.harness import NO_FAULT, Fault, Forked, Outcome, forked
from mutants.hooks import patched, production, watching
from mutants.plan_faults import faults as plan_faults

#: The seed of the sample, other faults than those of the record.
SEED, SAMPLE = 20, 10
SUBJECT = "stored"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
  """Whose runs no busy machine cuts, which would be no fault, or ends."""
  before = dict(os.environ)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(harness, "BUDGET_S", 900.0)
    patch.setattr(harness, "LIMIT_S", 3600.0)
    yield pipeline_mutants.prepared(tmp_path_factory.mktemp("faults"), (SUBJECT,))
  os.environ.clear()
  os.environ.update(before)


@pytest.mark.slow
def test_a_sample_is_caught(bench):
  outcomes = pipeline_mutants.run(bench, SAMPLE, SEED, subjects=(SUBJECT,), jobs=2)
  real = [o for o in outcomes if o.result not in NO_FAULT]
  assert len(real) >= SAMPLE
  assert {o.id.partition("/")[0] for o in real} >= {"plan", "program", "text", "body", "match"}
  assert [o for o in real if o.result != "caught"] == []


@pytest.mark.slow
def test_a_fault_that_is_let_through_is_told(bench):
  """A blind ``verify`` lets a wrong plan through; so the sample can fail."""
  fault = next(f for f in plan_faults(bench, SUBJECT) if "is 4 bytes further" in f.name)
  verify = production("mirage_onnx.api:verify")
  blind = partial(verify, emulate=False)
  with patched(blind, "mirage_onnx.api:verify"):
    (outcome,) = forked(bench, iter([fault]))
  assert outcome.result == "survived"
  (outcome,) = forked(bench, iter([fault]))
  assert outcome.result == "caught"
  assert outcome.by.startswith("verify: ")


@pytest.mark.slow
def test_what_changes_nothing_is_no_fault(bench):
  place = "mirage_onnx.compiler.candidates:emit_kernel"
  (outcome,) = forked(bench, iter([Fault("text", SUBJECT, "the same", partial(watching, place))]))
  assert outcome.result == "nothing"


class Silent:
  """A bench in which a fault does what its name says."""

  def run(self, fault):
    if fault.name == "dies":
      os._exit(3)
    if fault.name == "hangs":
      os.read(os.pipe()[0], 1)
    return Outcome(fault.id, fault.name)


def a_fault(name, stage="plan"):
  return Fault(stage, "s", name, lambda: patched(0, "os:linesep"))


def finished(one):
  while (outcome := one.poll()) is None:
    pass
  return outcome


def test_children_that_die_or_hang():
  assert finished(Forked(Silent(), a_fault("dies"))).result == "died"
  assert finished(Forked(Silent(), a_fault("hangs"), limit_s=0.2)).result == "hung"
  assert finished(Forked(Silent(), a_fault("caught"))) == Outcome("plan/s/caught", "caught")


def test_every_stage_has_its_quota():
  """What changed nothing is replaced; what an earlier run knows is not run again."""
  faults = {
    "plan": [a_fault("nothing"), a_fault("caught"), a_fault("survived"), a_fault("left")],
    "text": [a_fault("known", "text"), a_fault("caught", "text")],
  }
  known = Outcome("text/s/known", "caught")
  turns = pipeline_mutants.Turns(faults, {"plan": 2, "text": 1}, [known])
  for outcome in forked(Silent(), turns, jobs=2):
    turns.tell(outcome)
  assert sorted(o.id for o in turns.outcomes) == [
    "plan/s/caught", "plan/s/nothing", "plan/s/survived", "text/s/known",
  ]  # fmt: skip
  counted = pipeline_mutants.summary(turns.outcomes)
  assert counted["faults"] == 3
  assert counted["nothing changed"] == 1
  assert counted["results"] == {"caught": 2, "survived": 1}
