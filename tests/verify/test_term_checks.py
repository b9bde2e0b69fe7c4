"""The terms of a region are checked against its ONNX steps before anything is replaced."""

from dataclasses import replace

import pytest
from small_models import Net, matches

import mirage_onnx
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import term as t
from mirage_onnx.match import repeated
from mirage_onnx.superopt.search import search
from mirage_onnx.target import H200
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.term_checks import TermChecks


def model(layers=2):
  """Norms and products one after the other: the regions of both layers are equal."""
  net = Net(opset=18)
  x = net.input(8, 256)
  for _ in range(layers):
    x = net.MatMul(net.rms(x, net.weight(256)), net.weight(256, 256))
  return net.model(x)


def negated(region):
  """The region with a sign too many in its canonical form."""
  return replace(region, terms=tuple(t.mul(t.const(-1), x) for x in region.terms))


@pytest.fixture
def wrong_forms(monkeypatch):
  right = repeated.make_region
  monkeypatch.setattr(repeated, "make_region", lambda *args: negated(right(*args)))


def test_a_right_form_is_replaced():
  rows = mirage_onnx.optimize(model(1), target="h200", margin=-100.0).report["regions"]
  assert any(r["status"] == "replaced" for r in rows)


@pytest.mark.usefixtures("wrong_forms")
def test_a_wrong_canonical_form_is_refused_in_production():
  """The kernels compute what the terms say, and would all be proven."""
  rows = mirage_onnx.optimize(model(), target="h200", margin=-100.0).report["regions"]
  assert not [r for r in rows if r["status"] == "replaced"]
  refused = [r for r in rows if r["reason"] == "NOT_EQUIVALENT"]
  assert refused and all("the terms of o0 differ from its steps by 2.0" in r["reason_text"] for r in refused)
  assert all(r["search"] is None for r in refused)


@pytest.mark.usefixtures("wrong_forms")
def test_no_search_proves_anything_of_a_wrong_form():
  region = matches(model(1)).candidates[0].region
  result = search(region, H200, prover(region), budget_s=900.0)
  assert not result.candidates
  assert {r.code for r in result.report.refused if r.nodes == region.nodes} == {"NOT_EQUIVALENT"}


def test_every_form_is_checked_once():
  """Copies of a region by their own names: no check, but their own nodes in the reason."""
  asked = []

  def check(region, rng):
    asked.append(region)
    return Rejection("NOT_EQUIVALENT", "planted", region.nodes)

  found = matches(model(3)).candidates
  checks = TermChecks(check)
  refused = [checks(c.region) for c in found]
  assert len(asked) < len(found)
  assert [r.nodes for r in refused] == [c.region.nodes for c in found]
