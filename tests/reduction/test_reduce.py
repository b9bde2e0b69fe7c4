"""Reducing models on which a small program fails: what is left, and what is not touched."""

import json
import sys
import time

import onnx
import pytest
from refused import refused
from small_models import Net

from mirage_onnx import api, cli
from mirage_onnx.errors import Exit
from mirage_onnx.reduction.command import Command

#: A stand-in for a program with a bug: it ends with 7 where a model has certain operators.
BUGGY = """
import sys, onnx
model = onnx.load(sys.argv[1])
onnx.checker.check_model(model)
ops = [n.op_type for n in model.graph.node]
if {wanted!r} <= set(ops):
  print("the bug, in", sys.argv[1])
  sys.exit(7)
sys.exit(3 if "Sqrt" not in ops else 0)
"""


@pytest.fixture
def model(tmp_path):
  net = Net()
  x = net.rms(net.input(8, 64), net.weight(64))
  y = net.MatMul(x, net.weight(64, 64))
  z = net.MatMul(net.rms(net.Tanh(y), net.weight(64)), net.weight(64, 64))
  path = tmp_path / "model.onnx"
  onnx.save(net.model(net.Relu(z), net.Abs(y)), path)
  return path


@pytest.fixture
def buggy(tmp_path):
  def made(*wanted):
    script = tmp_path / "buggy.py"
    script.write_text(BUGGY.format(wanted=set(wanted)))
    return [sys.executable, str(script), "{}"]

  return made


def test_only_what_is_needed_is_left(model, buggy, tmp_path):
  before, out, told = model.read_bytes(), tmp_path / "small.onnx", []
  found = api.reduce(model, out, buggy("Tanh", "Relu"), tell=told.append)
  small = onnx.load(out)
  onnx.checker.check_model(small, full_check=True)
  assert sorted(n.op_type for n in small.graph.node) == ["Relu", "Tanh"]
  assert not small.graph.initializer and model.read_bytes() == before
  assert (found.nodes_before, found.nodes, found.exit_code, found.finished) == (17, 2, 7, True)
  assert found.bytes == small.ByteSize() < found.bytes_before == onnx.load(model).ByteSize()
  assert found.runs == 1 + len(told) and found.runs < 80
  nodes = [t.nodes for t in told]
  assert nodes == sorted(nodes, reverse=True) and nodes[-1] == 2
  again = tmp_path / "again.onnx"
  api.reduce(model, again, buggy("Tanh", "Relu"))
  assert again.read_bytes() == out.read_bytes()


def test_weights_that_are_needed_stay(model, tmp_path):
  """The program fails on a large initializer: others become inputs."""
  script = tmp_path / "large.py"
  script.write_text(
    "import sys, onnx\nm = onnx.load(sys.argv[1])\n"
    "sys.exit(5 if any(len(t.raw_data) > 4000 for t in m.graph.initializer) else 0)\n"
  )
  out = tmp_path / "small.onnx"
  found = api.reduce(model, out, [sys.executable, str(script), "{}"])
  small = onnx.load(out)
  assert found.nodes == 1 and [n.op_type for n in small.graph.node] == ["MatMul"]
  assert [list(t.dims) for t in small.graph.initializer] == [[64, 64]]


def test_another_failure_is_not_the_same(model, buggy, tmp_path):
  """Without Sqrt the program ends with 3, which is not what the model failed with."""
  found = api.reduce(model, tmp_path / "small.onnx", buggy("Sqrt", "Tanh"))
  assert found.exit_code == 7 and found.nodes == 2


def test_a_text_that_a_failure_prints(model, tmp_path):
  script = tmp_path / "prints.py"
  script.write_text(
    "import sys, onnx\nops = {n.op_type for n in onnx.load(sys.argv[1]).graph.node}\n"
    "print('warning: odd' if 'Tanh' in ops else 'fine', file=sys.stderr)\n"
  )
  command = [sys.executable, str(script), "{}"]
  found = api.reduce(model, tmp_path / "small.onnx", command, match="warning: odd")
  assert (found.nodes, found.exit_code) == (1, 0)
  with refused("NOT_FAILING") as error:
    api.reduce(model, tmp_path / "small.onnx", command, match="never said")
  assert "exit code 0 and 'warning: odd'" in error.value.detail
  assert refused("NOT_FAILING", lambda: api.reduce(model, tmp_path / "x.onnx", command))


