"""What kills onnxruntime is a line of the result, or one error: the check goes on without it."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import typed
from refused import refused

from mirage_onnx import api, cli
from mirage_onnx.custom_op import compare, isolated, model_check
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.compare_inputs import KINDS
from mirage_onnx.custom_op.edge_inputs import EDGES
from mirage_onnx.custom_op.isolated import compare_isolated
from mirage_onnx.emulator import toolchain
from mirage_onnx.errors import Exit, MirageError
from mirage_onnx.report.schema import check_verify_report
from mirage_onnx.report.table import verify_tables

#: Run in the child before it serves: at a step that ``where`` is true of, ``how`` happens.
TRAP = """
import os, signal
from mirage_onnx.custom_op import isolated
real = isolated.compare_models

def trapped(a, b, *, tell, **options):
  def told(step, name):
    tell(step, name)
    if {where}:
      {how}
  return real(a, b, tell=told, **options)

isolated.compare_models = trapped
isolated.serve()
"""
SEGFAULT = "os.kill(os.getpid(), signal.SIGSEGV)"


def trap(monkeypatch, where, how=SEGFAULT):
  monkeypatch.setattr(isolated, "CHILD", TRAP.format(where=where, how=how))


@pytest.fixture(scope="module")
def plain():
  x, y = (typed(n, TensorProto.FLOAT16, [2, 8]) for n in "xy")
  graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", [x], [y])
  return helper.make_model(
    graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
  ).SerializeToString()


@pytest.fixture
def pair(chain, tmp_path):
  onnx.save(chain.original, tmp_path / "a.onnx")
  onnx.save(chain.model, tmp_path / "b.onnx")
  return tmp_path / "a.onnx", tmp_path / "b.onnx"


def test_nothing_is_killed(plain):
  found = compare_isolated(plain, plain, draws=1)
  assert found == compare_models(plain, plain, draws=1)
  assert found.passed and found.failures == ()


@pytest.mark.parametrize(
  ("how", "said"),
  [(SEGFAULT, "SIGSEGV"), ("os.kill(os.getpid(), signal.SIGKILL)", r"SIGKILL \(out of memory\?\)"),
   ("os._exit(7)", "exit code 7")],
)  # fmt: skip
def test_a_model_that_cannot_be_opened(plain, monkeypatch, how, said):
  trap(monkeypatch, 'name == "the original"', how)
  with refused("SESSION_FAILED", f"ended by {said}: opening the original"):
    compare_isolated(plain, plain, draws=1)


def test_an_optimized_model_that_cannot_be_opened(plain, monkeypatch):
  """Emulated, it is opened once more with fewer optimizations; else that is what a user would see."""
  first = 'name == "the optimized model" and not options["left_out"].optimizations'
  trap(monkeypatch, first)
  found = compare_isolated(plain, plain, draws=1, emulate=True)
  assert found.passed and not found.failures
  assert "ended by SIGSEGV: opening the optimized model; both models ran with its basic" in found.note
  with refused("SESSION_FAILED", "ended by SIGSEGV: opening the optimized model"):
    compare_isolated(plain, plain, draws=1)
  trap(monkeypatch, 'name == "the optimized model"')
  with refused("SESSION_FAILED", "ended by SIGSEGV: opening the optimized model"):
    compare_isolated(plain, plain, draws=1, emulate=True)


def test_an_input_that_kills(plain, monkeypatch):
  trap(monkeypatch, 'name in ("zeros", "edge")')
  found = compare_isolated(plain, plain, draws=1)
  assert found.inputs == ("normal 0", *(k for k in KINDS if k != "zeros"), EDGES[1])
  assert not found.passed and all(o.passed for o in found.outputs)
  assert [f.split(": ")[2] for f in found.failures] == [
    f"both models on input {k}" for k in ("zeros", "edge")
  ]
  assert all("SIGSEGV" in f and f.endswith("not checked") for f in found.failures)


def test_what_kills_every_time_ends(plain, monkeypatch):
  monkeypatch.setattr(isolated, "MOST_KILLED", 3)
  trap(monkeypatch, 'step == "both models on input"')
  with refused("SESSION_FAILED", "ended 3 times, the last time by SIGSEGV"):
    compare_isolated(plain, plain, draws=1)


def test_errors_of_the_child_are_those_of_the_caller(plain, tmp_path):
  with refused("OPTION_INVALID", "draws=0"):
    compare_isolated(plain, plain, draws=0)
  with refused("SHAPES_DIFFER"):
    other = onnx.load_from_string(plain)
    other.graph.node[0].output[0] = other.graph.output[0].name = "z"
    compare_isolated(plain, other.SerializeToString())


@pytest.mark.slow  # several children, and kernels
def test_nodes_side_by_side_that_kill_are_tried_one_by_one(chain, pair, monkeypatch):
  trap(monkeypatch, 'step == "all custom nodes by themselves"')
  found = compare_isolated(*map(str, pair), emulate=True, draws=1)
  assert found.passed and [r.node for r in found.regions] == list(chain.nodes)


@pytest.mark.slow  # several children, and kernels
def test_a_node_that_kills_is_not_passed_over(chain, pair, monkeypatch, capsys):
  where = f'step == "all custom nodes by themselves" or name == {chain.nodes[1]!r}'
  trap(monkeypatch, where)
  assert cli.main(["verify", *map(str, pair), "--emulate", "--json"]) == Exit.CHECK_FAILED
  line = f"SESSION_FAILED: onnxruntime was ended by SIGSEGV: custom node {chain.nodes[1]}: not checked"
  out, err = capsys.readouterr()
  assert "FAILED" in err and "SIGSEGV" in err
  found = check_verify_report(json.loads(out))
  assert found.failures == [line] and not found.passed
  assert [r.node for r in found.regions] == [chain.nodes[0], chain.nodes[2]]
  assert all(o.passed for o in (*found.outputs, *found.regions))
  assert line in list(verify_tables(found))


def test_a_node_that_onnxruntime_refuses_is_not_passed_over(chain, pair, monkeypatch):
  """An error, no signal: nothing is killed, and the others are checked all the same."""
  real = model_check.run_session

  def refuse(session, feeds):
    if any(o.name == chain.regions[1].outputs[0].tensor.name for o in session.get_outputs()) and any(
      name.startswith("boundary/") for name in feeds
    ):
      raise MirageError("SESSION_FAILED", "no such kernel")
    return real(session, feeds)

  monkeypatch.setattr(model_check, "run_session", refuse)
  found = compare_models(*pair, emulate=True, draws=1)
  assert not found.passed and all(o.passed for o in found.outputs)
  assert found.failures == (f"SESSION_FAILED: {chain.nodes[1]}: no such kernel: not checked",)
  assert [r.node for r in found.regions] == [chain.nodes[0], chain.nodes[2]]


def test_regions_that_cannot_be_opened_at_all(pair, monkeypatch):
  def refuse(*_, **__):
    raise MirageError("SESSION_FAILED", "too large")

  monkeypatch.setattr(compare, "RegionCheck", refuse)
  found = compare_models(*pair, emulate=True, draws=1)
  assert not found.passed and all(o.passed for o in found.outputs)
  assert found.failures == ("SESSION_FAILED: custom nodes by themselves: too large: not checked",)


def test_a_model_that_kills_onnxruntime(tmp_path):
  """onnxruntime 1.31 and 1.32 die of a Transpose before a MatMul of fp16; a later one may not."""
  nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2], name="t"),
           helper.make_node("MatMul", ["t", "w"], ["y"], name="m")]  # fmt: skip
  weight = numpy_helper.from_array(np.ones((8, 8), np.float16), "w")
  values = [typed("x", TensorProto.FLOAT16, [2, 3, 8])], [typed("y", TensorProto.FLOAT16, None)]
  graph = helper.make_graph(nodes, "g", *values, [weight])
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
  onnx.save(model, tmp_path / "a.onnx")
  try:
    assert api.verify(tmp_path / "a.onnx", tmp_path / "a.onnx").passed
  except MirageError as error:
    assert error.code == "SESSION_FAILED" and "SIGSEGV: opening the original" in error.detail


def test_a_home_that_cannot_be_written(monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
  folder = toolchain.cache_folder()
  assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0, "nobody else's"
  built = toolchain.build_library('extern "C" int two() { return 2; }', ("-shared", "-fPIC"))
  assert built.parent == folder


@pytest.mark.slow  # several children, and kernels
def test_verify_with_a_home_that_cannot_be_written(pair, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
  monkeypatch.setenv("HOME", "/dev/null")
  found = api.verify(*pair, emulate=True)
  assert found.passed and {n.path for n in found.nodes} == {"emulated"}
