"""The original of all results runs once, beside other work; what hangs there is ended."""

import os
import threading
import time

import onnx
import pytest
from small_models import Net

from mirage_onnx import events
from mirage_onnx.custom_op import child
from mirage_onnx.rewrite.check_process import BEFORE, CheckProcess
from mirage_onnx.rewrite.stock_check import check_written


@pytest.fixture
def model(tmp_path):
  net = Net(seed=1, opset=18)
  x = net.input(4, 8)
  onnx.save(net.model(net.Tanh(net.MatMul(x, net.weight(8, 8)))), tmp_path / "in.onnx")
  return tmp_path / "in.onnx"


@pytest.fixture
def told(monkeypatch):
  """What processes say that they are at."""
  said, receive = [], child.WorkerProcess.receive

  def hears(self):
    found = receive(self)
    if found[0] == "at":
      said.append(found[1][0])
    return found

  monkeypatch.setattr(child.WorkerProcess, "receive", hears)
  return said


def results(model, count):
  made = []
  for n in range(count):
    made.append(model.with_name(f"out{n}.onnx"))
    made[-1].write_bytes(model.read_bytes())
  return made


@pytest.mark.parametrize("ahead", [True, False])
def test_the_original_runs_once(model, told, ahead):
  heard = []
  with CheckProcess() as checks:
    emit = events.at_stage(BEFORE, lambda: checks.begin(model), heard.append)
    emit(events.StageStarted("superopt"))
    assert checks._thread is None and not told
    if ahead:
      emit(events.StageStarted("tune"))
      checks._thread.join(60)
      assert told == ["onnxruntime on the original"]
    found = [check_written(model, out, 0, 60.0, checks) for out in results(model, 3)]
    pid = checks._child._worker.pid
  assert [f.said for f in found] == ["onnxruntime without the library: the same bits on one input"] * 3
  assert told.count("onnxruntime on the original") == 1 and len(heard) == 1 + ahead
  with pytest.raises(ProcessLookupError):
    os.kill(pid, 0)


def test_a_wrong_result_is_found(model):
  other = onnx.load(model)
  next(n for n in other.graph.node if n.op_type == "Tanh").op_type = "Sigmoid"
  onnx.save(other, out := model.with_name("out.onnx"))
  with CheckProcess() as checks:
    checks.begin(model)
    assert "differs" in check_written(model, out, 0, 60.0, checks).problem
    (same,) = results(model, 1)
    assert check_written(model, same, 0, 60.0, checks).ran


def test_an_original_that_does_not_run(tmp_path, model):
  """What fails ahead is said by the check, as without."""
  (bad := tmp_path / "bad.onnx").write_bytes(b"no model")
  with CheckProcess() as checks:
    checks.begin(bad)
    found = check_written(bad, model, 0, 60.0, checks)
  assert not found.problem and found.said.startswith("not checked in onnxruntime: onnxruntime on the orig")


def test_what_hangs_ahead_is_ended(model, monkeypatch):
  """The result has what is left of its seconds, and then nothing runs any more."""
  began, let_go = threading.Event(), threading.Event()

  class Hangs(child.Child):
    def ask(self, request, seconds):
      if request.written is None:
        self.begin()
        began.set()
        while self._worker._process.poll() is None and not let_go.is_set():
          time.sleep(0.01)
        return child.Ended("onnxruntime on the original", "the process was ended by SIGKILL")
      return super().ask(request, seconds)

  monkeypatch.setattr("mirage_onnx.rewrite.check_process.Child", Hangs)
  (out,) = results(model, 1)
  with CheckProcess() as checks:
    checks.begin(model)
    assert began.wait(30)
    start = time.monotonic()
    found = check_written(model, out, 0, 1.0, checks)
    assert 1.0 <= time.monotonic() - start < 20 and checks._thread is None
    assert found.said.startswith("not checked")
  let_go.set()
