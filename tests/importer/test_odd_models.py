"""Models that no exporter writes: a result or a code, soon and in little memory."""

import odd_case
import odd_models
import pytest
from fuzz_run import answers, counts


def check(seeds):
  found = list(answers(seeds, odd_case.__file__, 20.0))
  assert [a for a in found if a["faults"]] == []
  assert {"ACCEPTED", "MODEL_INVALID"} <= counts(found).keys()
  assert max(a["mib"] for a in found) < 800


def test_some_of_every_kind():
  check(range(5 * len(odd_models.KINDS)))


@pytest.mark.slow
def test_four_hundred():
  """Ten thousand: ``bench/results/odd_fuzz.json``."""
  check(range(10_000, 10_400))


def test_a_seed_is_one_file():
  files = [odd_models.made(seed) for seed in range(64)]
  assert files == [odd_models.made(seed) for seed in range(64)]
  assert {f.kind for f in files} == {k.__name__ for k in odd_models.KINDS}


def test_a_message_is_bounded_whatever_a_name_is():
  seed = next(s for s in range(12, 4000, 16) if len(odd_models.made(s).data) > 200_000)
  (found,) = answers([seed], odd_case.__file__, 20.0)
  assert found["faults"] == []
