"""Which regions are offered: golden tables of the models, and the rules one by one."""

import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from small_models import Net, largest, matches, search_region

from mirage_onnx import pipeline
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.dtype import DType
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED, Limits
from mirage_onnx.superopt.space import ALL
from mirage_onnx.target import H200
from mirage_onnx.verify.equivalence import check_terms

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))


def table(found):
  """A line per distinct region (a short key; the first line has a sum of all) and reason."""
  groups = {}
  for c in found.candidates:
    groups.setdefault(c.region.key, []).append(c)
  keys = sha256(" ".join(groups).encode()).hexdigest()
  lines = [f"{keys[:16]}: region, times, nodes, inputs>outputs, first .. last node"]
  for key, same in groups.items():
    r = same[0].region
    ends = f"{r.nodes[0]} .. {r.nodes[-1]}" if len(r.nodes) > 1 else r.nodes[0]
    counts = f"x{len(same)} {len(r.nodes)} {len(r.inputs)}>{len(r.outputs)}"
    lines.append(f"{key[:2]} {counts} {ends}")
  for r in found.rejections:
    lines.append(f"{r.code} {', '.join(r.nodes)}")
  return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_regions_of_models(path, golden):
  assert table(find_candidates(import_model(load_model(path)))) == golden


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_every_node_is_in_a_region_or_has_a_reason(path):
  program = import_model(load_model(path))
  found = find_candidates(program)
  covered = {n for c in found.candidates for n in c.nodes}
  refused = [n for r in found.rejections for n in r.nodes]
  assert len(refused) == len(set(refused))
  assert covered | set(refused) == {n.name for n in program.nodes}
  assert not covered & set(refused)
  order = {n.name: i for i, n in enumerate(program.nodes)}
  for c in found.candidates:
    assert list(c.region.nodes) == sorted(c.nodes, key=order.__getitem__)
    assert {o.source.name for o in c.region.outputs} == c.outputs


@pytest.mark.parametrize("again", [1, 2, 3])
def test_chains_of_values_that_others_read(again):
  """Of a residual stream a region reads a sum instead of computing all that lead to it."""
  net = Net()
  sums = [net.input(8, 64)]
  for _ in range(6):
    sums.append(net.Add(sums[-1], net.input(8, 64)))
  model = net.model(*(net.Relu(x) for x in sums[1:]))
  found = find_candidates(import_model(load_model(model)), Limits(again=again)).candidates
  adds = (sum(n.startswith("Add") for n in c.nodes) for c in found if len(c.outputs) == 1)
  assert max(adds) == again + 1  # the last one is the result


def test_a_view_between_two_regions():
  """One yields what the other reads, whichever of them has the views: heads of one query."""
  net = Net()
  weights = net.Softmax(net.input(1, 4, 1, 24))
  y = net.MatMul(weights, net.input(1, 4, 24, 16))
  rows = net.Reshape(net.Transpose(y, perm=[0, 2, 1, 3]), [1, 1, 64])
  model = net.model(net.Add(net.MatMul(rows, net.weight(64, 32)), net.input(1, 1, 32)))
  found = find_candidates(import_model(load_model(model)), TIMED).candidates
  last = model.graph.node[-1].name
  reads = {i.source.name for c in found if last in c.nodes for i in c.region.inputs}
  made = {o for c in found if any(n.startswith("Softmax") for n in c.nodes) for o in c.outputs}
  assert reads & made == {y, rows} & reads != set()


def test_operators_of_several_outputs():
  """The sum that a skip normalization also yields is its region's, or it is computed again."""
  net = Net()
  x, skip, gamma = net.input(8, 64), net.input(8, 64), net.weight(64)
  made = [net._name(n) for n in ("y", "s")]
  net.nodes.append(
    helper.make_node(
      "SkipSimplifiedLayerNormalization", [net.Relu(x), skip, gamma],
      [made[0], "", "", made[1]], name="skip", domain="com.microsoft",
    )
  )  # fmt: skip
  model = net.model(net.MatMul(made[0], net.weight(64, 32)), net.Exp(made[1]))
  nodes = [c.nodes for c in matches(model).candidates]
  assert any({"skip"} < n and any(x.startswith("MatMul") for x in n) for n in nodes)
  assert any({"skip"} < n and any(x.startswith("Exp") for x in n) for n in nodes)


