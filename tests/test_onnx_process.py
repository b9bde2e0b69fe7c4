"""onnx's C++ on models that end its process, count for ever or take all memory: one line with a code."""

import os
import signal
import threading
import time
from math import inf

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from protos import new_node, typed

from mirage_onnx import onnx_process
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model, shapes
from mirage_onnx.onnx_process import Onnx

OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("theirs", 1)]


def model(nodes, inputs, outputs=("y",), functions=()):
  infos = [typed(name, kind, dims) for name, (kind, dims) in inputs.items()]
  made = [helper.make_empty_tensor_value_info(name) for name in outputs]
  graph = helper.make_graph(nodes, "g", infos, made)
  return helper.make_model(graph, opset_imports=OPSETS, ir_version=10, functions=list(functions))


def relu():
  return model([new_node("Relu", "x", "y")], {"x": (TensorProto.FLOAT, [2, 3])})


def deadly():
  """onnx 1.23 reads a type that is not there."""
  nodes = [new_node("Theirs", "x", "u", domain="theirs"), new_node("EyeLike", "u", "y", dtype=1)]
  return model(nodes, {"x": (TensorProto.FLOAT, [2, 2])})


def endless():
  """Functions that call the one before twice."""
  made = [helper.make_function("theirs", "F0", ["a"], ["b"], [new_node("Relu", "a", "b")], OPSETS)]
  for k in range(1, 28):
    calls = [
      new_node(f"F{k - 1}", "a", "c", domain="theirs"),
      new_node(f"F{k - 1}", "c", "b", domain="theirs"),
    ]
    made.append(helper.make_function("theirs", f"F{k}", ["a"], ["b"], calls, OPSETS))
  return model([new_node("F27", "x", "y", domain="theirs")], {"x": (TensorProto.FLOAT, [2])}, functions=made)


def large(count):
  """Vectors that onnx follows element by element: 50 MB each."""
  nodes = [new_node("Add", f"v{k} w", f"v{k + 1}") for k in range(count)]
  vectors = {"v0": (TensorProto.INT64, [1 << 18]), "w": (TensorProto.INT64, [1 << 18])}
  return model(nodes, vectors, [f"v{count}"])


def inferred(proto, *, followed=False, strict=True):
  return Onnx().inferred(proto, strict=strict, followed=followed)


def error_of(call):
  with pytest.raises(MirageError) as refused:
    call()
  return refused.value


def test_what_is_inferred_is_what_onnx_infers():
  found, problem = inferred(relu())
  assert problem == ""
  assert found == onnx.shape_inference.infer_shapes(relu(), check_type=True, strict_mode=True)


def test_what_contradicts_itself_is_told():
  node = new_node("Add", "x z", "y")
  found, problem = inferred(model([node], {"x": (TensorProto.FLOAT, [2]), "z": (TensorProto.FLOAT, [3])}))
  assert found is None and "Incompatible dimensions" in problem


def test_the_first_node_that_is_none():
  nodes = [new_node("Relu", "x", "a"), new_node("Relu", "a b", "c"), new_node("Softmax", "c", "y", axle=1)]
  place, why = Onnx().first_invalid(nodes, 20, 10)
  assert place == 1 and "Relu" in why
  assert Onnx().first_invalid(nodes[:1], 20, 10) is None
  assert Onnx().first_invalid([], 20, 10) is None


def test_a_process_that_ends_is_one_line_and_the_next_model_has_another():
  error = error_of(lambda: inferred(deadly()))
  assert error.line().startswith("MODEL_INVALID: onnx's shape inference of it ends the process by SIG")
  assert "\n" not in error.line()
  assert inferred(relu())[0] is not None


def test_loading_survives_what_no_list_names(monkeypatch):
  monkeypatch.setattr(shapes, "_CRASHING", frozenset())
  assert error_of(lambda: load_model(deadly())).code == "MODEL_INVALID"
  assert load_model(relu()).tensors["y"].shape == (2, 3)


def test_time_of_the_processor_is_limited():
  start = time.monotonic()
  error = error_of(lambda: inferred(endless()))
  assert error.code == "MODEL_LIMIT" and "shape inference of it takes more than 0.7 s" in error.detail
  assert time.monotonic() - start < onnx_process.ASLEEP_S
  assert inferred(relu())[0] is not None


