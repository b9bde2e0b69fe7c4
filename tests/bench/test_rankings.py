"""Numbers with wgmma that were measured: what the one formula would have taken of them."""

import json
from math import exp, log

import pytest
import rankings


@pytest.mark.parametrize(
  ("record", "name"), [("wgmma_3", "128x768x3072"), ("many_queries_3", "8x12x512x64 add")]
)
def test_a_record(record, name):
  found = rankings.ranked(rankings.FOLDER / f"{record}.json")[name]
  assert len(found.measured) > 4 and found.said.keys() == found.measured.keys()
  params, longer = found.first()
  assert min(found.said.values()) == found.said[params] > 3 and 1 <= longer < 1.5


def test_the_one_formula_takes_what_is_no_slower_than_the_rankings_of_their_own_did():
  """Products and kernels of several, of all records; its levels are those of kernels in a row."""
  own = json.loads(rankings.OWN.read_text())["first_over_fastest"]
  for names in ("wgmma", "many_queries"):
    records = [r for r in rankings.records() if r.stem.startswith(names)]
    cases = {(r.stem, n): c for r in records for n, c in rankings.ranked(r).items()}
    assert len(cases) == sum(len(own[r.stem]) for r in records) >= 10
    first, _, off = rankings.summary(cases.values())
    before = exp(sum(log(own[r][n]) for r, n in cases) / len(cases))
    assert first < before - 0.01 and off < 1.45


def test_a_summary():
  one = rankings.Ranked({"a": 4.0, "b": 2.0}, {"a": 1.0, "b": 2.0})
  first, over, off = rankings.summary([one])
  assert (first, over) == pytest.approx((2.0, 2.0)) and off > over
  other = rankings.Ranked({"a": 4.0, "b": 2.0}, {"a": 4.0, "b": 2.0})
  assert rankings.summary([other]) == pytest.approx((1.0, 1.0, 1.0))


def test_programs_by_both_formulas(capsys):
  """Of the search's first programs the formula takes one that is nearly the fastest, its own costs do not."""
  rankings.firsts_of_programs()
  own, one = (float(line.split(": ")[1].split(",")[0]) for line in capsys.readouterr().out.splitlines())
  assert len(rankings.programs()) >= 20 and one < 1.1 < 1.2 < own
