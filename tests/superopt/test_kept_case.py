"""Damaged and edited files of the cache folder, and journals: noticed, or their programs are proven."""

import kept_case
import pytest
from fuzz_run import answers, counts

#: Once a KeyError or an IndexError: no count, no numbers, roundings of no class, µGraphs that lack a tensor.
FOUND = (10557, 10565, 11128, 11380, 11381, 12040, 12665, 13820, 2464)


def check(seeds):
  found = list(answers(seeds, kept_case.__file__, 30.0))
  assert [a for a in found if a["faults"]] == []
  outcomes = counts(found)
  assert outcomes.keys() <= {"ACCEPTED", "JOURNAL"}
  assert {a["kind"] for a in found} >= {"journal", "structure"}
  return outcomes


def test_a_hundred_files():
  assert min(check((*FOUND, *range(100))).values()) > 10


@pytest.mark.slow
def test_four_hundred_files():
  check(range(1000, 1400))


def test_a_seed_is_one_file():
  assert [kept_case.made(s) for s in range(40)] == [kept_case.made(s) for s in range(40)]
