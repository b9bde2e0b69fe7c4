"""Wrong µGraphs, made from right ones by small mistakes: none that differs may be accepted, and
every one that does not differ must be.
"""

from collections import Counter

import pytest
from goldens import GOLDENS
from mutant_verdicts import Tally, judged, verdict
from mutations import KINDS, mutants

from mirage_onnx.errors import Rejection
from mirage_onnx.verify.equivalence import verify

#: Issue 4, point 6.
LEAST, LEAST_OF_A_KIND = 2000, 30


def test_the_corpus_has_enough_of_every_kind():
  counts = Counter(kind for g in GOLDENS for kind, _ in mutants(g.ugraph))
  print(f"{sum(counts.values())} mutants of {len(counts)} kinds")
  assert set(counts) == set(KINDS)
  assert len(counts) >= 15
  assert sum(counts.values()) >= LEAST
  assert min(counts.values()) >= LEAST_OF_A_KIND, counts.most_common()[-5:]


def check(tally):
  print(tally.table())
  assert [(j.golden, j.kind, j.differs) for j in tally.wrongly_accepted] == []
  assert [(j.golden, j.kind, j.reason) for j in tally.refused_equivalents] == []


def test_a_sample_of_mutants_is_judged_rightly():
  """Another part of each golden's mutants; the whole is the slow test."""
  tally = Tally()
  for number, golden in enumerate(GOLDENS):
    tally.add(judged(golden, every=40, first=number))
  check(tally)


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: g.name)
def test_every_mutant_is_judged_rightly(golden):
  check(Tally().add(judged(golden)))


def test_verdicts_do_not_depend_on_the_seed():
  for golden in GOLDENS:
    for _, mutant in mutants(golden.ugraph)[1::80]:
      once = verdict(golden, mutant)[0] in ("accepted", "shift check")
      again = verify(golden.region, mutant, seed=1)
      assert once == (not isinstance(again, Rejection))
