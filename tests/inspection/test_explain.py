"""Explaining regions of small models, from the name to the CUDA."""

from functools import cache

import numpy as np
import pytest
from onnx import TensorProto, helper
from refused import refused
from small_models import Net, refuse_once

from mirage_onnx import api
from mirage_onnx.errors import REJECTIONS, MirageError
from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.remedies import remedy
from mirage_onnx.report.inspection_table import explain_tables


@cache
def model():
  net = Net()
  y = net.MatMul(net.rms(net.input(8, 256), net.weight(256)), net.weight(256, 128))
  return net.model(y, net.Hardmax(y))


def explain(name, **options):
  return api.explain(model(), name, target="h200", **options)


@cache
def whole():
  (region,) = (r for r in api.inspect(model(), target="h200").regions)
  return explain(region.key)


def test_the_chosen_graph():
  report = whole()
  chosen = report.chosen
  assert chosen is not None and report.reason is None
  graph = parse_ugraph(chosen.ugraph)
  assert len(graph.kernels) == len(chosen.kernels)
  assert all(f" {k.name}(" in chosen.cuda for k in chosen.kernels)
  assert chosen.dot.startswith("digraph")
  assert chosen.proof.tier and chosen.proof.draws >= 3 and 0 <= chosen.proof.bound < 1e-9
  assert chosen.numeric is not None and 0 < chosen.numeric.candidate < 1e-2
  assert report.region.floor_us <= chosen.predicted_us < report.region.ort_us
  statuses = [c.status for c in report.candidates]
  assert statuses.count("chosen") == 1 and statuses[0] == "chosen"
  times = [c.predicted_us for c in report.candidates]
  assert times == sorted(times) and times[0] == chosen.predicted_us
  assert {r.reason for r in (*report.borders, *report.refused)} <= set(REJECTIONS)


def test_a_node_or_the_first_letters_stand_for_the_region():
  report = whole()
  for name in (report.region.nodes[-1], report.region.key[:6]):
    again = explain(name)
    assert (again.region, again.borders) == (report.region, report.borders)
    assert again.chosen == report.chosen


def test_what_the_compiler_refuses_is_shown(monkeypatch):
  refuse_once(monkeypatch)
  rows = explain(whole().region.key).candidates
  assert [c.status for c in rows[:2]] == ["refused", "chosen"]
  assert (rows[0].reason, rows[0].reason_text) == ("SPILLS", "it spills")


def test_a_region_that_is_kept_says_why():
  report = explain(whole().region.key, margin=0.95)
  assert report.reason == "NOT_FASTER" and report.chosen is not None
  report = explain(whole().region.key, budget_s=1e-9)
  assert report.reason == "BUDGET" and report.chosen is None and report.candidates == []


def test_unknown_names(net):
  def detail(name, of):
    with refused("REGION_UNKNOWN") as error:
      api.explain(of, name, target="h200")
    return error.value.detail

  assert detail("nothing", model()) == "no region or node 'nothing'; regions begin at Mul_t2"
  lonely = net.model(net.Exp(net.input(8, 64)))
  assert detail("x", lonely) == "the model has no region (1 TOO_SMALL)"


def test_a_node_in_no_region_is_answered():
  other = model().graph.node[-1]
  report = explain(other.name)
  assert report.region is None and report.search is None and report.chosen is None and not report.candidates
  assert report.node is not None and (report.node.name, report.node.op) == (other.name, "Hardmax")
  assert report.node.place == "alone" and report.node.ort_us is None
  assert report.reason == report.node.reason == "OP_UNKNOWN" and report.reason_text
  assert report.remedy == remedy("OP_UNKNOWN") and report.link == "docs/errors.md#op_unknown"
  assert [t.shape for t in report.node.outputs] == [[8, 128]]
  assert explain(other.output[0]).node == report.node  # a tensor stands for the node that makes it
  lines = [str(part) for part in explain_tables(report)]
  assert lines[0] == f"node {other.name}: Hardmax; in ONNX Runtime: unknown"
  assert any(line.startswith("in no region: OP_UNKNOWN: ") for line in lines)
  assert lines[-1] == f"what you can do: {report.remedy} ({report.link})"


def test_a_node_in_a_region_is_said_to_be():
  report = explain(whole().region.nodes[0])
  assert report.node is not None and report.node.place == "region" and report.node.reason is None
  assert report.region == whole().region and report.node.name == report.region.nodes[0]
  assert whole().node is None
  weight = next(t for t in explain(whole().region.nodes[-1]).node.inputs if t.weight)
  assert weight.shape == [256, 128]


def test_nodes_that_are_known_before_a_run_and_in_subgraphs(net):
  shape = net.Shape(net.constant(np.ones((8, 256))))
  x = net.Reshape(net.input(8, 256), shape)
  y = net.MatMul(net.rms(x, net.weight(256)), net.weight(256, 128))
  then, other = (
    helper.make_graph([helper.make_node(op, [y], [f"z{op}"], name=f"in_{op}")], op, [],
                      [helper.make_tensor_value_info(f"z{op}", TensorProto.FLOAT16, (8, 128))])
    for op in ("Abs", "Neg")
  )  # fmt: skip
  flag = net.input(1, dtype=bool)
  given = net.model(net.If(flag, then_branch=then, else_branch=other))
  folded = api.explain(given, shape, target="h200")
  assert folded.node is not None and folded.node.place == "constant" and folded.reason is None
  assert "known before a run" in folded.reason_text and folded.remedy is None
  nested = api.explain(given, "in_Neg", target="h200")  # found as any other node
  assert nested.node.place == "alone" and nested.node.op == "Neg" and nested.reason == "TOO_SMALL"


def test_sizes_of_dynamic_dimensions_are_said(net):
  x = net.input("batch", 256)
  given = net.model(net.MatMul(net.rms(x, net.weight(256)), net.weight(256, 128)))
  report = api.explain(given, given.graph.node[-1].name, target="h200", budget_s=1e-9)
  assert [(d.name, d.sizes, d.typical) for d in report.dimensions] == [("batch", [1, 16, 256], 16)]
  assert "dynamic: batch at 1, 16, 256" in " ".join(map(str, explain_tables(report)))


def test_the_drawings_have_the_names_of_the_model():
  chosen, region = whole().chosen, whole().region
  for text in (chosen.dot, chosen.svg):
    assert all(t.name in text for t in (*region.inputs, *region.outputs))


def test_many_regions_are_listed_shortly(net):
  outputs = [net.Abs(net.Exp(net.input(8, 64 * n))) for n in range(1, 12)]
  with pytest.raises(MirageError, match="and 3 more;") as error:
    api.explain(net.model(*outputs), "nothing", target="h200")
  assert len(error.value.line()) < 300
