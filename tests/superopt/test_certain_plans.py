"""Programs of streaming and row kernels only: proven, too, where rooflines stand in front of them."""

import hashlib
import json
from functools import cache
from itertools import pairwise
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
from program_net import weight_values
from search_programs import ENTRIES, PROGRAMS

from mirage_onnx.ir import print_ugraph
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.superopt.certain_plans import MOST_BUILT, ROOFLINE, certain_plans
from mirage_onnx.superopt.expected_time import expected_us
from mirage_onnx.superopt.plans import KernelPlan
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.target import H200
from mirage_onnx.verify.prover import prover

RECORDS = Path(__file__).resolve().parents[2] / "bench" / "results"
#: Programs, and microseconds of what a run took before on an H100 and an H200 (``golden_candidates.json``),
#: where what it takes now was timed, too.
FASTER = {
  "codebook_distances": (11.6, 12.8),
  "batchnorm_linear": (80.0, 77.3),
  "layernorm_linear": (22.8, 20.3),
  "lora_two_adapters": (31.2, 30.7),
  "whole_mlp": (None, 146.1),
}


@cache
def searched(name):
  region = PROGRAMS[name]()
  prove = prover(region, weight_values(ENTRIES[name].build), derived=True)
  return search(region, H200, prove, space=ALL, budget_s=900.0)


def families(candidate):
  tensors = {t.name: t for t in candidate.ugraph.tensors}
  return {lay_out(k, tensors).family for k in candidate.ugraph.kernels}


def timed_us(gpu, name, candidate):
  """What a GPU took for a candidate."""
  found = json.loads((RECORDS / gpu / "golden_candidates.json").read_text())["candidates"]
  graph = hashlib.sha256(print_ugraph(candidate.ugraph).encode()).hexdigest()[:12]
  numbers = [p.to_text() for p in candidate.params]
  return next(row[3] for n, row in found if n == name and row[0] == graph and row[2] == numbers)


@pytest.mark.parametrize(
  "name",
  [pytest.param(n, marks=[] if n == "codebook_distances" else [pytest.mark.slow]) for n in FASTER],
)
def test_what_a_run_takes_was_faster_on_two_gpus(name):
  region, result = PROGRAMS[name](), searched(name)
  best = min((v.candidate for v in result.candidates), key=lambda c: expected_us(region, c, H200))
  assert Family.TILED not in families(best)
  assert result.report.verified == 5
  for gpu, before_us in zip(("h100", "h200"), FASTER[name], strict=True):
    assert before_us is None or timed_us(gpu, name, best) < 0.9 * before_us


@pytest.mark.parametrize("name", ["gated_mlp_relu", "softmax_rows", "bias_relu"])
def test_where_the_walk_comes_to_one_by_itself_no_more_is_proven(name):
  result = searched(name)
  assert result.report.verified == 4
  assert any(Family.TILED not in families(v.candidate) for v in result.candidates)


# -- plans of kernels that are made up: class 9 is the output, what is not made of others is an input


def kernel(cost_us, reads=(), *, tiled=False):
  return SimpleNamespace(cost_us=cost_us, reads=reads, is_tiled=tiled)


def plan(*kernels):
  return KernelPlan(sum(k.cost_us for k in kernels), tuple(((9,), k) for k in kernels))


def found(known, proven, refused=(), most=3, others=None, rest_us=None):
  """Costs of the kernels of all plans; ``others``: units that are not built, ``rest_us``: of values."""
  others, rest_us, built = others or {}, rest_us or {}, dict(known)

  def reason(kernels):
    return "refused" if {id(k) for k in kernels} & {id(k) for k in refused} else None

  def run(*unit):
    built.setdefault(unit, others.get(unit))
    return built[unit]

  units = SimpleNamespace(
    outputs={9: "y"},
    bound=SimpleNamespace(kept=3, slack=1.1),
    floors=SimpleNamespace(rest_us=lambda rest: sum(rest_us.get(c, 1.0) for c in rest)),
    first_depth=0,
    outline=lambda classes, depth: None,
    outlined=lambda classes: [(reads, kernels) for (own, reads), kernels in others.items() if own == classes],
    certain_us=lambda classes, kernels: min((k.cost_us for k in kernels if not k.is_tiled), default=inf),
  )
  blame = SimpleNamespace(reason=reason)
  plans = SimpleNamespace(units=units, blame=blame, groups=lambda c: [(x,) for x in sorted(c)], most=most)
  return [[b.cost_us for _, b in p.kernels] for p in certain_plans(plans, built, run, proven)]


