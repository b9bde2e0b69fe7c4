"""What is not worth a proof: no numbers of a µGraph are, and of many rows those with wgmma are asked, too."""

from dataclasses import replace

import pytest
from small_models import Net

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.searching import search_region
from mirage_onnx.superopt import expected_time
from mirage_onnx.superopt.expected_time import doubt, expected_us, too_slow
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.timed_numbers import by_warpgroups
from mirage_onnx.target import H200


@pytest.fixture(scope="module")
def product():
  """A product of 2048 rows and what a search finds for it, without wgmma."""
  net = Net()
  loaded = load_model(net.model(net.Relu(net.MatMul(net.input(2048, 768), net.weight(768, 768)))))
  (region,) = {c.region.key: c.region for c in find_candidates(import_model(loaded)).candidates}.values()
  found = search_region(loaded, region, H200, SearchBound(), 60).candidates
  plain = [v.candidate for v in found if {p.instruction for p in v.candidate.params} == {"mma"}]
  one = [c for c in plain if c.ugraph == plain[0].ugraph]
  most = {n: expected_us(region, c, H200) * doubt(region, c, H200) for n, c in enumerate(one)}
  (by,) = by_warpgroups(region, one[0], H200, 1)
  return region, one, min(most.values()), expected_us(region, by, H200) * doubt(region, by, H200)


def test_of_many_rows_numbers_with_wgmma_are_worth_a_proof(product, monkeypatch):
  region, plain, plain_us, by_us = product
  assert by_us < plain_us / 1.5
  worth_us = (by_us + plain_us) / 2
  assert too_slow(region, plain, H200, worth_us) is None
  monkeypatch.setattr(expected_time, "by_warpgroups", lambda *_: ())
  assert isinstance(too_slow(region, plain, H200, worth_us), Rejection)


def test_who_is_worth_it_without_is_not_ranked(product, monkeypatch):
  region, plain, plain_us, _ = product
  monkeypatch.setattr(expected_time, "by_warpgroups", lambda *_: pytest.fail("ranked"))
  assert too_slow(region, plain, H200, plain_us * 1.01) is None


def test_no_numbers_are_worth_it(product):
  region, plain, _, by_us = product
  refused = too_slow(region, plain, H200, by_us / 2)
  assert refused is not None and refused.code == "NOT_FASTER" and refused.nodes == region.nodes
  assert "us predicted" in refused.reason


def test_far_behind_the_first_is_not_looked(product, monkeypatch):
  """Of numbers best first: what comes behind one that takes twice what is worth it can wait."""
  region, plain, plain_us, _ = product
  seen = []
  many = (seen.append(n) or replace(plain[0], predicted_us=n) for n in range(20))
  monkeypatch.setattr(expected_time, "by_warpgroups", lambda *_: ())
  too_slow(region, many, H200, plain_us / 8)
  assert seen == [0]