def test_weights_beside_the_model(model, buggy, tmp_path):
  whole, folder = onnx.load(model), tmp_path / "apart"
  folder.mkdir()
  onnx.save(whole, folder / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
  data = (folder / "w.bin").read_bytes()
  found = api.reduce(folder / "model.onnx", tmp_path / "small.onnx", buggy("MatMul"))
  assert found.nodes == 1 and (folder / "w.bin").read_bytes() == data
  onnx.checker.check_model(str(tmp_path / "small.onnx"))
  (folder / "w.bin").unlink()
  lost = lambda: api.reduce(folder / "model.onnx", tmp_path / "small.onnx", buggy("MatMul"))  # noqa: E731
  assert refused("EXTERNAL_DATA_MISSING", lost)


def test_the_time_and_ctrl_c_keep_the_smallest_so_far(model, buggy, tmp_path):
  out = tmp_path / "small.onnx"
  found = api.reduce(model, out, buggy("Tanh"), budget_s=1e-6)
  assert not found.finished and found.nodes == found.nodes_before and out.exists()
  told = []
  found = api.reduce(model, out, buggy("Tanh"), stop=lambda: len(told) == 3, tell=told.append)
  assert not found.finished and found.runs == 4
  assert len(onnx.load(out).graph.node) == found.nodes < found.nodes_before


def test_what_hangs_is_ended(tmp_path, monkeypatch):
  script = tmp_path / "hangs.py"
  script.write_text(
    "import subprocess, sys, time\n"
    "if 'slow' in sys.argv[1]:\n  subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "sys.exit(7)\n"
  )
  command = Command((sys.executable, str(script), "{}"))
  first = command.first("fast")
  assert command.fails_as(first, "fast")
  monkeypatch.setattr("mirage_onnx.reduction.command.LATER_S", 0.2)
  start = time.monotonic()
  assert not command.fails_as(first, "slow") and time.monotonic() - start < 300


def test_commands_that_cannot_be_run(model, tmp_path):
  out = tmp_path / "small.onnx"
  assert refused("OPTION_INVALID", lambda: api.reduce(model, out, ["no-such-program-anywhere", "{}"]))
  assert refused("OPTION_INVALID", lambda: api.reduce(model, out, [sys.executable, "model.onnx"]))
  assert refused("OUTPUT_IS_INPUT", lambda: api.reduce(model, model, ["x", "{}"]))
  assert refused("OUTPUT_UNWRITABLE", lambda: api.reduce(model, tmp_path / "no" / "x.onnx", ["x", "{}"]))
  model.write_bytes(b"no model")
  assert refused("NOT_ONNX", lambda: api.reduce(model, out, ["x", "{}"]))
  assert not out.exists()


def test_the_command_line(model, buggy, capsys, monkeypatch):
  monkeypatch.chdir(model.parent)
  assert cli.main(["reduce", "model.onnx", "--json", "--", *buggy("Tanh")]) == Exit.DONE
  out, err = capsys.readouterr()
  found = json.loads(out)
  assert (found["output"], found["nodes"], found["finished"]) == ("model.reduced.onnx", 1, True)
  lines = err.splitlines()
  assert lines[0].startswith("reduce: 17 → ") and lines[-1].startswith(
    "wrote model.reduced.onnx: 17 → 1 nodes, "
  )
  shown = [line.split(" nodes")[0] for line in lines[:-1]]
  assert len(shown) == len(set(shown))  # a line where it became smaller
  assert cli.main(["reduce", "model.onnx"]) == Exit.INPUT
  assert cli.main(["reduce", "model.onnx", "--", "true", "{}"]) == Exit.INPUT
  assert "NOT_FAILING" in capsys.readouterr().err
