"""Random programs: they are as different as they should be, and the search copes with all."""

import os
import subprocess
import sys
from collections import Counter
from functools import cache

import numpy as np
import pytest
from found_programs import FASTER, is_typed, outcome, wrong
from program_net import PRIMITIVE, operators
from random_moves import MOST_INPUTS
from random_programs import FEWEST, MOST, random_model, random_program
from small_models import search_region

from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.superopt.space import ALL
from mirage_onnx.verify.equivalence import check_terms

SEEDS = range(200)
FEW = range(12)
#: ``RANDOM_PROGRAMS_STEP=1 pytest -s -k most_programs`` searches all 200: about ten minutes, and
#: the record is bench/results/random_programs.txt.
STEP = int(os.environ.get("RANDOM_PROGRAMS_STEP", "8"))
#: Extent of a dimension; an axis may be several of them.
LARGEST = 4096
#: Share of the programs for which a fused program must be found that is predicted to be faster.
LEAST_FASTER = 0.8


@cache
def models():
  return tuple(map(random_model, SEEDS))


def test_every_seed_is_a_whole_region():
  for made in models():
    assert operators(made.model) <= PRIMITIVE
    assert FEWEST <= made.operations <= MOST
    assert 1 <= len(made.region.inputs) <= MOST_INPUTS
    assert len(made.region.outputs) in (1, 2)
    assert len(made.region.nodes) == len(made.model.graph.node)
    sizes = [d for x in (*made.region.inputs, *made.region.outputs) for d in x.tensor.shape]
    assert max(sizes) <= LARGEST


def test_terms_are_the_steps():
  refused = {s: check_terms(m.region, np.random.default_rng(s)) for s, m in enumerate(models())}
  assert {s: r for s, r in refused.items() if r is not None} == {}


def test_programs_vary():
  regions = [m.region for m in models()]
  assert len({r.text for r in regions}) == len(regions)
  assert len({r.structure for r in regions}) > 0.95 * len(regions)
  contractions = Counter(sum(s.op == "matmul" for s in r.steps) for r in regions)
  assert min(contractions[n] for n in range(4)) >= 10
  assert Counter(len(r.inputs) for r in regions).keys() == {1, 2, 3, 4}
  assert min(Counter(len(r.outputs) for r in regions).values()) >= 40
  kinds = Counter(s.op for r in regions for s in r.steps)
  wanted = ("exp", "log", "sqrt", "tanh", "erf", "sigmoid", "relu", "div", "sum", "mean", "rmax")
  assert min(kinds[op] for op in wanted) >= 10, kinds
  # Reductions over every dimension of matrices and of batches of them, and over two at once.
  reduced = Counter(
    (len(s.output.shape or ()), s.attr)
    for r in regions for s in r.steps if s.op in ("sum", "mean", "rmax")
  )  # fmt: skip
  assert {(2, (0,)), (2, (1,)), (3, (0,)), (3, (1,)), (3, (2,)), (3, (1, 2))} <= set(reduced)
  shared = [r for r in regions if _most_reads(r) >= 2]
  assert len(shared) > 0.5 * len(regions)


def _most_reads(region):
  made = {s.output.name for s in region.steps}
  return max(Counter(i for s in region.steps for i in s.inputs if i in made).values())


def test_a_seed_is_the_same_program_everywhere():
  """Under another hash of texts too."""
  code = "from random_programs import random_program as p; print(*(p(s).key for s in range(20)))"
  env = {"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(filter(None, sys.path))}
  out = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
  assert out.stdout.decode().split() == [random_program(s).key for s in range(20)]


def searched(seed):
  """How the search of a program ends; whatever it returns is right in float64."""
  region = random_program(seed)
  result = search_region(region, space=ALL, budget_s=900.0)
  graphs = {print_ugraph(v.candidate.ugraph): v.candidate.ugraph for v in result.candidates}
  assert {text: why for text, g in graphs.items() if (why := wrong(region, g))} == {}
  return outcome(region, result)


@pytest.mark.parametrize("seed", FEW)
def test_a_faster_program_or_a_reason(seed):
  found = searched(seed)
  assert found == FASTER or is_typed(found), found


@pytest.mark.slow
def test_most_programs_get_faster():
  ends = {seed: searched(seed) for seed in SEEDS[::STEP]}
  counts = Counter(ends.values())
  print(f"{len(ends)} random programs: {dict(counts.most_common())}")
  print({seed: end for seed, end in ends.items() if end != FASTER})
  assert all(end == FASTER or is_typed(end) for end in counts), counts
  assert counts[FASTER] >= LEAST_FASTER * len(ends), counts