def test_a_model_has_its_time_for_all_requests_together():
  one = Onnx()
  one.inferred(relu(), strict=True, followed=False)
  assert 0 <= one.seconds < 5.0  # of ten
  one.seconds = 10.0
  assert error_of(lambda: one.inferred(relu(), strict=True, followed=False)).code == "MODEL_LIMIT"


def test_memory_is_limited():
  """64 vectors are 3 GB. Where time is over first it is a limit, too."""
  try:
    found, problem = inferred(large(64), followed=True)
  except MirageError as error:
    assert error.code == "MODEL_LIMIT"
  else:
    assert found is None and problem


def test_what_is_dear_to_follow_is_not_followed(monkeypatch):
  monkeypatch.setattr(shapes, "LONG_VECTOR", 1 << 30)
  start = time.process_time()
  assert load_model(large(64)).tensors["v64"].shape == (1 << 18,)
  assert time.process_time() - start < 1


def test_threads_share_the_process():
  found = []

  def ask(k):
    dims = [k + 1, 3]
    own = model([new_node("Relu", "x", "y")], {"x": (TensorProto.FLOAT, dims)})
    made, _ = inferred(own)
    found.append([d.dim_value for d in made.graph.output[0].type.tensor_type.shape.dim] == dims)

  threads = [threading.Thread(target=ask, args=(k,)) for k in range(8)]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  assert found == [True] * 8


def test_a_fork_has_a_process_of_its_own():
  inferred(relu())
  first = onnx_process._SHARED.started().pid
  child = os.fork()
  if child == 0:
    try:
      right = inferred(relu())[0] is not None and onnx_process._SHARED.started().pid != first
      onnx_process._SHARED.end()
      os._exit(0 if right else 1)
    finally:
      os._exit(2)
  assert os.waitpid(child, 0)[1] == 0
  assert onnx_process._SHARED.started().pid == first
  assert inferred(relu())[0] is not None


def test_a_process_that_was_killed_is_started_again():
  inferred(relu())
  os.kill(onnx_process._SHARED.started().pid, signal.SIGKILL)
  error = error_of(lambda: inferred(relu()))
  assert error.code == "MODEL_LIMIT" and "SIGKILL" in error.detail
  assert inferred(relu())[0] is not None


def test_a_process_that_cannot_be_started(monkeypatch):
  monkeypatch.setattr(onnx_process, "_SHARED", onnx_process._Shared())
  monkeypatch.setattr(onnx_process, "WORKER", "there.is.none")
  assert error_of(lambda: inferred(relu())).code == "INTERNAL"
  monkeypatch.setattr("sys.executable", "/there/is/none")
  assert error_of(lambda: load_model(relu())).code == "INTERNAL"


def test_the_process_sleeps_no_longer_than_it_may(monkeypatch):
  monkeypatch.setattr(onnx_process, "_SHARED", onnx_process._Shared())
  monkeypatch.setattr(onnx_process, "ASLEEP", 0.0)
  monkeypatch.setattr(onnx_process, "ASLEEP_S", 0.2)
  os.kill(onnx_process._SHARED.started().pid, signal.SIGSTOP)
  assert error_of(lambda: inferred(relu())).code == "MODEL_LIMIT"


def test_weights_are_not_sent(monkeypatch):
  seen = []
  ask = onnx_process._Shared.ask

  def counted(self, parts, seconds):
    seen.append(sum(map(len, parts)))
    return ask(self, parts, seconds)

  monkeypatch.setattr(onnx_process._Shared, "ask", counted)
  proto = model([new_node("MatMul", "x w", "y")], {"x": (TensorProto.FLOAT, [4, 512])})
  proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((512, 512), np.float32), "w"))
  load_model(proto)
  assert seen and max(seen) < 2000


def test_one_thread_watches_all_requests():
  watch, done, threads = onnx_process._Watch(), [], threading.active_count()

  def until(seconds, what):
    watch.until(time.monotonic() + seconds, lambda: done.append(what))

  def waits_for_nothing():
    end = time.monotonic() + 60
    while watch._at < inf:
      assert time.monotonic() < end
      time.sleep(0.01)

  until(0.02, "late")
  waits_for_nothing()
  with watch._changed:  # it is forgotten before its time, however long this thread stands still
    until(0.02, "forgotten")
    watch.forget()
  waits_for_nothing()
  assert done == ["late"]
  until(1000, "far")
  until(0.02, "sooner than what it waits for")
  waits_for_nothing()
  assert done == ["late", "sooner than what it waits for"]
  assert threading.active_count() <= threads + 1
