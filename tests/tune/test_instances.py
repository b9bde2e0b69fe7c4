"""Which program the instances of a region get, and which are left alone."""

from dataclasses import replace

import pytest
import stand_ins
from unlike_layers import GOLDEN, SAFE, instances, layers

from mirage_onnx.importer import load_model
from mirage_onnx.ir import Candidate
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop, Verified
from mirage_onnx.tune import instances as module
from mirage_onnx.tune.instances import InstanceChecks, with_right_terms
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.verify.equivalence import Proof
from mirage_onnx.verify.term_checks import TermChecks
from mirage_onnx.verify.weights import ModelWeights

REPORT = SearchReport(0.0, 0, 0, 2, Stop.EXHAUSTED, (), ())


def outcome(model, fast_us, safe_us, baseline_us=20.0):
  """All instances, where the faster program is GOLDEN, and SAFE is another one."""
  programs = [Candidate(GOLDEN.ugraph, GOLDEN.params, fast_us), Candidate(SAFE, GOLDEN.params, safe_us)]
  found = instances(model)
  result = SearchResult(tuple(Verified(c, Proof(3, 1e-9, "")) for c in programs), REPORT)
  compiled = stand_ins.compiled(programs[0])
  return Outcome(found[0].region, tuple(found), baseline_us, result, compiled)


def refused(model, o, picked=None):
  """What becomes of it, and how many instances were asked about in the end."""
  checks = InstanceChecks(ModelWeights(load_model(model)))
  found = checks.refused([(c, o) for c in picked or o.instances])
  return found.get(o.region.key)


def test_safe_instances_stay_as_they_are():
  model = layers(1, 0.5)
  assert refused(model, outcome(model, 5.0, 6.0)) is None


def test_the_program_that_saves_most_is_taken():
  """Three times 14 us are more than twice 15; three times 9 are less than twice 15."""
  model = layers(1, 60, 1)
  o = outcome(model, 5.0, 6.0)
  all_safe = refused(model, o)
  assert [v.candidate.ugraph for v in all_safe.result.candidates] == [SAFE]
  assert all_safe.compiled is None and all_safe.rejection is None
  assert all_safe.instances == o.instances and not all_safe.left_alone
  some = refused(model, outcome(model, 5.0, 11.0))
  assert some.compiled is not None and some.rejection is None
  ((alone, why),) = some.left_alone
  assert why.code == "RANGE" and why.nodes == alone.region.nodes
  assert alone.outputs == {model.graph.output[1].name} and len(some.instances) == 2


def test_the_first_instance_may_be_the_one_that_is_left_alone():
  model = layers(60, 1)
  o = refused(model, outcome(model, 5.0, 19.0))
  assert o.region.outputs[0].tensor.name == model.graph.output[1].name
  assert [c.outputs for c, _ in o.left_alone] == [{model.graph.output[0].name}]


def test_a_region_of_which_none_is_safe_is_refused():
  model = layers(60, 60)
  o = outcome(model, 5.0, 25.0)  # the safe program is slower than onnxruntime
  found = refused(model, o)
  assert found.rejection.code == "RANGE" and found.compiled is None


def test_only_chosen_instances_are_asked_about():
  model = layers(1, 60)
  o = outcome(model, 5.0, 6.0)
  assert refused(model, o, o.instances[:1]) is None


def test_no_instance_is_asked_about_twice(monkeypatch):
  model = layers(1, 0.5)
  o, checks = outcome(model, 5.0, 6.0), InstanceChecks(ModelWeights(load_model(model)))
  chosen = [(c, o) for c in o.instances]
  assert not checks.refused(chosen)
  asked = []
  monkeypatch.setattr("mirage_onnx.tune.instances.check_instances", lambda some, *_: asked.extend(some) or [])
  assert not checks.refused(chosen) and not asked


