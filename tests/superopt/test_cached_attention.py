"""One step of a decoder: attention over a cache and new tokens, as exporters write it."""

from dataclasses import replace

import pytest
import weights
from region_data import exactly, relative_error
from small_models import Net, prover, search_region

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match import cuts
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.superopt import plans
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.search import SearchBound, Stop, search
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.target import H200
from mirage_onnx.verify.interpret_steps import interpret_steps

HEADS, PAST, D = 2, 24, 16
#: States under one assignment of roles, and kernels that a search may build: little work.
STATES, BUILT = 4_000, 1500


def rotated(net, x, cos, sin):
  low, high = (net.Slice(x, [a], [a + D // 2], [-1]) for a in (0, D // 2))
  return net.Add(net.Mul(x, cos), net.Mul(net.Concat(net.Neg(high), low, axis=-1), sin))


def step(net, *, group=1, new=1, mask=False, rotary=False, presents=0):
  """Keys in heads that ``group`` queries share; ``presents``: as many longer caches are outputs."""
  q = net.input(HEADS, group * new, D)
  past, (k, v) = (
    [net.input(HEADS, PAST, D) for _ in "kv"],
    [net.input(HEADS, new, D) for _ in "kv"],
  )
  if rotary:
    q = rotated(net, q, net.input(1, D), net.input(1, D))
  keys, values = (net.Concat(p, x, axis=1) for p, x in zip(past, (k, v), strict=True))
  logits = net.Mul(net.MatMul(q, net.Transpose(keys, perm=[0, 2, 1])), D**-0.5)
  if mask:
    bias = net.input(group * new, PAST + new)
    logits = net.Add(logits, bias)
  y = net.MatMul(net.Softmax(logits), values)
  return net.model(y, *(keys, values)[:presents])


def attentions(model, *products):
  """The regions that hold these products (all of the model), those with most nodes first."""
  program = import_model(load_model(model))
  found = find_candidates(program, cuts.TIMED)
  both = set(products) or {n.name for n in program.nodes if n.op_type == "MatMul"}
  own = [c for c in found.candidates if both <= c.nodes]
  return [c.region for c in sorted(own, key=lambda c: -len(c.nodes))]


KINDS = {
  "heads": {},
  "groups, mask": {"group": 4, "mask": True},
  "rotary": {"rotary": True},
  "prefill": {"new": 3, "mask": True},
  "presents": {"presents": 1, "group": 2},
}
FAST = ("heads", "rotary")


@pytest.mark.parametrize("kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_attention_over_a_cache_is_found(net, rng, kind):
  for region in attentions(step(net, **KINDS[kind]))[:1]:
    scope = SearchScope.of(H200, SearchBound(), region)
    bound = replace(scope.bound, states=STATES)
    result = search_region(region, bound=bound, space=scope.space, budget_s=1e6)
    report = result.report
    assert report.stop in (Stop.EXHAUSTED, Stop.STATE_LIMIT) and report.built <= BUILT
    assert report.verified
    values = {i.tensor.name: rng.standard_normal(i.tensor.shape) for i in region.inputs}
    want = interpret_steps(region, values, rounded=False)
    for name, got in exactly(region, result.candidates[0].candidate, values).items():
      assert relative_error(got, want[name]) < 1e-9


def test_keys_are_read_in_the_parts_of_the_values():
  """Where the longer keys are there, and the values are not: no score is computed twice."""

  def products(presents):
    regions = attentions(step(Net(), presents=presents))
    return max(sum(s.op == "matmul" for s in r.steps) for r in regions)

  assert (products(1), products(2)) == (4, 2)


def test_what_feeds_a_softmax_leaves_room_for_the_second_product():
  """Queries that are normalised and rotated, a mask that is computed: an exported decode step."""
  model = weights.load("qwen3_decode")
  both = "node_matmul", "node_matmul_1"
  assert len(attentions(model, *both)[0].nodes) >= 32


def test_plans_before_their_turn_change_nothing_but_a_search_that_is_cut(net, monkeypatch):
  region = attentions(step(net))[-1]
  scope = SearchScope.of(H200, SearchBound(), region)
  prove, verdicts = prover(), []

  def verify(*program):
    verdicts.append(prove(*program))
    return verdicts[-1]

  def run(hooks=None):
    how = {"bound": scope.bound, "space": scope.space, "budget_s": 1e6, "hooks": hooks}
    return search(region, H200, verify, **how)

  def proven():
    return not all(isinstance(v, Rejection) for v in verdicts)

  def ranked(result):
    return [v.candidate for v in result.candidates]

  plain = run()
  monkeypatch.setattr(plans, "PATIENCE", 1)
  early = run()
  assert ranked(early)[0] == ranked(plain)[0]
  assert early.report.stop is plain.report.stop is Stop.EXHAUSTED
  assert early.report.verified >= plain.report.verified
  verdicts.clear()
  cut = run(Hooks(stop=lambda: Stop.INTERRUPTED if proven() else None))
  assert cut.report.stop is Stop.INTERRUPTED and cut.report.verified == 1
  assert cut.report.built <= plain.report.built and cut.report.verified < plain.report.verified
  assert cut.candidates


def test_no_part_of_a_tensor_holds_an_axis_in_two_places():
  """Heads that a prefill repeats begin inside of rows: no memory has them in another order."""
  program = import_model(load_model(weights.load("qwen3_prefill")))
  regions = [c.region for c in find_candidates(program, cuts.TIMED).candidates]
  assert any(x.windows for r in regions for x in r.inputs)
  for x in (x for r in regions for x in (*r.inputs, *r.outputs)):
    held = [a for w in x.windows for a in w.axes]
    assert len(held) == len(set(held))
