"""Nothing wrong is written: regions that fail the check are dropped, and an older output stays till then."""

import time
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewritten import chain
from written_files import data_file
from written_runs import OPTIONS, a_run

from mirage_onnx import writing
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import load_model
from mirage_onnx.match.candidates import Matches
from mirage_onnx.pipeline import Run
from mirage_onnx.rewrite import model as model_module
from mirage_onnx.rewrite.save import External
from mirage_onnx.rewrite.stock_check import Found


@pytest.fixture(scope="module")
def three():
  return chain()


def written(three, folder, *, check=True, seconds=300.0):
  onnx.save(three.original, folder / "in.onnx")
  loaded = load_model(folder / "in.onnx")
  place = writing.Destination(folder / "out.onnx", folder / "in.onnx", None, time.monotonic() + seconds)
  left, said = writing.write(a_run(three, loaded), loaded, OPTIONS, place, check=check)
  assert sorted(p.name for p in folder.iterdir()) == ["in.onnx", "out.onnx"]
  model = onnx.load(folder / "out.onnx")
  assert model == left.model
  return left, said, [n.op_type for n in model.graph.node].count("MuGraph_0") and len(left.chosen)


def test_all_is_right(three, tmp_path):
  left, said, count = written(three, tmp_path)
  assert count == 3 and "the same bits" in said
  assert all(o.rejection is None for o in left.outcomes.values())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_weights_outside(three, tmp_path, elsewhere):
  """onnx's checker takes a data file of several links for an attack: all regions were dropped."""
  out, streamed = tmp_path / "out" if elsewhere else tmp_path, replace(OPTIONS, streamed=True)
  out.mkdir(exist_ok=True)
  model = onnx.load_from_string(three.original.SerializeToString())
  (y,), graph = model.graph.output, model.graph
  graph.initializer.append(numpy_helper.from_array(np.full((8, 64), 0.5, np.float16), "untouched"))
  graph.node.append(onnx.helper.make_node("Mul", [y.name, "untouched"], ["z"], name="untouched"))
  graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT16, (8, 64)))
  onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=64)
  loaded = load_model(tmp_path / "in.onnx")
  place = writing.Destination(out / "out.onnx", tmp_path / "in.onnx", None, time.monotonic() + 300.0)
  left, said = writing.write(a_run(three, loaded, streamed), loaded, streamed, place, check=True)
  assert len(left.chosen) == 3 and "the same bits" in said
  files = {f.name for f in (*tmp_path.iterdir(), *out.iterdir()) if f.is_file()}
  assert files == {"in.onnx", "in.data", "out.onnx", data_file(out / "out.onnx").name}
  onnx.checker.check_model(str(out / "out.onnx"))
  assert (tmp_path / "in.data").stat().st_nlink == 1


@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_wrong_body_costs_its_region(three, tmp_path, monkeypatch, k):
  """The faulty model is never in the place of the output."""
  right, bad = model_module.build_body, three.regions[k]

  def wrong(nodes, replacement, *more):
    body = right(nodes, replacement, *more)
    if replacement.nodes == bad.nodes:
      nodes = body.function.node
      at, last = next((i, n) for i, n in enumerate(nodes) if "o0" in n.output)
      last.output[0] = "almost"
      nodes.insert(at + 1, onnx.helper.make_node("Add", ["almost", "almost"], ["o0"], name="planted"))
    return body

  monkeypatch.setattr(model_module, "build_body", wrong)
  left, said, count = written(three, tmp_path)
  assert count == 2 and "the same bits" in said
  why = left.outcomes[bad.key].rejection
  assert why.code == "CHECK_FAILED" and "differs" in why.reason
  assert not any("planted" in str(f) for f in left.model.functions)


def test_a_check_that_always_fails(three, tmp_path, monkeypatch):
  monkeypatch.setattr(writing, "check_written", lambda *_: Found(problem="planted"))
  left, said, count = written(three, tmp_path)
  assert count == 0 and left.model == three.original and "dropped" in said
  assert {o.rejection for o in left.outcomes.values()} == {Rejection("CHECK_FAILED", "planted")}


def test_no_time_to_find_the_region(three, tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(writing, "check_written", lambda *_: calls.append(1) or Found(problem="planted"))
  left, _, count = written(three, tmp_path, seconds=-100.0)
  assert len(calls) == 1 and count == 0 and left.model == three.original


def test_no_check(three, tmp_path, monkeypatch):
  monkeypatch.setattr(writing, "check_written", lambda *_: pytest.fail("called"))
  assert written(three, tmp_path, check=False)[1:] == ("not checked", 3)


def test_nothing_to_check(three, tmp_path, monkeypatch):
  monkeypatch.setattr(writing, "check_written", lambda *_: pytest.fail("called"))
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  run = Run(loaded.given, None, Matches((), ()), (), {})
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, 0.0)
  assert writing.write(run, loaded, OPTIONS, place, check=True)[1] == "nothing was replaced"
  assert onnx.load(tmp_path / "out.onnx") == three.original


def test_a_file_in_which_nothing_is_replaced_is_copied(three, tmp_path):
  """Byte for byte, also where protobuf would write the same model otherwise."""
  data = three.original.SerializeToString()
  unknown = b"\xe0\x3f\x05"  # a field that no onnx has, in front of all others
  (tmp_path / "in.onnx").write_bytes(unknown + data)
  loaded = load_model(tmp_path / "in.onnx")
  run = Run(loaded.given, a_run(three, loaded).program, Matches((), ()), (), {})
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, time.monotonic() + 300)
  writing.write(run, loaded, OPTIONS, place, check=True)
  assert (tmp_path / "out.onnx").read_bytes() == unknown + data
  assert loaded.given.SerializeToString(deterministic=True) != unknown + data


@pytest.mark.parametrize("external", ["copy", "inline"])
def test_what_is_taken_elsewhere_is_no_copy(three, tmp_path, external):
  (tmp_path / "out").mkdir()
  model = onnx.load_from_string(three.original.SerializeToString())  # onnx changes what it is given
  onnx.save(model, tmp_path / "in.onnx", save_as_external_data=True, location="d", size_threshold=64)
  loaded = load_model(tmp_path / "in.onnx")
  run = Run(loaded.given, a_run(three, loaded).program, Matches((), ()), (), {})
  end = time.monotonic() + 300
  out = tmp_path / "out" / "out.onnx"
  place = writing.Destination(out, tmp_path / "in.onnx", External(external), end)
  writing.write(run, loaded, OPTIONS, place, check=True)
  weights = {t.name: numpy_helper.to_array(t).tobytes() for t in three.original.graph.initializer}
  (tmp_path / "d").unlink()
  found = onnx.load(out)
  assert weights and {t.name: numpy_helper.to_array(t).tobytes() for t in found.graph.initializer} == weights
