"""Sessions with ``emulate=True``: kernels run, without a GPU, or a line says why not."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data

import mirage_onnx
from mirage_onnx.custom_op import emulation
from mirage_onnx.emulator import driver, toolchain
from mirage_onnx.errors import MirageError
from tests.support.rewritten import any_rows, tampered, with_plan

CPU = ["CPUExecutionProvider"]


def emulated(model, **options):
  return mirage_onnx.InferenceSession(model.SerializeToString(), emulate=True, **options)


def inputs(seed):
  return {"x0": np.random.default_rng(seed).standard_normal((8, 64)).astype(np.float16)}


def want(chain, seed):
  session = ort.InferenceSession(chain.original.SerializeToString(), providers=CPU)
  return session.run(None, inputs(seed))[0].astype(np.float64)


def error(got, reference):
  return float(np.linalg.norm(got - reference) / np.linalg.norm(reference))


def refusal(model, **options):
  with pytest.raises(MirageError) as caught:
    emulated(model, **options)
  return caught.value


def test_every_node_runs_its_kernels(chain):
  session = emulated(chain.model)
  (got,) = session.run(None, inputs(0))
  assert error(got, want(chain, 0)) < 2e-3
  assert mirage_onnx.launches(session) == dict.fromkeys(chain.nodes, 1)
  assert [o.name for o in session.get_outputs()] == [o.name for o in chain.model.graph.output]


def test_sessions_of_different_kernels_do_not_meet(chain):
  """The same images in the custom-op library's cache, other text behind them."""
  wrong = chain.recompiled(1, "const[-1/2]", "const[-2]")
  right, other = emulated(chain.model), emulated(chain.using({1: wrong}))
  for session, near in ((right, True), (other, False), (right, True)):
    assert (error(session.run(None, inputs(1))[0], want(chain, 1)) < 2e-3) is near


def test_several_threads_run_one_session(chain):
  session, other = emulated(chain.model), emulated(chain.model)
  expected = [session.run(None, inputs(seed))[0] for seed in range(4)]
  wrong = []

  def work(seed):
    for s in (session, other) * 3:
      try:
        (got,) = s.run(None, inputs(seed))
      except Exception as failure:
        wrong.append(failure)
      else:
        if got.tobytes() != expected[seed].tobytes():
          wrong.append(seed)

  with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
  assert not wrong
  assert set(mirage_onnx.launches(session).values()) == {4 + 12}


def test_sessions_come_and_go_in_threads(chain):
  """One that went took the stacks on which another ran; the thread sanitizer does not know such stacks."""
  data, end = chain.model.SerializeToString(), time.monotonic() + 3.0
  expected = [emulated(chain.model).run(None, inputs(seed))[0] for seed in range(3)]

  def work(seed):
    made = 0
    while time.monotonic() < end or not made:
      session = mirage_onnx.InferenceSession(data, emulate=True)
      (got,) = session.run(None, inputs(seed))
      assert got.tobytes() == expected[seed].tobytes()
      assert set(mirage_onnx.launches(session).values()) == {1}
      made += 1
      del session
    return made

  with ThreadPoolExecutor(3) as pool:
    assert sum(pool.map(work, range(3))) >= 3


def test_sessions_are_forgotten(chain):
  gc.collect()
  before = len(emulation._sessions._ranges)
  session = emulated(chain.model)
  assert len(emulation._sessions._ranges) == before + 1
  del session
  gc.collect()
  assert len(emulation._sessions._ranges) == before


def fp16_between_fp32_operators(chain):
  """Our nodes between operators that have no fp16 kernel in the CPU provider."""
  model = onnx.ModelProto()
  model.CopyFrom(chain.model)
  graph = model.graph
  (x,), (y,) = graph.input, graph.output
  for node in graph.node:
    node.input[:] = ["erf" if i == x.name else i for i in node.input]
    node.output[:] = ["ours" if o == y.name else o for o in node.output]
  graph.value_info.append(helper.make_tensor_value_info("ours", TensorProto.FLOAT16, [8, 64]))
  graph.node.insert(0, helper.make_node("Erf", [x.name], ["erf"]))
  graph.node.append(helper.make_node("Erf", ["ours"], [y.name]))
  for info in graph.value_info:
    if info.name in (y.name, "erf"):
      graph.value_info.remove(info)
  return model


def test_nodes_keep_their_types_between_fp32_operators(chain):
  model = fp16_between_fp32_operators(chain)
  session = emulated(model)
  (got,) = session.run(None, inputs(0))
  bodies = mirage_onnx.InferenceSession(model.SerializeToString(), providers=CPU, ep="none")
  assert error(got, bodies.run(None, inputs(0))[0].astype(np.float64)) < 5e-3
  assert set(mirage_onnx.launches(session).values()) == {1}


def test_without_anchors_onnxruntime_takes_them_along(chain, monkeypatch):
  """What the anchors are for. When this fails, onnxruntime has changed, and they can go."""
  monkeypatch.setattr(emulation, "_anchor", lambda *_: None)
  with pytest.raises(Exception, match="is declared f32, the plan has f16"):
    emulated(fp16_between_fp32_operators(chain))


def test_external_weights(chain, tmp_path):
  model = chain.model
  convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
  path = tmp_path / "model.onnx"
  onnx.save(model, path)
  session = mirage_onnx.InferenceSession(path, emulate=True)
  assert error(session.run(None, inputs(0))[0], want(chain, 0)) < 2e-3


