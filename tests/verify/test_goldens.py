"""The golden µGraphs compute their regions, and the verifier says so, quickly."""

import numpy as np
import pytest
from goldens import GOLDENS, TEXTS
from mutant_oracle import difference, scenes
from verify_times import LIMIT_MS, times_ms

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.equivalence import Proof, check_terms, verify
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.reduced import reduced_instantiation
from mirage_onnx.verify.shift import check_shift
from mirage_onnx.verify.tiers import Tier

each_golden = pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: g.name)

#: Relative L2 of two programs of the same mathematics in float64.
SAME = 1e-9


def error(golden, extents, params):
  rng = np.random.default_rng(0)
  inputs = {
    i.name: NamedArray(rng.standard_normal((1, *(extents[a] for a in i.axes))), i.axes)
    for i in golden.region.inputs
  }
  want = interpret_terms(Float64(), golden.region.terms, inputs, extents)
  got = interpret_ugraph(Float64(), golden.ugraph, params, extents, inputs)
  worst = 0.0
  for output, value in zip(golden.region.outputs, want, strict=True):
    x, y = value.aligned(output.axes), got[output.name].aligned(output.axes)
    worst = max(worst, float(np.linalg.norm(x - y) / np.linalg.norm(x)))
  return worst


@each_golden
def test_a_golden_is_canonical_and_well_formed(golden):
  assert print_ugraph(golden.ugraph) == TEXTS[golden.name]
  assert check_ugraph(golden.ugraph) is None
  assert check_interface(golden.region, golden.ugraph) is None
  assert check_terms(golden.region, np.random.default_rng(0)) is None


@each_golden
def test_a_golden_computes_its_region_in_float64(golden):
  """At the extents of the region with real numbers, and at the verifier's."""
  small = reduced_instantiation(golden.ugraph, golden.region.extents)
  assert error(golden, dict(small.extents), small.params) < SAME
  assert error(golden, dict(golden.region.extents), golden.params) < SAME


@each_golden
def test_a_golden_is_right_on_hard_inputs(golden):
  """Large logits, masked rows, offsets; in the plain interpreter, at other extents."""
  for scene in scenes(golden):
    assert difference(golden.ugraph, scene) is None, scene.cases


@each_golden
def test_a_golden_is_accepted(golden):
  proof = verify(golden.region, golden.ugraph)
  assert isinstance(proof, Proof), proof
  assert proof.draws == 3 and proof.bound <= 1e-9
  assert proof.tier is Tier.FREE_EXPONENTIAL and not proof.heuristic
  assert "a0=" in proof.instantiation and "tile=" in proof.instantiation
  assert not isinstance(shift := check_shift(golden.region, golden.ugraph), Rejection), shift


def test_every_text_is_a_golden():
  assert sorted(TEXTS) == sorted(g.name for g in GOLDENS)
  assert len(GOLDENS) >= 12


@pytest.mark.slow
def test_a_verdict_takes_milliseconds():
  """Issue 4, point 3: all goldens together, and none of them is much above.

  A golden's time is the least of its repeats: what else runs on the cores makes CPU time longer, too.
  """
  times = {g.name: times_ms(g, repeats=20) for g in GOLDENS}
  every = np.concatenate(list(times.values()))
  for name, t in times.items():
    print(f"{name:24}{np.median(t):8.1f} ms{np.percentile(t, 95):8.1f} ms")
  assert np.median([t.min() for t in times.values()]) <= LIMIT_MS["median"]
  assert np.percentile(every, 95) <= LIMIT_MS["p95"]
