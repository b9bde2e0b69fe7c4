"""Models of a grammar, damaged in terms of the format: a result or a code, soon and in little memory."""

import random

import model_case
import pytest
from damaged_models import grown, made
from fuzz_run import answers, counts

from mirage_onnx.importer.functions import MOST_NODES

#: Seeds of the fast test; the slow one and ``bench/model_fuzz.py`` start at 0.
FAST = range(10_000_100, 10_000_200)
#: The packages and one search take 230 MiB.
MOST_MIB = 600


def check(seeds):
  found = list(answers(seeds, model_case.__file__, 10 * model_case.LIMIT_S))
  assert [a for a in found if a["faults"]] == []
  outcomes = counts(found)
  assert sum(outcomes.values()) == len(seeds)
  # What is made must be right often enough, and wrong in many ways.
  assert {"ACCEPTED", "MODEL_INVALID", "MODEL_LIMIT", "SOURCE_MISMATCH"} <= outcomes.keys()
  assert outcomes["ACCEPTED"] >= len(seeds) / 8
  assert max(a["mib"] for a in found) < MOST_MIB


def test_a_hundred_models():
  check(FAST)


@pytest.mark.slow
def test_a_thousand_models():
  """A hundred thousand: ``bench/results/model_fuzz.json``."""
  check(range(1000))


def test_a_seed_is_one_file():
  files = [made(seed, b'{"a": "b c"}', b'{"a": [1]}') for seed in range(300)]
  assert files == [made(seed, b'{"a": "b c"}', b'{"a": [1]}') for seed in range(300)]
  assert {f.kind for f in files} == {"model", "record", "entry"}
  assert len({f.data for f in files}) > 250


def test_the_grammar_is_wide():
  """Most operators of onnx, all opsets, functions that are too many, and graphs in graphs."""
  models = [grown(random.Random(seed)) for seed in range(1500)]
  assert len({n.op_type for m in models for n in m.graph.node}) > 150
  assert len({m.opset_import[0].version for m in models}) == 20
  assert any(2 ** len(m.functions) > MOST_NODES for m in models)
  assert any(a.g.node for m in models for n in m.graph.node for a in n.attribute)
