"""Weights outside the model: what is kept, what is copied, what is new, and what that costs."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from exotic_models import ROWS, WIDTH, with_region
from model_diff import custom_nodes
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data
from protos import new_node, typed
from refused import refused
from written_files import data_file

from mirage_onnx import api, cli
from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite import external as external_module
from mirage_onnx.rewrite.model import BUNDLE_NAME
from mirage_onnx.rewrite.save import External, check_output, save_model


def with_untouched(model, h):
  table = np.random.default_rng(1).standard_normal((64, WIDTH)).astype(np.float16)
  model.graph.initializer.append(numpy_helper.from_array(table, "table"))
  model.graph.input.append(typed("at", TensorProto.INT64, [ROWS]))
  model.graph.node.append(new_node("Gather", "table at", "rows", name="rows"))
  model.graph.output.append(typed("rows", TensorProto.FLOAT16, None))


@pytest.fixture
def source(tmp_path):
  folder = tmp_path / "in"
  folder.mkdir()
  path = folder / "in.onnx"
  onnx.save(with_region(with_untouched), path, save_as_external_data=True,
            size_threshold=1024, location="in.data")  # fmt: skip
  return path


@pytest.fixture
def rewritten(source):
  model = api.optimize(source, target="h200", workers=1).model
  assert custom_nodes(model)
  return model


def places(path):
  model = onnx.load(path, load_external_data=False)
  return {
    t.name: ExternalDataInfo(t).location if uses_external_data(t) else None for t in model.graph.initializer
  }


def outputs(toy, path):
  rng = np.random.default_rng(2)
  x = rng.standard_normal((ROWS, WIDTH)).astype(np.float16)
  model = onnx.load(path, load_external_data=False)
  return toy.run(path, {model.graph.input[0].name: x, "at": np.arange(ROWS)})


def test_beside_the_source_only_touched_weights_are_written(toy, source):
  before = source.with_name("in.data").read_bytes()
  out = source.with_name("out.onnx")
  api.optimize(source, out, target="h200", workers=1)
  found = places(out)
  (touched,) = (name for name in found if name.endswith(".kmajor"))
  assert found["table"] == "in.data"
  assert found[touched] == data_file(out).name
  assert found[BUNDLE_NAME] is None
  assert data_file(out).stat().st_size == WIDTH * WIDTH * 2
  assert source.with_name("in.data").read_bytes() == before
  np.testing.assert_equal(outputs(toy, out), outputs(toy, source))


@pytest.mark.parametrize("how", [None, External.COPY])
def test_elsewhere_all_is_copied(toy, source, rewritten, tmp_path, how):
  out = tmp_path / "out.onnx"
  wanted, memory = outputs(toy, source), rewritten.SerializeToString(deterministic=True)
  save_model(rewritten, out, source, external=how)
  assert rewritten.SerializeToString(deterministic=True) == memory
  data = data_file(out).name
  assert {p.name for p in tmp_path.iterdir()} == {"in", "out.onnx", data}
  assert {p for p in places(out).values() if p} == {data}
  source.with_name("in.data").unlink()
  np.testing.assert_equal(outputs(toy, out), wanted)


def test_copy_beside_the_source(toy, source, rewritten):
  out = source.with_name("out.onnx")
  save_model(rewritten, out, source, external=External.COPY)
  assert {p for p in places(out).values() if p} == {data_file(out).name}
  np.testing.assert_equal(outputs(toy, out), outputs(toy, source))


def test_inline(toy, source, rewritten, tmp_path):
  out = tmp_path / "out.onnx"
  save_model(rewritten, out, source, external=External.INLINE)
  assert set(places(out).values()) == {None}
  assert {p.name for p in tmp_path.iterdir()} == {"in", "out.onnx"}
  np.testing.assert_equal(outputs(toy, out), outputs(toy, source))


def test_keep_elsewhere_is_refused(source, rewritten, tmp_path):
  with refused("OPTION_INVALID", "beside the input"):
    save_model(rewritten, tmp_path / "out.onnx", source, external=External.KEEP)
  with pytest.raises(MirageError, match="beside the input"):
    check_output(tmp_path / "out.onnx", source, rewritten, external=External.KEEP)
  assert {p.name for p in tmp_path.iterdir()} == {"in"}


def test_the_option(toy, source, tmp_path, capsys):
  """From the command line; what cannot be done is refused before the search."""
  out = tmp_path / "out.onnx"
  arguments = ["optimize", str(source), "-o", str(out), "--target", "h200", "-q", "--external"]
  assert cli.main([*arguments, "keep"]) == 2
  assert "beside the input" in capsys.readouterr().err
  assert not out.exists()
  assert cli.main([*arguments, "inline"]) == 0
  assert set(places(out).values()) == {None}
  assert cli.main([*arguments, "elsewhere"]) == 2
  with pytest.raises(MirageError, match="keep, copy or inline"):
    api.optimize(source, out, external="elsewhere")


def test_a_model_without_external_data_takes_any_choice(tmp_path):
  model = with_region()
  for how in External:
    save_model(model, tmp_path / f"{how}.onnx", external=how)
  assert len({p.read_bytes() for p in tmp_path.iterdir()}) == 1


class TestCopying:
  """A file with holes: 1 MiB of data at its start and at 64 MiB, nothing else."""

  SIZE = 65 << 20

  @pytest.fixture
  def model(self, tmp_path):
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "w.bin").open("wb") as file:
      file.write(b"\1" * (1 << 20))
      file.seek(64 << 20)
      file.write(b"\2" * (1 << 19))
      file.truncate(self.SIZE)
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[self.SIZE],
                         data_location=TensorProto.EXTERNAL)  # fmt: skip
    tensor.external_data.add(key="location", value="w.bin")
    graph = onnx.GraphProto(initializer=[tensor])
    return onnx.ModelProto(ir_version=10, graph=graph)

  def saved(self, model, tmp_path):
    save_model(model, tmp_path / "out.onnx", tmp_path / "in" / "in.onnx")
    found = data_file(tmp_path / "out.onnx")
    assert found.read_bytes() == (tmp_path / "in" / "w.bin").read_bytes()
    return found

  def test_holes_stay_holes(self, model, tmp_path):
    given = (tmp_path / "in" / "w.bin").stat().st_blocks
    assert self.saved(model, tmp_path).stat().st_blocks <= given + 64

  @pytest.mark.parametrize(("call", "error"), [("copy_file_range", errno.EXDEV), ("lseek", errno.EINVAL)])
  def test_what_the_system_refuses(self, call, error, model, tmp_path, monkeypatch):
    def refuse(*args):
      raise OSError(error, "two file systems, or holes that are not known")

    monkeypatch.setattr(os, call, refuse)
    self.saved(model, tmp_path)

  def test_cut_off_while_read(self, model, tmp_path, monkeypatch):
    monkeypatch.setattr(external_module, "_copy", lambda *args: 0)
    with refused("EXTERNAL_DATA_MISSING", "cut off while read"):
      self.saved(model, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"in"}


#: Optimizes argv[1] to argv[2]; prints the most memory that took, in MiB.
# VmHWM: ru_maxrss keeps, across exec, what the test's own process had when it forked.
MEASURE = """
import json, sys
from mirage_onnx import api, cli
result = api.optimize(sys.argv[1], sys.argv[2], target="h200", workers=1)
lines = open("/proc/self/status").read().splitlines()
peak = int(next(x for x in lines if x.startswith("VmHWM")).split()[1]) // 1024
print(json.dumps([peak, sum(r["status"] == "replaced" for r in result.report["regions"])]))
"""
#: What may come on top of touched weights, packages included.
LIMIT_MIB = 500


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_three_gigabytes_are_not_read(tmp_path, elsewhere):
  """Two tables of 1.5 GB that nobody replaces, in a file that is all holes."""
  rows = (3 << 29) // (2 * WIDTH)
  model = with_region()
  for name in ("a", "b"):
    tensor = model.graph.initializer.add(
      name=name, data_type=TensorProto.FLOAT16, dims=[rows, WIDTH],
      data_location=TensorProto.EXTERNAL,
    )  # fmt: skip
    offset = 0 if name == "a" else 3 << 29
    for key, value in (("location", "in.data"), ("offset", offset), ("length", 3 << 29)):
      tensor.external_data.add(key=key, value=str(value))
    model.graph.node.append(helper.make_node("Gather", [name, "at"], [f"{name}.rows"]))
    model.graph.output.append(helper.make_value_info(f"{name}.rows", onnx.TypeProto()))
    model.graph.output[-1].type.tensor_type.elem_type = TensorProto.FLOAT16
  model.graph.input.append(typed("at", TensorProto.INT64, [ROWS]))
  folder = tmp_path / "in"
  folder.mkdir()
  (folder / "in.onnx").write_bytes(model.SerializeToString())
  with (folder / "in.data").open("wb") as file:
    file.truncate(3 << 30)
  out = (tmp_path if elsewhere else folder) / "out.onnx"
  command = [sys.executable, "-c", MEASURE, str(folder / "in.onnx"), str(out)]
  done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
  peak_mib, replaced = json.loads(done.stdout)
  print(f"{peak_mib} MiB")
  assert replaced == 1
  assert peak_mib < LIMIT_MIB
  data = data_file(out)
  assert set(filter(None, places(out).values())) == {data.name} | (set() if elsewhere else {"in.data"})
  if elsewhere:
    assert data.stat().st_blocks * 512 < 1 << 20
