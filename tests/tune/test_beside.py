"""Regions that read the same value, as kernels of one node; on the emulator, with made-up times."""

from dataclasses import replace
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import stand_ins
from emulated_gpu import EmulatedGpu, drawn
from small_models import Net

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.choosing.siblings import siblings
from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.ir import Candidate, KernelParams
from mirage_onnx.ir.program import Node, Program
from mirage_onnx.lower.read_ahead import reads_ahead
from mirage_onnx.report.region_rows import region_rows
from mirage_onnx.rewrite.apply import apply
from mirage_onnx.target import H100, H200
from mirage_onnx.tune import beside
from mirage_onnx.tune.measure import Inputs, Measured, prepare
from tests.codegen.tiled.test_alike import BY_WGMMA, GRAPH, SIZES


def projections(net, widths=(96, 48, 32)):
  """A norm in front of three projections, the last of which feeds another one."""
  x = net.rms(net.input(4, 64))
  q, k, v = (net.MatMul(x, net.weight(64, n)) for n in widths)
  behind = net.MatMul(net.Sigmoid(v), net.weight(widths[2], 64))
  return net.model(net.Relu(q), net.Relu(k), behind)


def experts(net):
  """Two products of the same value with rows that a run picks of two tables."""
  x, rows = net.Unsqueeze(net.rms(net.input(4, 64)), [2]), net.Unsqueeze(net.input(4, dtype=np.int64), [1])
  parts = (net.MatMul(net.GatherND(net.weight(3, n, 64), rows), x) for n in (32, 48))
  return net.model(*map(net.Tanh, parts))


@cache
def optimized(build):
  loaded = load_model(build(Net()))
  return loaded, pipeline.run(loaded, pipeline.Options(H200, margin=-20.0))


@pytest.fixture(params=[projections])
def chosen(monkeypatch, request):
  """The regions that are chosen of it, as if they had been measured."""
  loaded, run = optimized(request.param)
  timed = [(c, replace(o, measured=Measured(5.0, 9.0, 1))) for c, o in run.chosen]
  gpu = EmulatedGpu()

  def measured(loaded, region, compiled, target, more):
    data, oracle = drawn(loaded, region)
    (c,) = compiled
    replay, outputs = prepare(gpu, region, c, Inputs(gpu, region, data))
    assert oracle.complaint(gpu, replay, outputs) is None
    return c, Measured(3.0 * len(c.sources), 20.0, 1)

  monkeypatch.setattr(beside, "measure_region", measured)
  return loaded, run, timed


def test_projections_of_one_value_are_one_node(chosen):
  loaded, run, timed = chosen
  together, outcomes = beside.with_siblings(loaded, run.program, timed, H200)
  (outcome,) = outcomes.values()
  (group,) = siblings(run.program, [c for c, _ in timed])
  assert len(group) == 3 and len(together) == len(timed) - 2
  graph = outcome.compiled.candidate.ugraph
  assert [k.name for k in graph.kernels] == ["k0", "k1", "k2"] and len(outcome.region.outputs) == 3
  assert all(reads_ahead(graph, k, outcome.region.extents) for k in graph.kernels[1:])
  # ``measured`` has compared what the kernels compute with float64. The proof is of all of it.
  assert outcome.result.candidates[0].proof.bound < 1e-9
  done = apply(loaded, [(c.region, o.compiled) for c, o in together], H200, pool=8)
  model, used = done.model, done.used
  assert len(used) == len(together)
  feeds = {i.name: np.linspace(-2, 2, 256, dtype=np.float16).reshape(4, 64) for i in model.graph.input}
  want = ort.InferenceSession(loaded.proto.SerializeToString()).run(None, feeds)
  bodies = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
  assert all(map(np.array_equal, want, bodies))
  session = mirage_onnx.InferenceSession(model.SerializeToString(), emulate=True)
  for x, y in zip(want, session.run(None, feeds), strict=True):
    assert np.abs(x.astype(float) - y).max() <= 1e-2 * np.abs(x.astype(float)).max()
  assert 3 in mirage_onnx.launches(session).values()


