"""Factors of powers of two keep what is contracted in 16 bits from overflow."""

from fractions import Fraction

import numpy as np
import pytest
from goldens import golden
from small_models import Net, region_of
from unlike_layers import GOLDEN

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.importer import load_model
from mirage_onnx.ir import Candidate
from mirage_onnx.superopt.search import search
from mirage_onnx.target import H200
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.range_check import RangeCheck, RangeRecord
from mirage_onnx.verify.rescale import rescaled
from mirage_onnx.verify.weights import sample_weights


def scaled_by(value, given=GOLDEN):
  """The weights of the region with this scale of its channels."""
  scale = next(i for i in given.region.inputs if i.is_weight and len(i.axes) == 1)
  return {scale.tensor.name: np.full(given.region.extents[scale.axes[0]], value, np.float16)}


def factors(graph):
  return [
    op.value for k in graph.kernels for op in k.ops if op.op == "const" and op.value != Fraction(1, 100000)
  ]


@pytest.mark.parametrize(("scale", "exponent"), [(1.01, 1), (3.0, 2), (64.0, 6)])
@pytest.mark.parametrize("name", ["norm_linear", "norm_linear_cluster"])
def test_the_least_factor_that_is_enough(name, scale, exponent):
  given = golden(name)
  check = RangeCheck(given.region, scaled_by(scale, given))
  found = rescaled(given.ugraph, [check])
  assert isinstance(check.check(found), RangeRecord)
  added = [f for f in factors(found) if f not in factors(given.ugraph)]
  assert sorted(added) == [Fraction(1, 2**exponent), 2**exponent]
  assert isinstance(verify(given.region, found), Proof)
  assert emit_candidate(Candidate(found, given.params), given.region.extents, H200, "scaled")


def test_no_factor_where_none_is_needed_or_none_is_enough():
  assert rescaled(GOLDEN.ugraph, [RangeCheck(GOLDEN.region, scaled_by(1.0))]) is None
  assert rescaled(GOLDEN.ugraph, [RangeCheck(GOLDEN.region, scaled_by(65.0))]) is None


def test_every_product_of_it_is_scaled_back():
  """The gate and the up projection contract one scaled input."""
  given = golden("norm_gated_mlp")
  check = RangeCheck(given.region, scaled_by(3.0, given))
  found = rescaled(given.ugraph, [check])
  assert found is not None and isinstance(check.check(found), RangeRecord)
  assert isinstance(verify(given.region, found), Proof)


def test_the_proof_is_of_the_program_with_factors():
  """Only in a search: a program that somebody claims is not changed."""
  weights = scaled_by(3.0)
  asked = GOLDEN.region, GOLDEN.ugraph, GOLDEN.params
  proof = prover(GOLDEN.region, weights, derived=True)(*asked)
  assert isinstance(proof, Proof) and 4 in factors(proof.graph) and not proof.partial
  assert prover(GOLDEN.region, weights)(*asked).code == "RANGE"
  assert prover(GOLDEN.region, scaled_by(1.0), derived=True)(*asked).graph is None


def test_a_value_that_follows_from_another_gets_its_factor_too():
  """x A behind a norm, rounded again before B: of an infinite x A nothing says how large it would be."""
  net = Net(seed=3, opset=18)
  x = net.cast(net.input(8, 64), np.float32)
  root = net.Sqrt(net.Add(net.ReduceMean(net.Mul(x, x), [-1]), net.constant(1e-5, np.float32)))
  y = net.Mul(net.constant(np.full(64, 1.5, np.float16)), net.cast(net.Div(x, root), np.float16))
  down, up = net.weight(64, 8, scale=0.2), net.weight(8, 128, scale=0.2)
  model = net.model(net.Add(net.MatMul(y, net.weight(64, 128)), net.MatMul(net.MatMul(y, down), up)))
  loaded, region = load_model(model), region_of(model)
  result = search(region, H200, prover(region, sample_weights(loaded, region), derived=True), budget_s=900.0)
  scaled = [v.candidate.ugraph for v in result.candidates if len(v.candidate.ugraph.kernels) == 1]
  assert [r.code for r in result.report.refused if r.code == "RANGE"] == []
  assert scaled and all({Fraction(1, 2), 2} < set(factors(g)) for g in scaled)