def test_grouped_heads_and_a_cache_that_is_yielded():
  """Keys and values are read where they are put together; their repetition is inside."""
  net = Net()
  q, past, new = net.input(1, 4, 1, 16), net.input(1, 2, 24, 16), net.input(1, 2, 1, 16)
  caches = [net.Concat(past, net.Tanh(new), axis=2), net.Concat(past, net.Exp(new), axis=2)]
  k, v = (net.Expand(net.Unsqueeze(x, [2]), [1, 2, 2, 25, 16]) for x in caches)
  k, v = (net.Reshape(x, [1, 4, 25, 16]) for x in (k, v))
  logits = net.MatMul(net.Mul(q, 0.25), net.Transpose(k, perm=[0, 1, 3, 2]))
  model = net.model(net.MatMul(net.Softmax(logits), v), *caches)
  found = find_candidates(import_model(load_model(model)), TIMED).candidates
  largest = max(found, key=lambda c: len(c.nodes))
  left = {n.op_type for n in model.graph.node if n.name not in largest.nodes}
  assert left == {"Concat", "Tanh", "Exp"}
  reads = [i.source.name for c in found if c.outputs == largest.outputs for i in c.region.inputs]
  assert {past, new}.isdisjoint(reads)


def test_the_smallest_region_of_a_value_is_offered(net):
  """Of many regions around a product one has nothing but it and its sum: the last of a layer."""
  x = net.input(1, 64)
  for _ in range(2):
    x = net.Add(x, net.MatMul(net.input(1, 64), net.weight(64, 64)))
    gate, up = (net.MatMul(net.rms(x), net.weight(64, 64)) for _ in range(2))
    gated = net.Mul(net.Mul(gate, net.Sigmoid(gate)), up)
    x = net.Add(x, net.MatMul(gated, net.weight(64, 64)))
  sizes = [len(c.nodes) for c in matches(net.model(x)).candidates if x in c.outputs]
  assert min(sizes) == 2


def test_more_parts_than_a_region_reads_are_read_together(net):
  y = net.Concat(*(net.Exp(net.input(8, 4)) for _ in range(6)), axis=1)
  found = matches(net.model(net.Tanh(net.Mul(y, net.input(8, 24))))).candidates
  assert y in {i.source.name for c in found for i in c.region.inputs}


def test_one_product_with_a_weight_is_a_region(net):
  model = net.model(net.MatMul(net.input(1, 64), net.weight(64, 32)))
  assert [len(c.nodes) for c in matches(model).candidates] == [1]
  assert not codes(model)


def codes(model):
  by_name = {n.name: n.op_type for n in model.graph.node}
  return {by_name[n]: r.code for r in matches(model).rejections for n in r.nodes}


# Every code that this stage gives.


def test_two_activations_are_contracted(net):
  y = net.Exp(net.MatMul(net.input(8, 64), net.input(64, 32)))
  assert not codes(net.model(y))


def test_a_transposed_weight_is_a_weight(net):
  y = net.Gemm(net.input(8, 64), net.weight(32, 64), net.weight(32), transB=1)
  model = net.model(net.Relu(y))
  assert not codes(model)
  assert len(largest(matches(model)).nodes) == 2


def test_too_small(net):
  assert codes(net.model(net.Exp(net.input(8, 64)))) == {"Exp": "TOO_SMALL"}


def test_one_operator_where_it_is_asked_for():
  net = Net()
  x = net.input(8, 64)
  program = import_model(load_model(net.model(net.Exp(x), net.Transpose(x, perm=[1, 0]))))
  found = find_candidates(program, replace(Limits(), single=True))
  assert [{n[:3] for n in c.nodes} for c in found.candidates] == [{"Exp"}]
  assert [r.code for r in found.rejections] == ["TOO_SMALL"]  # a copy stays one


def test_one_operator_that_reduces_where_kernels_are_timed(net):
  """Several regions may read what it yields, and then none of them has to compute it."""
  x = net.input(8, 64)
  weights = [net.constant(np.ones(64)), net.constant(np.zeros(64))]
  y = net.LayerNormalization(net.Exp(x), *weights)
  program = import_model(load_model(net.model(y, net.ReduceMax(x, net.constant([1], np.int64)))))

  def alone(limits):
    found = find_candidates(program, limits).candidates
    return [n.split("_")[0] for c in found if len(c.nodes) == 1 for n in c.nodes]

  assert alone(Limits()) == []
  assert alone(replace(Limits(), reductions=True)) == ["LayerNormalization"]


