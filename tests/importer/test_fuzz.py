"""Damaged model files: a code and a sentence or a model, soon, and nothing left behind."""

import pytest
from fuzz_run import answers, counts

#: Seeds of the fast test; the slow one and ``bench/fuzz.py`` start at 0.
FAST = range(100_000, 100_200)


def check(seeds):
  found = list(answers(seeds))
  assert [a for a in found if a["faults"]] == []
  outcomes = counts(found)
  assert sum(outcomes.values()) == len(seeds)
  # The mutations must reach behind the parser, and some must be harmless.
  assert {"DONE", "MODEL_INVALID", "NOT_ONNX"} <= outcomes.keys()


def test_two_hundred_files():
  check(FAST)


@pytest.mark.slow
def test_a_thousand_files():
  check(range(1000))
