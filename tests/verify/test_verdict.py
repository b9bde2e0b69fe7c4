"""``judge``: the same verdict as ``verify``, with all that is known."""

from raw_programs import C, X, exp, graph_of, region_of, total

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.verify.equivalence import verify
from mirage_onnx.verify.verdict import judge

SOFTMAX = exp(X) / total(exp(X))


def test_an_accepted_program_has_its_proof():
  region, graph = region_of(SOFTMAX), graph_of(SOFTMAX)
  verdict = judge(region, graph)
  assert verdict.accepted and verdict.proof == verify(region, graph)
  assert verdict.rejection is None and verdict.counterexample is None


def test_a_wrong_program_has_a_counterexample_and_a_sentence():
  verdict = judge(region_of(SOFTMAX), graph_of(exp(X) / total(exp(X + 1))))
  assert not verdict.accepted and verdict.proof is None
  assert verdict.rejection is not None and verdict.rejection.code == "NOT_EQUIVALENT"
  assert verdict.counterexample is not None
  assert "the first value that leads to nothing right is kernel k0" in verdict.rejection.reason


def test_an_ill_formed_program_has_a_reason_only():
  graph = parse_ugraph(print_ugraph(graph_of(SOFTMAX)).replace("save o = %", "save p = %"))
  verdict = judge(region_of(SOFTMAX), graph)
  assert not verdict.accepted and verdict.counterexample is None
  assert verdict.rejection is not None and "ill-formed" in verdict.rejection.reason


def test_a_proof_without_a_bound_comes_with_a_rejection():
  shift = total(C, "i")
  want = exp(X) / total(total(exp(X)), "i")
  got = exp(X - shift) / total(total(exp(X - shift)), "i")
  verdict = judge(region_of(want), graph_of(got))
  assert not verdict.accepted and verdict.proof is not None and verdict.proof.heuristic
  assert isinstance(verdict.rejection, Rejection)


def test_a_verdict_is_reproducible():
  region, graph = region_of(SOFTMAX), graph_of(exp(X) / total(exp(X + 1)))
  first, again = judge(region, graph, seed=3), judge(region, graph, seed=3)
  assert first.rejection == again.rejection
  assert first.counterexample is not None and again.counterexample is not None
  for name, values in first.counterexample.inputs.items():
    assert (values == again.counterexample.inputs[name]).all()
  assert judge(region, graph, seed=4).rejection != first.rejection
