"""superoptimize: what it returns, what parameters restrict, budgets, checkpoints."""

import json

import numpy as np
import pytest
from refused import refused

import mirage_onnx as mi
from mirage_onnx.errors import MirageError, RejectionError
from mirage_onnx.graphs import search as module
from mirage_onnx.graphs.kernel_check import keeps_to
from mirage_onnx.graphs.kernel_graph import KernelGraph
from mirage_onnx.graphs.optimized import OptimizedGraph
from mirage_onnx.graphs.restriction import read_restriction
from mirage_onnx.importer.kernel_graph import ProgramBuilder as Operations


def norm_matmul(rows=8, depth=256, columns=512):
  graph = mi.new_kernel_graph()
  x = graph.new_input(dims=(rows, depth), dtype=mi.float16)
  w = graph.new_input(dims=(depth, columns), dtype=mi.float16)
  graph.matmul(graph.rms_norm(x), w)
  return graph


def texts(found):
  return [str(f) for f in found]


def test_names_of_the_original():
  assert mi.new_graph is mi.new_kernel_graph
  assert isinstance(mi.new_graph(), KernelGraph)
  assert issubclass(KernelGraph, Operations)  # what formats.mirage.check_saved takes


def test_best_and_all(rng):
  graph = norm_matmul()
  best = graph.superoptimize(target="h200")
  found = graph.superoptimize(target="h200", return_all=True)
  assert isinstance(best, OptimizedGraph) and isinstance(found, list)
  assert texts([best]) == texts(found[:1])
  assert texts(mi.superoptimize(graph, target="h200")) == texts(found)
  costs = [f.predicted_us for f in found]
  assert costs == sorted(costs) and len(set(texts(found))) == len(found) > 1
  x, w = rng.standard_normal((8, 256)), rng.standard_normal((256, 512)) / 16
  data = [x.astype(np.float16), w.astype(np.float16)]
  x, w = (d.astype(float) for d in data)
  want = x / np.sqrt((x * x).mean(axis=1, keepdims=True)) @ w
  for f in found:
    (y,) = f(data)
    assert np.linalg.norm(y - want) / np.linalg.norm(want) < 2e-3


RESTRICTIONS = {
  "blockdims": {"blockdims": [(64, 1, 1), (256, 1, 1)]},
  "griddims": {"griddims": [(8, 1, 1), (16, 1, 1)]},
  "franges": {"franges": [2, 4]},
  "fmaps": {"fmaps": [0, 1], "franges": [8]},
  "imaps": {"imaps": [(-1, -1, -1), (-1, 1, -1)]},
  "omaps": {"omaps": [(1, -1, -1)]},
  "grid and loop": {"griddims": [(8,)], "franges": [1, 2]},
}


@pytest.mark.parametrize("name", RESTRICTIONS)
def test_restrictions_hold(name):
  graph = norm_matmul(rows=64)
  restriction = read_restriction(**RESTRICTIONS[name])
  found = graph.superoptimize(return_all=True, target="h200", **RESTRICTIONS[name])
  assert isinstance(found, list) and found
  assert all(keeps_to(restriction, f.region, f.candidate) for f in found)


def test_a_restriction_changes_what_is_found():
  """Or the test above could not fail."""
  free = norm_matmul(rows=64).superoptimize(return_all=True, target="h200")
  assert isinstance(free, list)
  for parameters in RESTRICTIONS.values():
    restriction = read_restriction(**parameters)
    assert not all(keeps_to(restriction, f.region, f.candidate) for f in free)


def test_a_restriction_that_nothing_satisfies():
  with pytest.raises(MirageError) as e:
    norm_matmul().superoptimize(griddims=[(7, 5, 3)], franges=[9])
  line = e.value.line()
  assert line.startswith(
    "OPTION_INVALID: no program found keeps to griddims=[(7, 5, 3)], franges=[9] (the search"
  )
  assert "EXHAUSTED" in line and "\n" not in line