def test_a_norm_in_front_of_turned_keys_is_a_border_where_kernels_are_timed(net):
  """Attention with the norm is more than a region holds, so the rest was left with the copy."""
  q, k, v = net.input(4, 8, 64), net.input(4, 96, 64), net.input(4, 96, 64)
  k = net.LayerNormalization(k, net.constant(np.ones(64)))
  s = net.MatMul(q, net.Transpose(k, perm=[0, 2, 1]))
  program = import_model(load_model(net.model(net.MatMul(net.Softmax(s, axis=-1), v))))

  def regions(limits):
    found = find_candidates(program, limits).candidates
    return {"".join(sorted(n[0] for n in c.nodes)) for c in found}  # L is LayerNormalization

  assert {"L", "MMST", "LMT"} <= regions(replace(TIMED, reductions=True))
  assert {"L", "MMST"}.isdisjoint(regions(TIMED)) and {"MMS", "LMT"} <= regions(TIMED)
  # A product with a weight is another thing.
  net = Net()
  normed = net.LayerNormalization(net.input(64, 96), net.constant(np.ones(96)))
  y = net.MatMul(net.Transpose(normed, perm=[1, 0]), net.weight(64, 32))
  program = import_model(load_model(net.model(y)))
  assert "L" not in regions(replace(TIMED, reductions=True))


def test_a_copy_is_too_small(net):
  y = net.Transpose(net.cast(net.input(8, 64), np.float32), perm=[1, 0])
  assert set(codes(net.model(y)).values()) == {"TOO_SMALL"}


def test_dtype():
  net = Net(np.int64)
  assert set(codes(net.model(net.Abs(net.Add(net.input(8), net.input(8))))).values()) == {"DTYPE"}


def test_dtype_of_a_cast(net):
  y = net.Exp(net.cast(net.input(8, 64, dtype=np.uint8), np.float16))
  assert codes(net.model(y))["Cast"] == "DTYPE"


def test_what_only_a_run_counts_is_summed_over(net):
  y = net.Softmax(net.Abs(net.input("batch", 64)), axis=0)
  assert not codes(net.model(y))


def test_axes_conflict(net):
  x = net.input(32, 32)
  y = net.Exp(net.Add(x, net.Transpose(x, perm=[1, 0])))
  assert "AXES_CONFLICT" in codes(net.model(y)).values()


def test_a_barrier_keeps_its_reason(net):
  y = net.Exp(net.Hardmax(net.input(8, 64)))
  assert codes(net.model(y))["Hardmax"] == "OP_UNKNOWN"


def test_contractions_of_activations():
  """A masked softmax between two of them is one region where the search may hold it."""
  net = Net(opset=18)
  q, k, v = (net.input(1, 4, 16, 16) for _ in range(3))
  allowed = net.And(net.input(1, 1, 16, 16, dtype=np.bool_), net.constant(np.tri(16), np.bool_))
  logits = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), 0.25)
  p = net.Softmax(net.Add(logits, net.Where(allowed, 0.0, -1e4)))
  model = net.model(net.MatMul(p, v))
  program = import_model(load_model(model))
  found = find_candidates(program, TIMED)
  assert found.rejections == ()
  region = largest(found).region
  assert len(region.nodes) == len(program.nodes) == 8
  assert sorted(i.dtype for i in region.inputs if not i.dtype.is_half) == [DType.BOOL] * 2
  assert check_terms(region, np.random.default_rng(0)) is None
  best = search_region(region, space=ALL, budget_s=900).candidates[0]
  assert len(best.candidate.ugraph.kernels) == 1


def test_cones_overlap(net):
  """A stage that feeds three contractions is offered with each of them."""
  x = net.rms(net.input(8, 64), net.weight(64))
  outs = [net.MatMul(x, net.weight(64, 32)) for _ in range(3)]
  found = matches(net.model(*outs))
  shared = {net.nodes[i].name for i in range(6)}
  whole = [c for c in found.candidates if shared < c.nodes and len(c.nodes) == 7]
  assert {o for c in whole for o in c.outputs} == set(outs)
  assert len({c.region.key for c in whole}) == 1


