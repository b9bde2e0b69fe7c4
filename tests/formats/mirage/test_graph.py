"""The JSON format of saved graphs: what is read, and what is refused with a reason."""

import copy
import json
import re

import pytest
from refused import refused
from saved_examples import EXAMPLES

from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.formats.mirage.graph import SavedGraph, parse_saved, read_saved
from mirage_onnx.ir.dtype import DType


@pytest.fixture
def graph():
  return copy.deepcopy(EXAMPLES["norm_linear"].graphs()[0])


def test_records(graph):
  parsed = parse_saved(graph)
  assert isinstance(parsed, SavedGraph)
  assert [o.op for o in parsed.ops] == ["input", "input", "customized", "output"]
  block = parsed.ops[2].block
  assert block is not None and (block.grid, block.loop, block.chunk) == ((4, 1, 1), 2, 64)
  load = block.ops[1]
  assert (load.op, load.maps, load.loop_dim) == ("input", (1, -1, -1), 0)
  assert load.tensor is not None and load.tensor.shape == (8, 8)
  assert load.outputs[0].shape == (4, 2) and load.outputs[0].dtype is DType.F16
  assert not load.outputs[0].post and block.ops[2].outputs[0].post


def block(graph):
  return graph[2]["bgraph"]


BROKEN = {
  "no operator type": (lambda g: g[0].pop("op_type"), "SAVED_INVALID", "KeyError: 'op_type'"),
  "an operator of the other level": (
    lambda g: g[0].update(op_type="tb_input_op"), "SAVED_INVALID", "no operator of this level"
  ),
  "no list": (lambda g: g[0].update(output_tensors={}), "SAVED_INVALID", "a list is needed"),
  "no number": (
    lambda g: g[0]["output_tensors"][0].update(guid="1"), "SAVED_INVALID", "a whole number"
  ),
  "too few dimensions": (
    lambda g: g[0]["output_tensors"][0].update(num_dims=0), "SAVED_INVALID", "0 dimensions"
  ),
  "an empty dimension": (
    lambda g: g[0]["output_tensors"][0].update(dim=[8, 0, 0, 0]), "SAVED_INVALID", "2 dimensio"
  ),
  "integers": (
    lambda g: g[0]["output_tensors"][0].update(data_type=900), "SAVED_UNSUPPORTED", "type 900"
  ),
  "no blocks": (lambda g: block(g)["grid_dim"].update(y=0), "SAVED_INVALID", r"grid \(4, 0, 1\)"),
  "a map out of range": (
    lambda g: block(g)["operators"][0]["input_map"].update(x=2), "SAVED_INVALID", "a map names"
  ),
  "half a map": (
    lambda g: block(g)["operators"][0]["input_map"].pop("z"), "SAVED_INVALID", "KeyError: 'z'"
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs(name, graph):
  edit, code, reason = BROKEN[name]
  edit(graph)
  found = parse_saved(graph)
  assert isinstance(found, Rejection) and found.code == code
  assert re.search(reason, found.reason), found.reason


@pytest.mark.parametrize("content", [None, 3, {}, [3], ["kn_input_op"], [[]]])
def test_no_graphs_at_all(content):
  found = parse_saved(content)
  assert isinstance(found, Rejection) and found.code == "SAVED_INVALID"


def test_files(tmp_path, graph):
  path = tmp_path / "graphs.json"
  path.write_text(json.dumps([graph, 3, graph]))
  first, second, third = read_saved(path)
  assert first == third and isinstance(second, Rejection)
  for text, line in (("{", "is not JSON"), ('{"a": 1}', "holds no list"), ("[" * 9999, "JSON")):
    path.write_text(text)
    with refused("NOT_SAVED_GRAPHS", line):
      read_saved(path)
  path.write_bytes(b"\xff\xfe")
  with pytest.raises(MirageError, match="is not JSON"):
    read_saved(path)
  for wrong, code in ((tmp_path / "none.json", "FILE_MISSING"), (tmp_path, "FILE_UNREADABLE")):
    with refused(code):
      read_saved(wrong)