@pytest.mark.parametrize("wrong", [0, 1])
def test_an_instance_with_wrong_terms_is_left_alone(wrong):
  """The steps of one instance change a sign, its terms do not say so."""
  model = layers(1, 0.5)
  o = outcome(model, 5.0, 6.0)
  bad = o.instances[wrong]
  first, *steps = bad.region.steps
  steps = [first, *(replace(s, op="sub") if s.op == "add" else s for s in steps)]
  planted = replace(bad, made=replace(bad.region, steps=tuple(steps)))
  o = replace(o, instances=tuple(planted if c is bad else c for c in o.instances))
  found = with_right_terms(o, TermChecks())
  assert [c for c, _ in found.left_alone] == [planted]
  assert found.instances == tuple(c for c in o.instances if c is not planted)
  assert found.left_alone[0][1].code == "NOT_EQUIVALENT"


def test_a_copy_with_wrong_terms_is_noticed_when_it_is_chosen(monkeypatch):
  """Copies of one region are not looked at one by one before: there are thousands."""
  model = layers(1, 0.5)
  o = outcome(model, 5.0, 6.0)
  bad, (first, *steps) = o.instances[1], o.instances[1].region.steps
  steps = [first, *(replace(s, op="sub") if s.op == "add" else s for s in steps)]
  late = bad.made
  assert late.form is o.instances[0].form
  monkeypatch.setattr(late, "_region", replace(bad.region, steps=tuple(steps)))
  assert with_right_terms(o, TermChecks()) is o
  checks = InstanceChecks(ModelWeights(load_model(model)))
  good, wrong = checks.verdicts(o.instances, o.result.candidates[0].candidate)
  assert good is None and wrong.code == "NOT_EQUIVALENT" and wrong.nodes == bad.region.nodes


def verdicts(model, folder, setting=None):
  """Of two programs for all instances, as codes; kept in ``folder``."""
  checks = InstanceChecks(ModelWeights(load_model(model)), KeptFolder(folder, setting or {"checker": "1"}))
  o = outcome(model, 5.0, 6.0)
  return [
    [v and (v.code, v.nodes) for v in checks.verdicts(o.instances, found.candidate)]
    for found in o.result.candidates
  ]


def count_asked(monkeypatch):
  asked, real = [], module.check_instances
  monkeypatch.setattr(
    module, "check_instances", lambda regions, *rest: (asked.extend(regions), real(regions, *rest))[1]
  )
  return asked


def test_another_run_does_not_ask_again(monkeypatch, tmp_path):
  model = layers(1, 60, 1)
  first = verdicts(model, tmp_path)
  assert [v and v[0] for v in first[0]] == [None, "RANGE", None] and first[1] == [None] * 3
  asked = count_asked(monkeypatch)
  assert verdicts(model, tmp_path) == first and not asked
  assert verdicts(model, tmp_path, {"checker": "2"}) == first and len(asked) == 6


def test_other_weights_are_another_question(monkeypatch, tmp_path):
  verdicts(layers(1, 0.5), tmp_path)
  asked = count_asked(monkeypatch)
  found = verdicts(layers(1, 60), tmp_path)
  assert [v and v[0] for v in found[0]] == [None, "RANGE"] and len(asked) == 2  # the second, twice


def test_a_damaged_verdict_is_asked_again(monkeypatch, tmp_path):
  model = layers(1, 60)
  first = verdicts(model, tmp_path)
  for n, path in enumerate(sorted(tmp_path.iterdir())):
    path.write_bytes(path.read_bytes()[: -5 * n] if n % 2 else b"{}")
  asked = count_asked(monkeypatch)
  assert verdicts(model, tmp_path) == first and asked


@pytest.mark.parametrize("value", [{}, {"refused": 3}, {"refused": []}, {"refused": ["RANGE"]}])
def test_what_is_no_verdict_is_none(value):
  assert module._kept_verdict(value) is None


def test_the_cache_switch(monkeypatch, tmp_path):
  weights = ModelWeights(load_model(layers(1)))
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  assert InstanceChecks.of_user(weights)._kept is None  # as all tests are run
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  assert InstanceChecks.of_user(weights)._kept.folder == tmp_path / "verdicts"
