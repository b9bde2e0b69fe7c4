"""docs/verification.md says what the code computes."""

import re
from math import comb
from pathlib import Path

import pytest
from raw_programs import X, exp, graph_of, region_of, top, total

from mirage_onnx.verify import bounds, tiers
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.field import P, Q
from mirage_onnx.verify.reduced import reduced_instantiation

TEXT = (Path(__file__).parents[2] / "docs" / "verification.md").read_text(encoding="utf-8")
REGION = region_of(exp(X - top(X)) / total(exp(X - top(X))))
GRAPH = graph_of(exp(X) / total(exp(X)))


@pytest.fixture(scope="module")
def figures():
  start = TEXT.index("**Worked example**")
  example = TEXT[start : TEXT.index("\n#", start)]
  rows = re.findall(r"^\| (.+?) \| (.+?) \|$", example, re.MULTILINE)
  return {name: value for name, value in rows if name not in ("figure", "---")}


def test_the_worked_example_is_what_the_code_computes(figures):
  sizes = reduced_instantiation(GRAPH, REGION.extents)
  assert sizes.extents["j"] == 5
  region = bounds.term_bound(REGION.terms[0], sizes.extents)
  graph = bounds.ugraph_bounds(GRAPH, sizes.params, sizes.extents)["o"]
  x, y = region.degree, graph.degree
  m = region.evaluations + graph.evaluations + 1
  d = max(x.size.value.n + y.size.value.d, y.size.value.n + x.size.value.d)
  w = max(x.size.shift.n + y.size.shift.d, y.size.shift.n + x.size.shift.d)
  a, b = max(x.past.value, y.past.value), max(x.past.shift, y.past.shift)
  miss = bounds.miss_probability(region, graph)
  # the formula of the page, with k = 1 / q
  assert miss == pytest.approx((d + comb(m, 2) * 2 * a) / P + (2 * w + comb(m, 2) * 4 * b) / Q, rel=1e-12)
  proof = verify(REGION, GRAPH)
  assert isinstance(proof, Proof)
  assert figures == {
    "n1, d1": f"{x.size.value.n}, {x.size.value.d}",
    "n2, d2": f"{y.size.value.n}, {y.size.value.d}",
    "D": str(d),
    "A": str(a),
    "W": str(w),
    "B": str(b),
    "evaluations of the region": str(region.evaluations),
    "evaluations of the µGraph": str(graph.evaluations),
    "pairs C(m, 2)": str(comb(m, 2)),
    "miss of one draw": f"{miss:.2e}",
    "draws": str(proof.draws),
    "bound": f"{proof.bound:.2e}",
  }


def test_the_constants_of_the_page_are_those_of_the_code():
  assert f"p = {P:,}".replace(",", " ") in TEXT
  assert P == 2 * Q + 1
  assert f"missⁿ <= {tiers.ACCEPTED_RISK:.0e}".replace("e-09", "e-9") in TEXT
  assert f"Where {tiers.MOST_PAIR_DRAWS} draws are not enough" in TEXT
  assert tiers.MOST_DRAWS == 24 and "Where 24 draws are too few" in TEXT
  assert tiers.LEAST_VALID == 2 and "valid in two draws at least" in re.sub(r"\s+", " ", TEXT)


def test_every_file_of_the_page_exists():
  root = Path(__file__).parents[2]
  named = set(re.findall(r"`((?:verify|ir|tests/verify)/\w+\.py)`", TEXT))
  assert {"verify/bounds.py", "verify/reduced.py", "ir/ugraph.py"} <= named
  for name in named:
    assert (root / name).exists() or (root / "mirage_onnx" / name).exists(), name