@pytest.mark.parametrize("chosen", [experts], indirect=True)
def test_rows_of_two_tables_are_one_node(chosen):
  """What picks them is one argument of all kernels, whatever each region called it."""
  loaded, run, timed = chosen
  together, outcomes = beside.with_siblings(loaded, run.program, timed, H200)
  (outcome,) = outcomes.values()
  graph = outcome.compiled.candidate.ugraph
  (rows,) = (t.name for t in graph.tensors if t.role == "rows")
  assert all(graph.args_of(k)[-1] == rows for k in graph.kernels)
  model = apply(loaded, [(c.region, o.compiled) for c, o in together], H200, pool=8).model
  feeds = {
    i.name: np.array([2, 0, -1, 2]) if i.type.tensor_type.elem_type == onnx.TensorProto.INT64
    else np.linspace(-2, 2, 256, dtype=np.float16).reshape(4, 64)
    for i in model.graph.input
  }  # fmt: skip
  want = ort.InferenceSession(loaded.proto.SerializeToString()).run(None, feeds)
  session = mirage_onnx.InferenceSession(model.SerializeToString(), emulate=True)
  for x, y in zip(want, session.run(None, feeds), strict=True):
    assert np.abs(x.astype(float) - y).max() <= 1e-2 * np.abs(x.astype(float)).max()
  assert len(graph.kernels) in mirage_onnx.launches(session).values()


def test_kernels_that_are_alike_are_tried_in_one_launch():
  """Those with equal numbers, by wgmma, one behind the other."""
  region = stand_ins.region(extents=SIZES)
  other, by_mma = replace(BY_WGMMA, stages=4), KernelParams((64, 64), 1, 64, 4, 3)

  def joined(*params):
    return [p.beside for p in beside.in_one_launch(region, Candidate(GRAPH, params)).params]

  assert joined(BY_WGMMA, BY_WGMMA, BY_WGMMA) == [False, True, True]
  assert joined(other, BY_WGMMA, BY_WGMMA) == [False, False, True]
  assert joined(BY_WGMMA, other, BY_WGMMA) == [False, False, False]
  assert joined(by_mma, by_mma, by_mma) == [False, False, False]


def test_numbers_of_one_product_of_all_columns():
  """512 rows of three 768 columns: as many tiles as a product of 2304 columns has, and larger ones."""
  sizes = {"a0": 512, "a1": 768, "a2": 768, "a3": 768, "a4": 768}
  region, apart = stand_ins.region(extents=sizes), Candidate(GRAPH, (BY_WGMMA,) * 3)
  found = beside.as_one_product(region, apart, H100)
  assert len(found) == beside.NUMBERS
  for c in found:
    assert [p.beside for p in c.params] == [False, True, True]
    (source,) = emit_candidate(c, sizes, H100, "k")
    assert source.args[0] == "i0"
  # 15.7 us with 64x64 on an H100, 10.8 with these; those whose copies a warp of its own makes beside them.
  assert (96, 128) in {c.params[0].tile for c in found[:2]} and {
    c.params[0].teams > 0 for c in found[:2]
  } == {True, False}
  assert beside.as_one_product(stand_ins.region(extents={**sizes, "a4": 384}), apart, H100) == ()
  assert beside.as_one_product(region, apart, replace(H100, instructions=())) == ()


def test_nodes_of_their_own_stay_where_they_are_as_fast(chosen, monkeypatch):
  loaded, run, timed = chosen
  slow = lambda loaded, region, compiled, *_: (compiled[0], Measured(14.9, 20.0, 1))  # noqa: E731
  monkeypatch.setattr(beside, "measure_region", slow)
  together, outcomes = beside.with_siblings(loaded, run.program, timed, H200)
  assert list(together) == timed and not outcomes


