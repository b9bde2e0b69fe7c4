"""What is taken as a model, with the real onnx_ir; torch's program is stood in for by an object like it."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir
import pytest
from refused import refused
from small_models import Net, feeds, run_model

import mirage_onnx
from mirage_onnx.importer import load_model, model_source
from mirage_onnx.importer.model_source import readable


@pytest.fixture(scope="module")
def proto():
  net = Net()
  y = net.MatMul(net.rms(net.input(8, 512), net.weight(512)), net.weight(512, 256))
  return net.model(net.Relu(y))


@pytest.fixture(scope="module")
def values(proto):
  return feeds(proto, np.random.default_rng(0))


def exported(proto):
  """As torch's ONNXProgram: a model of onnx_ir and more."""
  return SimpleNamespace(model=onnx_ir.from_proto(proto), save=None)


def result_of(found, values):
  return run_model(found, values)[0].tobytes()


def test_files_and_protos_stay(proto, tmp_path):
  for given in ("m.onnx", tmp_path / "m.onnx"):
    with readable(given) as found:
      assert found == Path(given)
  with readable(proto) as found:
    assert found is proto


@pytest.mark.parametrize("kind", [onnx_ir.from_proto, exported])
def test_onnx_ir(proto, values, kind, tmp_path):
  out = tmp_path / "out.onnx"
  result = mirage_onnx.optimize(kind(proto), out, target="h200", workers=1)
  assert result.report["input"] is None and result.report["checked"]
  assert {n.domain for n in result.model.graph.node} == {"ai.mirage.v1.sm90a"}
  assert result_of(onnx.load(out), values) == result_of(proto, values)
  shown = mirage_onnx.inspect(kind(proto), target="h200")
  explained = mirage_onnx.explain(kind(proto), shown.regions[0].key, target="h200", budget_s=0)
  assert explained.input is None


def in_a_file(proto, folder):
  copied = onnx.ModelProto.FromString(proto.SerializeToString())  # onnx.save changes what it is given
  onnx.save(copied, folder / "in.onnx", save_as_external_data=True, size_threshold=64, location="in.data")
  return onnx_ir.load(folder / "in.onnx")


def test_weights_in_files(proto, values, tmp_path):
  """Wherever they are: a model of onnx_ir remembers the folder."""
  model = in_a_file(proto, tmp_path)
  before = {p: p.read_bytes() for p in tmp_path.iterdir()}
  with readable(model) as found:
    assert load_model(found).path is None
    assert result_of(found, values) == result_of(proto, values)
  assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before
  assert isinstance(next(iter(model.graph.initializers.values())).const_value, onnx_ir.ExternalTensor)


def test_large(proto, values, tmp_path, monkeypatch):
  """A limit that is small here: the model goes through a file that is gone afterwards."""
  monkeypatch.setattr(model_source, "IN_MEMORY_BYTES", 1000)
  model, out = onnx_ir.from_proto(proto), tmp_path / "out.onnx"
  with readable(model) as found:
    assert isinstance(found, Path) and len(list(found.parent.iterdir())) == 2
  assert not found.parent.exists()
  with refused("OPTION_INVALID", "needs output=PATH"):
    mirage_onnx.optimize(model, target="h200", workers=1)
  result = mirage_onnx.optimize(model, out, target="h200", workers=1)
  assert result.report["input"] is None
  assert result_of(onnx.load(out), values) == result_of(proto, values)


@pytest.mark.parametrize("given", [3, None, SimpleNamespace(model="m.onnx")])
def test_no_model(given):
  with refused("OPTION_INVALID", f"of type {type(given).__name__}"):
    mirage_onnx.optimize(given)


def test_without_onnx_ir(monkeypatch):
  monkeypatch.delitem(model_source.sys.modules, "onnx_ir")
  with refused("OPTION_INVALID"):
    mirage_onnx.inspect(SimpleNamespace(model=1))