def test_the_cheapest_comes_first_and_tiled_kernels_are_in_none():
  known = {
    ((9,), ()): (kernel(9.0), kernel(1.0, tiled=True)),
    ((9,), (5,)): (kernel(4.0, (5,)), kernel(2.0, (5,), tiled=True)),
    ((5,), ()): (kernel(3.0), kernel(3.5)),
  }
  assert found(known, [plan(kernel(8.0, tiled=True))]) == [[4.0, 3.0], [4.0, 3.5], [9.0]]


def test_what_a_proven_program_beats_is_not_looked_for():
  known = {((9,), ()): (kernel(9.0),)}
  assert (
    found(known, [plan(kernel(9.0))])
    == found(known, [plan(kernel(8.0)), plan(kernel(8.5, tiled=True))])
    == []
  )
  assert found(known, [plan(kernel(9.5))]) == [[9.0]]
  tiled = 9.0 / ROOFLINE
  assert found(known, [plan(kernel(0.99 * tiled, tiled=True))]) == []
  assert found(known, [plan(kernel(1.01 * tiled, tiled=True))]) == [[9.0]]
  assert found(known, []) == []


def test_of_a_refused_kernel_none_is_left_and_others_are():
  bad, good = kernel(4.0, (5,)), kernel(5.0, (5,))
  known = {((9,), (5,)): (bad, good), ((5,), ()): (kernel(3.0),)}
  proven = [plan(kernel(20.0, tiled=True))]
  assert found(known, proven) == [[4.0, 3.0], [5.0, 3.0]]
  assert found(known, proven, refused=(bad,)) == [[5.0, 3.0]]


def test_no_more_kernels_than_a_plan_may_have_and_no_value_twice():
  known = {((9,), (5,)): (kernel(1.0, (5,)),), ((5,), (4,)): (kernel(1.0, (4,)),), ((4,), ()): (kernel(1.0),)}
  proven = [plan(kernel(20.0, tiled=True))]
  assert found(known, proven) == [[1.0, 1.0, 1.0]]
  assert found(known, proven, most=2) == []
  circle = {((9,), (5,)): (kernel(1.0, (5,)),), ((5,), (9,)): (kernel(1.0, (9,)),)}
  assert found(circle, proven) == []


def test_what_is_little_is_built_and_what_reads_no_more():
  proven = [plan(kernel(100.0, tiled=True))]
  norm, loop, split = ((5,), ()), ((9,), (5,)), ((9,), (4,))
  others = {
    norm: (kernel(2.0), kernel(1.0, tiled=True)),
    loop: (kernel(60.0, (5,)),),
    split: (kernel(50.0, (4,)),),
  }
  big = {4: 20.0}
  assert found({}, proven, others=others, rest_us=big) == [[60.0, 2.0]]
  assert found({loop: (kernel(61.0, (5,)),)}, proven, others=others, rest_us=big) == [[61.0, 2.0]]
  assert found({}, proven, others={loop: others[loop]}, rest_us=big) == []
  assert found({}, proven, others={norm: others[norm], loop: (kernel(60.0, (5,), tiled=True),)}) == []
  assert found({}, proven, others=others, rest_us={4: 20.0, 5: 20.0}) == []


def test_no_more_units_are_built_than_are_allowed():
  proven = [plan(kernel(100.0, tiled=True))]
  known = {((9,), (c,)): (kernel(10.0, (c,)),) for c in range(8)}
  others = {((c,), ()): (kernel(2.0),) for c in range(8)}
  assert len(found(known, proven, others=others)) == MOST_BUILT
  assert len(found({**known, **others}, proven)) == len(others)
  # What is built is there for all that.
  last = {((9,), ()): (kernel(50.0),)}
  assert found({**known, **last}, proven, others=others)[-1] == [50.0]


def test_few_ways_to_the_same_values_are_followed():
  many = tuple(kernel(1.0 + n / 10, (5,)) for n in range(6))
  known = {((9,), (5,)): many, ((5,), ()): (kernel(1.0),)}
  costs = [sum(p) for p in found(known, [plan(kernel(20.0, tiled=True))])]
  assert costs == pytest.approx([2.0, 2.1, 2.2]) and all(a <= b for a, b in pairwise(costs))
