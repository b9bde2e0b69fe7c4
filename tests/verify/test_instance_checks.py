"""A program is asked about every instance, with the steps and weights of each."""

import pytest
from unlike_layers import GOLDEN, SAFE, instances, layers

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import load_model
from mirage_onnx.superopt.search import search
from mirage_onnx.target import H200
from mirage_onnx.verify.equivalence import Proof
from mirage_onnx.verify.instance_checks import check_instances, unlike
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import ModelWeights


def asked(model, graph, params=GOLDEN.params):
  found = [c.region for c in instances(model)]
  assert len(found) == len(model.graph.output)
  return check_instances(found, graph, params, ModelWeights(load_model(model)))


def codes(verdicts):
  return [v and v.code for v in verdicts]


def test_each_instance_has_its_own_weights():
  """1 x is finite where the norm is, 60 x is not; the one that is refused is told by its nodes."""
  model = layers(1, 60, 0.5, 1)
  verdicts = asked(model, GOLDEN.ugraph)
  assert codes(verdicts) == [None, "RANGE", None, None]
  assert verdicts[1].nodes == instances(model)[1].region.nodes
  assert "up to 65504" in verdicts[1].reason
  assert codes(asked(model, SAFE)) == [None] * 4


def test_what_the_original_overflows_and_hides_is_asked_too():
  """In 16 bits the square of 256 is infinite, and a row of larger ones 0: not NaN, as 60 x makes it."""
  model = layers(60, 60, narrow=(1,))
  first, second = (c.region for c in instances(model))
  assert first.key == second.key
  assert codes(asked(model, GOLDEN.ugraph)) == ["RANGE", "RANGE"]
  assert codes(asked(model, SAFE)) == [None, None]


def test_rounding_is_checked_with_the_weights_of_each():
  """2^-8 x / 2000 has a few bits in 16 bits; the norm of x has all, and so its 2000th part."""
  verdicts = asked(layers(1, 0.0005, 1), GOLDEN.ugraph)
  assert codes(verdicts) == [None, "NUMERICS", None]
  assert codes(asked(layers(1, 0.0005, 1), SAFE)) == ["NUMERICS" if v else None for v in (0, 0, 0)]


def test_a_search_is_told_of_the_extremes():
  model = layers(1, 60, 0.5, 1)
  weights = ModelWeights(load_model(model))
  some, known = instances(model), {}
  assert unlike(some, weights, known) == (some[2].region, some[1].region)
  assert unlike([some[0], some[3]], weights, {}) == ()
  assert len(known) == 4
  assert unlike(some, ModelWeights(load_model(layers(1, 1, 1, 1))), known) == (some[2].region, some[1].region)


@pytest.mark.parametrize(
  ("gammas", "found"), [((1, 1), False), ((1, 200), True), ((200, 1), True), ((200, 200), None)]
)
def test_a_proof_is_partial_where_some_instances_may_overflow(gammas, found):
  model = layers(*gammas)
  weights = ModelWeights(load_model(model))
  first, *others = (c.region for c in instances(model))
  twins = [(r, weights.of(r)) for r in others]
  verdict = prover(first, weights.of(first), derived=True, twins=twins)(first, GOLDEN.ugraph, GOLDEN.params)
  if found is None:
    assert isinstance(verdict, Rejection) and verdict.code == "RANGE"
  else:
    assert isinstance(verdict, Proof) and verdict.partial == found


def test_an_unsafe_program_takes_no_place_in_the_search():
  """As many that are safe for both are found as without it; 2^-8 would be too much of a factor."""
  model = layers(1, 200)
  weights = ModelWeights(load_model(model))
  regions = [c.region for c in instances(model)]
  twins = [(regions[1], weights.of(regions[1]))]
  prove = prover(regions[0], weights.of(regions[0]), derived=True, twins=twins)
  result = search(regions[0], H200, prove, budget_s=900.0)
  assert {v.proof.partial for v in result.candidates} == {True, False}
  firsts = {v.candidate.ugraph: v for v in reversed(result.candidates)}
  for v in firsts.values():
    found = codes(asked(model, v.candidate.ugraph, v.candidate.params))
    assert found == [None, "RANGE" if v.proof.partial else None]
