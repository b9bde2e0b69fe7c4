"""Numbers of tiled kernels, without a GPU: what is timed first, and how rankings are judged."""

from math import inf
from pathlib import Path

import pytest
import tiled_sweep

RECORD = Path(tiled_sweep.__file__).parent / "results" / "h100" / "tiled_points.json"


@pytest.fixture(scope="module")
def kernels():
  return tiled_sweep.tiled_kernels(("goldens",))


def test_the_first_of_every_list_is_timed_first(kernels):
  (name, own), (other, second), *_ = kernels.items()
  own |= {"lists": {"search": ["a", "b"], "formula": ["b", "c"]}}
  second |= {"lists": {"program": ["d"], "others": []}}
  jobs = [(n, text) for n, _, text in tiled_sweep.jobs_of({name: own, other: second}, {name: {"c": 1.0}})]
  assert jobs == [(other, "d"), (name, "a"), (name, "b")]


def test_a_ranking_is_judged_by_its_first():
  us = {"a": 10.0, "b": 5.0, "c": 20.0}
  assert tiled_sweep.off(us, {"a": 1.0, "b": 2.0, "c": 3.0})[0] == 2.0
  assert tiled_sweep.off(us, {"a": inf, "b": 2.0, "c": 3.0})[0] == 1.0
  assert tiled_sweep.off(us, dict.fromkeys(us, inf))[0] == inf


def test_the_record_is_of_kernels_of_the_corpus():
  found = tiled_sweep.read(RECORD)
  assert len(found) > 100 and all("graph" in own for own in found.values())
  name, own = next((n, o) for n, o in found.items() if n.startswith("goldens/"))
  text = next(p for p, us in own["us"].items() if isinstance(us, float))
  assert 0 < tiled_sweep.formula_us(own, text) < inf and 0 < tiled_sweep.search_us(own, text) < inf, name