def test_a_value_that_others_read_may_be_an_output(net):
  total = net.Add(net.input(8, 64), net.input(8, 64))
  y = net.rms(total, net.weight(64))
  found = matches(net.model(y, total))
  kinds = {(len(c.nodes), frozenset(c.outputs)) for c in found.candidates}
  assert (7, frozenset({y, total})) in kinds
  assert (7, frozenset({y})) in kinds


def test_several_outputs_only_where_the_set_is_convex(net):
  """``total`` feeds the region's other input through a node outside."""
  total = net.Add(net.input(8, 64), net.input(8, 64))
  outside = net.Hardmax(total)
  y = net.Mul(net.Exp(total), outside)
  found = matches(net.model(y, total))
  around = [c for c in found.candidates if y in c.outputs]
  assert around
  assert all(total not in c.outputs for c in around)


def test_outputs_of_one_region_have_one_shape(net):
  x = net.input(8, 64)
  mean = net.ReduceMean(net.Mul(x, x), [-1])
  y = net.Mul(x, net.Exp(mean))
  found = matches(net.model(y, mean))
  assert all(len(c.outputs) == 1 for c in found.candidates)


def test_a_wide_contraction_does_not_feed_another():
  def widest(inner):
    net = Net()
    x = net.input(8, 64)
    y = net.MatMul(net.MatMul(x, net.weight(64, inner)), net.weight(inner, 128))
    found = matches(net.model(net.Add(y, net.input(8, 128))))
    return max(len(c.nodes) for c in found.candidates)

  limit = Limits().inner_columns
  assert widest(limit) == 3
  assert widest(limit + 1) == 2


@pytest.mark.parametrize("name", ["contractions", "nodes", "leaves", "depth"])
def test_limits_hold(net, name):
  x = net.input(8, 64)
  y = net.rms(x, net.weight(64))
  a, b = (net.MatMul(y, net.weight(64, 32)) for _ in range(2))
  y = net.Mul(net.Add(a, net.input(8, 32)), net.Add(b, net.input(8, 32)))
  program = import_model(load_model(net.model(y)))
  wide = find_candidates(program)
  steps = {n.name: [s.op for s in n.steps] for n in program.nodes}
  weights = program.weights | set(program.constants)

  def contractions(nodes):
    return sum(op == "matmul" for n in nodes for op in steps[n])

  measure = {
    "contractions": lambda c: contractions(c.nodes),
    "nodes": lambda c: len(c.nodes),
    "leaves": lambda c: sum(i.tensor.name not in weights for i in c.region.inputs),
    "depth": lambda c: bool(contractions(c.nodes)) + any("mean" in steps[n] for n in c.nodes),
  }[name]
  assert max(map(measure, wide.candidates)) > 1
  bounds = {"depth": 1, "weights_depth": 1, "within": 0} if name == "depth" else {name: 1}
  narrow = find_candidates(program, replace(Limits(), **bounds))
  assert max(map(measure, narrow.candidates), default=0) <= 1


def test_enumeration_is_deterministic():
  path = next(p for p in MODELS if p.stem == "lora")
  program = import_model(load_model(path))
  a, b = (table(find_candidates(program)) for _ in range(2))
  assert a == b


def test_no_more_are_looked_for_when_the_time_is_over():
  net = Net()
  made = net.Relu(net.MatMul(net.rms(net.input(8, 64)), net.weight(64, 64)))
  program = import_model(load_model(net.model(made)))
  assert find_candidates(program).candidates
  found = find_candidates(program, until=0.0)
  assert not found.candidates
  assert {r.code for r in found.rejections} == {"BUDGET"}
  assert {n for r in found.rejections for n in r.nodes} == {n.name for n in program.nodes}


@pytest.mark.slow  # thousands of nodes
def test_a_dense_graph_does_not_outrun_its_budget():
  """A ladder of 4000 nodes took 15 s of the processor, whatever its budget."""
  net = Net()
  names = [net.input(8, 64), net.input(8, 64)]
  for k in range(4000):
    names.append(getattr(net, ("Add", "Mul", "Sub")[k % 3])(names[-1], names[-2]))
  loaded = load_model(net.model(names[-1]))
  began = time.process_time()
  run = pipeline.run(loaded, pipeline.Options(H200, budget_s=1.0, workers=1))
  assert time.process_time() - began < 8.0  # looking ended after one second
  assert "BUDGET" in {r.code for r in run.matches.rejections} and not run.chosen
