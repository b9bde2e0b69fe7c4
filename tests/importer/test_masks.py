"""Constants that hide all but a band: which are looked at, and that a region knows what they say."""

from fractions import Fraction

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.band import Band
from mirage_onnx.match.repeated import RegionMaker
from mirage_onnx.superopt.saturated import Saturated
from mirage_onnx.superopt.space import Space

KEYS = 160


def model(masks, tmp_path):
  """Softmax(q k^T + mask) v for each mask: truth values choose between 0 and -65504, floats are added."""
  nodes, inits, outs = (
    [],
    [nh.from_array(np.array(x, np.float16), n) for n, x in (("z", 0), ("low", -65504))],
    [],
  )
  for i, mask in enumerate(masks):
    inits.append(nh.from_array(mask, f"m{i}"))
    added = f"m{i}"
    if mask.dtype == bool:
      nodes.append(h.make_node("Where", [f"m{i}", "z", "low"], [f"w{i}"]))
      added = f"w{i}"
    nodes += [
      h.make_node("MatMul", ["q", "k"], [f"s{i}"]),
      h.make_node("Add", [f"s{i}", added], [f"a{i}"]),
      h.make_node("Softmax", [f"a{i}"], [f"p{i}"], axis=-1),
      h.make_node("MatMul", [f"p{i}", "v"], [f"y{i}"]),
    ]
    outs.append(h.make_tensor_value_info(f"y{i}", T.FLOAT16, [2, KEYS, 64]))
  shapes = {"q": [2, KEYS, 64], "k": [2, 64, KEYS], "v": [2, KEYS, 64]}
  ins = [h.make_tensor_value_info(n, T.FLOAT16, s) for n, s in shapes.items()]
  made = h.make_model(
    h.make_graph(nodes, "g", ins, outs, inits), opset_imports=[h.make_opsetid("", 20)], ir_version=10
  )
  onnx.checker.check_model(made)
  path = tmp_path / "m.onnx"
  onnx.save(made, path)
  return import_model(load_model(path))


CAUSAL = np.tri(KEYS, dtype=bool)
WINDOW = CAUSAL & ~np.tri(KEYS, k=-20, dtype=bool)


def region_of(program, number):
  nodes = frozenset(n.name for n in program.nodes if n.outputs[0].endswith(str(number)))
  return RegionMaker(program).make(nodes, frozenset({f"y{number}"})).region


def test_of_truth_values_and_of_what_is_added(tmp_path):
  added = np.where(WINDOW, 0, -np.inf).astype(np.float16)
  program = model([CAUSAL, CAUSAL[None], added, ~CAUSAL & CAUSAL, np.ones_like(CAUSAL)], tmp_path)
  assert program.bands == {
    "m0": Band("0", "1", None, 0, Fraction(0), sharp=True),
    "m1": Band("1", "2", None, 0, Fraction(0), sharp=True),
    "m2": Band("0", "1", -19, 0, Fraction(-(2**127))),
  }


def test_weights_of_products_are_not_read(tmp_path, monkeypatch):
  from mirage_onnx.importer import masks

  program = model([CAUSAL.astype(np.float16)], tmp_path)
  assert program.bands == {}
  read = []
  nodes = [n for n in program.nodes if n.op_type == "MatMul"]
  tensors = {**program.tensors, "k": program.tensors["m0"]}
  assert masks.bands(nodes, tensors, frozenset({"k", "v"}), lambda name: read.append(name)) == {}
  assert read == []


def test_a_region_knows_it_and_is_another_one(tmp_path):
  program = model([CAUSAL, WINDOW, CAUSAL, np.ones_like(CAUSAL)], tmp_path)
  regions = [region_of(program, n) for n in range(4)]
  one, window, again, plain = regions
  assert one.key == again.key
  assert len({one.key, window.key, plain.key}) == 3
  assert " seen " in one.structure and " seen " not in plain.structure
  (mask,) = (i for i in window.inputs if i.is_weight)
  assert mask.band is not None and (mask.band.least, mask.band.most) == (-19, 0)
  assert {mask.band.rows, mask.band.columns} == set(mask.axes)


@pytest.mark.parametrize("mask", [CAUSAL, WINDOW])
def test_kernels_are_told(tmp_path, mask):
  region = region_of(model([mask], tmp_path), 0)
  (own,) = (i for i in region.inputs if i.is_weight)
  saturated = Saturated(region, (), Space(), nodes=1000)
  (tensor,) = (t for t in saturated.inputs.values() if t.name == own.name)
  assert tensor.band == own.band
