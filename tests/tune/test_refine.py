"""More numbers of a measured program."""

from dataclasses import replace
from math import prod

import pytest
import stand_ins
from golden_graphs import golden_graph
from search_programs import PROGRAMS

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.deadline import Ends
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.result import SearchBound, SearchReport, SearchResult, Stop, Verified
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.superopt.tiled_numbers import solve_tiled
from mirage_onnx.superopt.timed_numbers import by_warpgroups, with_warpgroups
from mirage_onnx.target import H200, get_target
from mirage_onnx.tune import ahead, tuning
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.refine import (
  FAR,
  WORTH_US,
  of_warpgroups,
  other_numbers,
  with_room,
)
from mirage_onnx.verify.prover import prover

REGION = PROGRAMS["lora_two_adapters"]()


def candidate():
  graph = golden_graph("lora_two_adapters")
  tensors = {t.name: t for t in graph.tensors}
  best = [solve_tiled(k, tensors, REGION.extents, H200, keep=1)[0] for k in graph.kernels]
  return Candidate(graph, tuple(p for _, p in best), sum(c.time_us for c, _ in best))


def test_the_longest_kernel_gets_other_numbers():
  first = candidate()
  found = other_numbers(REGION, first, H200, 24)
  assert len({c.params for c in found}) == len(found) == 24
  assert {c.params[0] for c in found} == {first.params[0]}
  assert first.params[1] not in {c.params[1] for c in found}
  kinds = [(c.params[1].warps, c.params[1].loop_tile) for c in found]
  distinct = len(set(kinds))
  assert distinct > 8 and len(set(kinds[:distinct])) == distinct
  assert [c.predicted_us for c in found[:distinct]] == sorted(c.predicted_us for c in found[:distinct])
  assert all(first.predicted_us <= c.predicted_us <= FAR * first.predicted_us for c in found)


def test_most_of_them_have_kernels():
  def emits(c):
    try:
      return bool(emit_candidate(c, REGION.extents, H200, "k"))
    except RejectionError:
      return False

  found = other_numbers(REGION, candidate(), H200, 12)
  assert sum(map(emits, found)) >= 9


def test_neighbours_of_the_fastest():
  first = candidate()
  tried = {first.params}
  found = other_numbers(REGION, first, H200, 16, tried)
  assert len(found) == 16 and not {c.params for c in found} & tried
  own = first.params[1]
  for c in found:
    p = c.params[1]
    sizes = [(*q.tile, q.cluster, q.loop_tile, q.warps) for q in (own, p)]
    moved = [max(a, b) / min(a, b) for a, b in zip(*sizes, strict=True) if a != b]
    assert prod(moved) * 2 ** abs(own.stages - p.stages) <= 4
  again = other_numbers(REGION, first, H200, 16, {c.params for c in found})
  assert not {c.params for c in found} & {c.params for c in again}


def test_a_long_streaming_kernel_gets_other_numbers():
  region = PROGRAMS["gated_mlp_silu"]()
  graph = golden_graph("gated_mlp_silu")
  tensors = {t.name: t for t in graph.tensors}
  (kernel,) = graph.kernels
  cost, params = solve(kernel, tensors, region.extents, H200, keep=1)[0]
  found = other_numbers(region, Candidate(graph, (params,), cost.time_us), H200, 8)
  assert (len(found) == 8) == (cost.time_us >= WORTH_US)


def test_none_without_a_tiled_kernel():
  region = PROGRAMS["residual_rmsnorm"]()
  graph = golden_graph("residual_rmsnorm")
  tensors = {t.name: t for t in graph.tensors}
  params = tuple(solve(k, tensors, region.extents, H200, keep=1)[0][1] for k in graph.kernels)
  assert other_numbers(region, Candidate(graph, params), H200, 8) == ()
  assert other_numbers(REGION, replace(candidate()), H200, 0) == ()


def test_where_the_compiler_spills_all_there_are_numbers_with_fewer_registers():
  """An Orin has few multiprocessors: of a causal mask all that the search finds have the largest tiles."""
  region, orin = PROGRAMS["attention_causal"](), get_target("orin")
  prove = prover(region, derived=True)
  result = search(region, orin, prove, bound=SearchBound(), space=space_of(region), budget_s=900.0)
  ready = ahead.first_kernels(Outcome(region, (), 0.0, result), orin, 8, 1, 1, measured=False)
  assert {r.code for r in ready.refused} == {"SPILLS"} and len(ready.refused) >= 8
  (made,) = ready.compiled
  assert made.candidate in ready.candidates and made.cubins[0].registers < 200
  first = result.candidates[0].candidate
  assert first.predicted_us <= made.candidate.predicted_us < 1.1 * first.predicted_us
  every = with_room(region, [first], orin, 8)
  assert len(every) == 8 and {c.ugraph for c in every} == {first.ugraph}
  assert [c.predicted_us for c in every] == sorted(c.predicted_us for c in every)


def test_what_the_compiler_refuses_is_asked_once(monkeypatch):
  asked, rounds = [], []

  def compile_some(region, candidates, target, *, keep, workers):
    rounds.append(len(candidates))
    asked.extend(c.params for c in candidates)
    candidates = [c for c in candidates if all(p.instruction == "mma" for p in c.params)]
    taken = [stand_ins.compiled(c) for c in candidates[:: 1 if len(rounds) < 3 else 2]]
    return taken, [Rejection("SMEM", "", ())] * (len(candidates) - len(taken))

  def measure_all(loaded, region, compiled, target, more, draws, weights):
    tried, others = [], compiled
    while others:
      tried += others
      others = more(tried[-1], tried)  # the last is always the fastest
    return tried[-1], None

  for place in (ahead, tuning):
    monkeypatch.setattr(place, "compile_candidates", compile_some)
  monkeypatch.setattr(tuning, "measure_region", measure_all)
  outcome = Outcome(REGION, (), 0.0, SearchResult((Verified(candidate(), None),), None))
  tuning.tuned(None, outcome, H200, measure=True, tries=4, ends=Ends(), look=None)
  assert len(rounds) > 4 and len(asked) == len(set(asked))