@pytest.mark.parametrize("code", ["KERNEL_WRONG", "NOT_FASTER"])
def test_what_is_refused_together_stays_apart(chosen, monkeypatch, code):
  loaded, run, timed = chosen
  refused = lambda *a: (None, Rejection(code, "", ()))  # noqa: E731
  monkeypatch.setattr(beside, "measure_region", refused)
  assert beside.with_siblings(loaded, run.program, timed, H200) == (tuple(timed), {})


def test_other_programs_of_a_part_are_tried_beside_the_others(chosen, monkeypatch):
  loaded, run, timed = chosen
  looks = []

  def measured(loaded, region, compiled, target, more):
    while compiled:
      looks.append(len(compiled))
      best, compiled = compiled[-1], more(compiled[-1], compiled)
    return best, Measured(1.0, 20.0, sum(looks))

  monkeypatch.setattr(beside, "measure_region", measured)
  monkeypatch.setattr(beside, "MOST", 12)
  (outcome,) = beside.with_siblings(loaded, run.program, timed, H200)[1].values()
  assert looks[0] == 1 and len(looks) > 1 and sum(looks) <= 12
  own = outcome.compiled.candidate
  assert own.params != tuple(p for _, o in timed for p in o.compiled.candidate.params)
  assert outcome.result.candidates[0].candidate == own


def test_who_needs_the_other_is_no_sibling(net):
  x = net.input(4, 64)
  y = net.Sigmoid(net.rms(net.MatMul(x, net.weight(64, 64))))
  between = net.MatMul(y, net.weight(64, 64))
  z = net.Add(net.Relu(between), x)
  w = net.Relu(net.MatMul(x, net.weight(64, 32)))
  run = pipeline.run(load_model(net.model(z, w)), pipeline.Options(H200, margin=-20.0))

  def reading(output, *inputs):
    def activations(c):
      return {i.source.name for i in c.region.inputs if not i.is_weight}

    return next(c for c in run.matches.candidates if c.outputs == {output} and activations(c) == {*inputs})

  first, beside = reading(y, x), reading(w, x)
  for second in (reading(z, x, y), reading(z, x, between)):  # directly, and by way of a node
    assert siblings(run.program, [first, second]) == ()
    (group,) = siblings(run.program, [first, beside, second])
    assert len(group) == 2 and not {0, 2} <= {*group}


def test_groups_do_not_need_each_other_in_a_circle():
  """d and c read s; b needs d, c needs a, and a and b, which read y, are one by then."""
  reads = {"d": "xs", "b": "dy", "a": "y", "c": "as"}
  nodes = tuple(Node(f"n{o}", "Op", tuple(i), (o,)) for o, i in reads.items())
  program = Program((), (), nodes, {}, frozenset(), {})

  def chosen(output):
    return stand_ins.place({f"n{output}"}, {output}, reads[output])

  assert siblings(program, [*map(chosen, "dbac")]) == ((1, 2),)
  assert siblings(program, [*map(chosen, "dbc")]) == ((0, 2),)


def test_a_weight_stored_in_two_orders_is_refused(chosen):
  *_, timed = chosen
  (c, o), *_ = timed
  candidate = o.compiled.candidate
  turned = replace(candidate.ugraph, tensors=tuple(
    replace(t, axes=t.axes[::-1]) if t.role == "weight" and len(t.axes) == 2 else t
    for t in candidate.ugraph.tensors
  ))  # fmt: skip
  with pytest.raises(RejectionError, match="stored in two orders"):
    beside.side_by_side(c.region, [(c.region, candidate), (c.region, replace(candidate, ugraph=turned))])


def test_the_report_counts_it_as_one_replaced_region(chosen):
  loaded, run, timed = chosen
  together, outcomes = beside.with_siblings(loaded, run.program, timed, H200)
  rows = region_rows(replace(run, chosen=together, outcomes=run.outcomes | outcomes))
  replaced = [r for r in rows if r["status"] == "replaced"]
  assert [(r["count"], r["choice"], r["measured_us"]) for r in replaced] == [(1, "measured", 9.0)]
  assert replaced[0]["proof"]["bound"] < 1e-9 and replaced[0]["ugraph"].count("\nkernel ") == 3
