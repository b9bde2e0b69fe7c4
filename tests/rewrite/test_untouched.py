"""Why graphsurgeon does not write the nodes, and what of a file is not even read.

That what is in no region stays byte for byte is in ``test_intact.py``.
"""

from pathlib import Path

import onnx
import onnx_graphsurgeon as gs
import pytest
from exotic_models import EXOTIC
from onnx import TensorProto, helper

from mirage_onnx.rewrite.model import BodyMaker, rewrite_model
from mirage_onnx.rewrite.wiring import Wiring

MODELS = sorted((Path(__file__).parents[2] / "models").glob("*.onnx"))


def test_external_references_are_kept_and_touched_ones_are_read(toy, x, tmp_path):
  model = toy.build(2)
  path = tmp_path / "in.onnx"
  onnx.save(model, path, save_as_external_data=True, size_threshold=64, location="in.data")
  light = onnx.load(path, load_external_data=False)
  result = rewrite_model(light, [toy.region(0)], toy.bundle, maker=BodyMaker(light, tmp_path))
  found = {t.name: t for t in result.graph.initializer}
  assert found["l1_w"].data_location == TensorProto.EXTERNAL
  assert found["l0_w.kmajor"].data_location == TensorProto.DEFAULT
  onnx.save(result, tmp_path / "out.onnx")
  assert toy.same(path, tmp_path / "out.onnx", h0=x())


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_the_order_of_real_models_stays(path):
  model = onnx.load(path)
  assert [n.name for n in Wiring(model).ordered()] == [n.name for n in model.graph.node]


# Why nodes are not exported by it; a failure here means that wiring.py could be simpler.


def test_metadata_docs_and_overload():
  model = EXOTIC["decorated"].build()
  assert model.functions[0].overload and model.graph.node[-1].doc_string
  back = gs.export_onnx(gs.import_onnx(model))
  assert not back.metadata_props
  assert not back.graph.metadata_props
  assert not back.graph.quantization_annotation
  assert not back.graph.node[-1].metadata_props
  assert back.graph.node[-1].overload == back.graph.node[-1].doc_string == ""
  assert back.functions[0].overload == ""
  assert "unused" not in {t.name for t in back.graph.initializer}


def test_non_utf8_strings(toy):
  model = toy.build()
  model.graph.node[0].attribute.append(helper.make_attribute("blob", b"\xff\xfe"))
  with pytest.raises(UnicodeDecodeError):
    gs.import_onnx(model)


def test_initializers_that_are_inputs(toy):
  model = toy.build()
  model.graph.input.append(helper.make_tensor_value_info("l0_gamma", TensorProto.FLOAT16, [toy.hidden]))
  back = gs.export_onnx(gs.import_onnx(model))
  assert [i.name for i in back.graph.input] == ["h0"]