LINEAR = """ugraph 1
tensor i1 f16[a2,a0] input
tensor i0 f16[a1,a0] weight
tensor o0 f16[a2,a1] output
kernel k0 grid=a1,a2 cluster=- loop=a0
  %0 = load i0 imap=a1,- cmap=- fmap=a0 : f16[a1,a0] loop A_frag
  %1 = load i1 imap=-,a2 cmap=- fmap=a0 : f16[a2,a0] loop B_frag
  %2 = matmul[a0] %0 %1 : f32[a1,a2] loop C_frag
  %3 = acc_sum %2 : f32[a1,a2] post C_frag
  %4 = cast %3 : f16[a1,a2] post element
  save o0 = %4 omap=a1,a2
"""


def linear(rows, runtime=None):
  graph = parse_ugraph(LINEAR)
  sizes = {"a0": 768, "a1": 768, "a2": rows}
  region = stand_ins.region(extents=sizes, runtime=runtime)
  return region, Candidate(graph, (KernelParams((64, 32), 1, 256, 8, 4),), 1.0)


def test_products_of_many_rows_by_warpgroups():
  region, first = linear(512)
  found = by_warpgroups(region, first, H200, 8)
  assert len({c.params for c in found}) == len(found) == 8
  assert {c.ugraph for c in found} == {first.ugraph}
  assert {p.instruction for c in found for p in c.params} == {"wgmma"}
  assert all(emit_candidate(c, region.extents, H200, "k") for c in found)


def test_what_is_timed_is_chosen_by_what_warpgroups_take():
  """4096 rows: hopeless by the other instruction, so no one would time them."""
  region, first = linear(4096)
  first = replace(first, predicted_us=400.0)
  result = SearchResult((Verified(first, None),), SearchReport(0, 0, 0, 0, Stop.EXHAUSTED, (), ()))
  found = with_warpgroups(region, result, H200)
  best, *others = (v.candidate for v in found.candidates)
  assert {p.instruction for p in best.params} == {"wgmma"} and others == [first]
  assert best.predicted_us < 100
  again = of_warpgroups(region, [best, first], H200, 8)
  assert len(again) == 7 and best.params not in {c.params for c in again}
  few, one = linear(32)
  none = SearchResult((Verified(one, None),), result.report)
  assert with_warpgroups(few, none, H200) is none


def test_not_where_rows_are_few():
  assert by_warpgroups(*linear(32), H200, 8) == ()


def test_rows_that_only_a_run_counts():
  region, first = linear(512, {"a2": ()})
  found = by_warpgroups(region, first, H200, 8)
  assert len(found) == 8
  assert all(emit_candidate(c, region.extents, H200, "k", region.runtime)[0].sizes == ("a2",) for c in found)


@pytest.mark.parametrize("measure", [True, False])
def test_they_are_timed_beside_the_others(monkeypatch, measure):
  """Never predicted: only where kernels are timed, and then more of them if one is the fastest."""
  region, first = linear(512)
  asked = []

  def compile_some(region, candidates, target, *, keep, workers=1):
    asked.append([c.params[0].instruction for c in candidates])
    return [stand_ins.compiled(c) for c in candidates[:keep]], []

  def measure_all(loaded, region, compiled, target, more, given=None, weights=None):
    tried, others = [], compiled
    while others:
      tried += others
      others = more(tried[-1], tried)
    return tried[-1], None

  for place in (ahead, tuning):
    monkeypatch.setattr(place, "compile_candidates", compile_some)
  monkeypatch.setattr(tuning, "measure_region", measure_all)
  outcome = Outcome(region, (), 0.0, SearchResult((Verified(first, None),), None))
  best = tuning.tuned(None, outcome, H200, measure=measure, tries=4, ends=Ends(), look=None).compiled
  if measure:
    assert asked[:2] == [["mma"], ["wgmma"] * 4]
    assert {i for own in asked[2:] for i in own} == {"wgmma"}
    assert best.candidate.params[0].instruction == "wgmma"
  else:
    assert asked == [["mma"]] and best.candidate is first


def test_what_is_made_ready_has_the_instruction_of_the_fastest():
  """Numbers for the other instruction would be compiled in vain."""
  region, first = linear(512)
  best = by_warpgroups(region, first, H200, 1)[0]
  outcome = Outcome(region, (), 0.0, None)
  found = tuning.second_numbers(outcome, stand_ins.compiled(best), H200, 4)
  assert found and {p.instruction for c in found for p in c.params} == {"wgmma"}
  assert best.params not in {c.params for c in found}


@pytest.mark.parametrize(
  ("codes", "code"), [(("SPILLS", "BUDGET"), "BUDGET"), (("SPILLS", "SMEM"), "SPILLS")]
)
def test_what_there_was_no_time_for_may_have_been_right(monkeypatch, codes, code):
  """A region some of whose programs spill has another look where others were not compiled in time."""
  ready = ahead.Ready((), [], [Rejection(c, "", ()) for c in codes])
  monkeypatch.setattr(tuning, "first_kernels", lambda *given, **more: ready)
  outcome = Outcome(REGION, (), 0.0)
  found = tuning.tuned(None, outcome, H200, measure=True, tries=2, ends=Ends(), look=None)  # type: ignore[arg-type]
  assert found.rejection and found.rejection.code == code