def test_a_model_without_custom_nodes(chain):
  session = emulated(chain.original)
  assert error(session.run(None, inputs(0))[0], want(chain, 0)) == 0
  assert mirage_onnx.launches(session) == {}


@pytest.mark.parametrize(
  "options",
  [
    {"ep": "host"},
    {"driver": "libcuda.so.1"},
    {"providers": ["CUDAExecutionProvider"]},
    {"providers": [("CUDAExecutionProvider", {}), "CPUExecutionProvider"]},
  ],
)
def test_what_excludes_emulation(chain, options):
  assert refusal(chain.model, **options).code == "OPTION_INVALID"


def test_options_that_are_registered_already(chain):
  options = ort.SessionOptions()
  emulated(chain.model, sess_options=options)
  assert refusal(chain.model, sess_options=options).code == "OPTION_INVALID"


def renamed(model, old, new):
  for owner in (*model.graph.node, *model.functions, *model.opset_import):
    owner.domain = owner.domain.replace(old, new)
  return model


@pytest.mark.parametrize("domain", ["ai.mirage.v2.sm90a", "ai.mirage.v1.sm70"])
def test_other_domains_are_not_emulated(chain, domain):
  found = refusal(renamed(chain.model, "ai.mirage.v1.sm90a", domain))
  assert found.code == "NOT_EMULATED"
  assert chain.nodes[0] in found.detail and domain in found.detail


def test_a_node_that_would_run_its_body_is_named(chain, monkeypatch):
  """The library leaves names that it does not know to the bodies; here it does not know them."""
  model = chain.model
  known = emulation.prepare(model.SerializeToString())
  renamed(model, "ai.mirage.v1.sm90a", "ai.mirage.v1.sm90b")
  made = emulation.Emulation(model.SerializeToString(), None, known.kernels, known.nodes)
  monkeypatch.setattr(emulation, "prepare", lambda _model, _folder=None: made)
  found = refusal(model)
  assert found.code == "NOT_EMULATED"
  assert all(node in found.detail for node in chain.nodes)


def test_no_compiler(chain, monkeypatch, tmp_path):
  monkeypatch.setattr(toolchain, "cache_folder", lambda: tmp_path)
  monkeypatch.setenv("CXX", "/nowhere/g++")
  toolchain.host_compiler.cache_clear()
  driver.open_driver.cache_clear()
  try:
    found = refusal(chain.model)
  finally:
    toolchain.host_compiler.cache_clear()
    driver.open_driver.cache_clear()
  assert found.code == "HOST_COMPILER_MISSING"
  assert "install g++" in found.line() and "\n" not in found.line()


def test_a_damaged_bundle(chain):
  model = chain.model
  (bundle,) = (t for t in model.graph.initializer if t.name == "mirage.bundle")
  bundle.raw_data = bundle.raw_data[:-1] + bytes([bundle.raw_data[-1] ^ 1])
  assert refusal(model).code == "BUNDLE_INVALID"


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    # 8 KiB where 1 KiB is read, and the reverse; what the plan says is touched is too little
    ("args i0#1024 i1#8192", "args i1#1024 i0#1024", ""),
    ("o0#1024", "i0#1024", ""),
    ("o0#1024", "i64:7", "'o0' is no pointer"),
  ],
)
def test_a_wrong_launch_names_node_and_kernel(chain, old, new, said):
  session = emulated(tampered(chain.model, with_plan(0, old, new)))
  with pytest.raises(Exception, match="EmulationError") as caught:
    session.run(None, inputs(0))
  text = str(caught.value)
  assert chain.nodes[0] in text and chain.compiled[0].sources[0].name in text and said in text


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    ("block 32", "block 64", "is compiled for 32 threads, the plan has 64"),
    ("cluster 1", "cluster 2", "is compiled for 1 blocks in a cluster, the plan has 2"),
    (" o0#1024", "", "does not take 2 arguments"),
    ("o0#1024", "i32:7", "argument 2 of kernel"),
  ],
)
def test_a_launch_that_the_image_is_not_for_makes_no_session(chain, old, new, said):
  with pytest.raises(Exception, match=said) as caught:
    emulated(tampered(chain.model, with_plan(0, old, new)))
  text = str(caught.value)
  assert chain.nodes[0] in text and chain.compiled[0].sources[0].name in text


def test_sizes_that_only_a_run_knows():
  made = any_rows()
  (x,) = (v.name for v in made.original.graph.input)
  session, stock = emulated(made.model), made.original.SerializeToString()
  reference = ort.InferenceSession(stock, providers=CPU)
  for rows in (1, 5, 0, 33):
    feeds = {x: np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float16)}
    (got,), (want,) = (s.run(None, feeds) for s in (session, reference))
    np.testing.assert_allclose(got, want, rtol=2e-3)
  assert list(mirage_onnx.launches(session).values()) == [3]
  for old, new, said in (
    (" i32:", " i64:", "has 4 bytes, the plan passes 8"),
    (" i32:", " w:0#0 i32:", ""),
    (" o0#", " i0#", "read-only"),
    ("grid d0.0 ", "grid 9 ", ""),
  ):
    try:
      wrong = emulated(tampered(made.model, with_plan(0, old, new)))
      wrong.run(None, {x: np.ones((5, 64), np.float16)})
    except Exception as error:
      assert said in str(error)
    else:
      raise AssertionError(new)
