"""Explaining regions of small models, from the name to the CUDA."""

from functools import cache

import pytest
from refused import refused
from small_models import Net, refuse_once

from mirage_onnx import api
from mirage_onnx.errors import REJECTIONS, MirageError
from mirage_onnx.ir.text import parse_ugraph


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

  key = whole().region.key
  assert detail("nothing", model()) == f"no region or node 'nothing'; regions: {key}"
  other = model().graph.node[-1].name
  assert detail(other, model()).startswith(f"node {other} is in no region: OP_UNKNOWN, ")
  lonely = net.model(net.Exp(net.input(8, 64)))
  assert detail("x", lonely) == "the model has no region (1 TOO_SMALL)"


def test_many_regions_are_listed_shortly(net):
  outputs = [net.Abs(net.Exp(net.input(8, 64 * n))) for n in range(1, 12)]
  with pytest.raises(MirageError, match="and 3 more;") as error:
    api.explain(net.model(*outputs), "nothing", target="h200")
  assert len(error.value.line()) < 300