def test_no_budget_finds_nothing():
  with pytest.raises(RejectionError) as e:
    norm_matmul().superoptimize(budget_s=0)
  assert e.value.rejection.code == "NO_CANDIDATE"
  assert "BUDGET of 0 s" in e.value.rejection.reason


def test_max_ops_bounds_the_operations_of_a_kernel():
  """With two of them the statistics need a kernel of their own."""
  found = norm_matmul().superoptimize(max_ops=2, return_all=True)
  assert isinstance(found, list)
  heavy = ("matmul", "sum", "rmax")
  for f in found:
    assert max(sum(o.op in heavy for o in k.ops) for k in f.ugraph.kernels) <= 2


INVALID = {
  "config": ({"config": "conv"}, "config='conv': known are attention, lora, mlp"),
  "grid": ({"griddims": [(0,)]}, r"griddims: \(0,\)"),
  "operations": ({"max_ops": 0}, "max_ops=0: a whole number >= 1"),
  "workers": ({"workers": 1.5}, "workers=1.5: a whole number >= 1"),
  "budget": ({"budget_s": -1}, "budget_s=-1: a number >= 0"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name):
  options, line = INVALID[name]
  with refused("OPTION_INVALID", line):
    norm_matmul().superoptimize(**options)


def test_target():
  with refused("TARGET_UNKNOWN"):
    norm_matmul().superoptimize(target="v100")


def test_two_results_want_a_mark():
  graph = norm_matmul()
  graph.exp(graph.new_input((4, 4), mi.float16))
  with pytest.raises(MirageError, match="2 results are unread: say mark_output"):
    graph.superoptimize()


@pytest.fixture
def path(tmp_path):
  return tmp_path / "graphs.json"


def test_results_are_written_and_start_the_next_call(path, monkeypatch):
  first = norm_matmul().superoptimize(checkpoint=path, return_all=True)

  def unwanted(*args, **options):
    raise AssertionError("searched")

  monkeypatch.setattr(module, "search", unwanted)
  again = norm_matmul().superoptimize(checkpoint=path, return_all=True)
  assert isinstance(first, list) and isinstance(again, list)
  assert texts(again) == texts(first)


def test_what_it_holds_is_verified(path):
  """A µGraph of another program under this region's name is not returned."""
  right = norm_matmul().superoptimize(checkpoint=path)
  text = path.read_text(encoding="utf-8")
  content = json.loads(text)
  for entry in content["candidates"]:
    entry["ugraph"] = entry["ugraph"].replace("= square ", "= exp ")
    entry["ugraph"] = entry["ugraph"].replace("= rsqrt ", "= exp ")
  damaged = json.dumps(content)
  assert damaged != text
  path.write_text(damaged, encoding="utf-8")
  found = norm_matmul().superoptimize(checkpoint=path)
  assert str(found) == str(right)


def test_a_restriction_that_it_does_not_hold_is_searched_and_added(path):
  first = norm_matmul().superoptimize(checkpoint=path, return_all=True, blockdims=[(64,)])
  more = norm_matmul().superoptimize(checkpoint=path, return_all=True, blockdims=[(256,)])
  both = norm_matmul().superoptimize(checkpoint=path, return_all=True)
  assert isinstance(first, list) and isinstance(more, list) and isinstance(both, list)
  assert set(texts(both)) == set(texts(first)) | set(texts(more))


def test_other_sizes_are_searched(path):
  norm_matmul(columns=256).superoptimize(checkpoint=path)
  small = norm_matmul(columns=512).superoptimize(checkpoint=path)
  assert str(small) == str(norm_matmul(columns=512).superoptimize())


def test_a_damaged_file_is_refused_in_one_line(path):
  path.write_text("{", encoding="utf-8")
  with refused("CHECKPOINT"):
    norm_matmul().superoptimize(checkpoint=path)
