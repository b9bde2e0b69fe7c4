"""Attention that projects its input is three nodes, and one again."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from projecting_models import LENGTH, MS, projecting
from small_models import feeds, replaced_ops

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.split_projections import part_of, split_projections, whole_projections


def ops(model):
  return [n.op_type for n in model.graph.node]


FORMS = [
  {}, {"mask": "keys"}, {"mask": "ends"}, {"added": True}, {"mask": "keys", "added": True, "scale": 0.3},
  {"unidirectional": 1}, {"mask": "ends", "mask_filter_value": -3.0}, {"opset": 13},
  {"qkv_hidden_sizes": [64] * 3},
]  # fmt: skip


@pytest.mark.parametrize("how", FORMS, ids=str)
def test_the_parts_compute_what_the_node_does(how):
  model = projecting(**how)
  split = split_projections(model)
  assert ops(split) == ["LayerNormalization", "MatMul", "Split", "MultiHeadAttention", "Add"]
  assert [part_of(n) for n in split.graph.node] == ["", *["Attention"] * 3, ""]
  values = feeds(model, np.random.default_rng(0))
  values |= {n: v * 13 for n, v in values.items() if v.shape == (2,)}
  want, got = (ort.InferenceSession(m.SerializeToString()).run(None, values)[0] for m in (model, split))
  np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)
  whole_projections(split)
  assert split.SerializeToString() == model.SerializeToString()


OTHERS = [
  {"mask": "both"},
  {"mask": "one"},
  {"opset": 12},
  {"qkv_hidden_sizes": [48, 48, 96]},
  {"do_rotary": 1},
]


@pytest.mark.parametrize("how", OTHERS, ids=str)
def test_other_forms_stay(how):
  model = projecting(**how)
  assert split_projections(model) is model


def test_a_mask_that_the_embedding_makes():
  model = projecting(mask="ends")
  (ends,) = (v for v in model.graph.input if len(v.type.tensor_type.shape.dim) == 1)
  model.graph.input.remove(ends)
  ids = helper.make_tensor_value_info("ids", TensorProto.INT32, (2, LENGTH))
  model.graph.input.append(ids)
  tables = [np.zeros((4, 8), "f"), np.zeros((LENGTH, 8), "f"), np.ones(8, "f")]
  model.graph.initializer.extend(numpy_helper.from_array(t, f"e{i}") for i, t in enumerate(tables))
  names = ["ids", "", "e0", "e1", "", "e2", "e2", "ids"]
  node = helper.make_node("EmbedLayerNormalization", names, ["embedded", ends.name], domain=MS)
  model.graph.node.insert(0, node)
  assert "MultiHeadAttention" in ops(split_projections(model))


def test_sizes_that_a_run_names_and_no_shapes_inside():
  """As optimizers leave a model: dimensions of inputs are named, and nothing is said of what is between."""
  for mask, split in (("keys", True), ("ends", True), ("both", False), ("one", False)):
    model = projecting(mask=mask, batch="batch" if mask in ("keys", "ends") else 2)
    del model.graph.value_info[:]
    assert ("MultiHeadAttention" in ops(split_projections(model))) == split, mask


def test_numbers_of_another_input_are_no_sizes_of_the_one_inside():
  """A mask of twice as many as the batch, which has the number of another input's rows."""
  model = projecting(mask="both", batch=2)
  del model.graph.value_info[:]
  (mask,) = (v for v in model.graph.input if v.type.tensor_type.elem_type == TensorProto.INT32)
  rows = mask.type.tensor_type.shape.dim[0].dim_value
  model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [rows, 9]))
  assert "MultiHeadAttention" not in ops(split_projections(model))


def test_without_a_measurement_nothing_changes():
  """A prediction says nothing of the parts, and what is written has the node as it was."""
  model = projecting(512, 8, dtype=np.float16, mask="keys")
  result = mirage_onnx.optimize(model, target="h100", workers=1)
  assert not any(op.startswith(("MatMul", "MultiHead")) for op in replaced_ops(result))
  kept = [n for n in result.model.graph.node if n.op_type == "Attention"]
  assert kept == [n for n in model.graph.node if n.op_type == "Attention"]
  assert not {"MultiHeadAttention", "Split", "MatMul"} & {*ops(result.model)}


def test_each_part_has_a_meaning():
  program = import_model(load_model(projecting(512, 8, dtype=np.float16, mask="ends")))
  assert [n.op_type for n in program.nodes if n.barrier] == []
  assert [n.part_of for n in program.nodes] == ["", *["Attention"] * 3, ""]
