"""End to end in onnxruntime: which path runs, and what the driver receives."""

import numpy as np
import onnxruntime as ort
import pytest

from mirage_onnx.custom_op import (
  Bundle,
  InferenceSession,
  InputPtr,
  Int32,
  Int64,
  Launch,
  OutputPtr,
  Variant,
  WorkspacePtr,
  const,
  dim,
  launches,
  register,
  write_bundle,
)
from tests.custom_op.host import CPU, hosted, run


def assert_adds(session, vectors):
  np.testing.assert_array_equal(run(session, vectors), vectors["a"] + vectors["b"])


# --- which path runs


def test_stock_onnxruntime_runs_the_body(models, vectors):
  assert_adds(ort.InferenceSession(models.add(), providers=CPU), vectors)


def test_model_without_bodies_needs_the_library(models, vectors, driver):
  model = models.add(function=False)
  with pytest.raises(Exception, match="MuGraph_0"):
    ort.InferenceSession(model, providers=CPU)
  assert_adds(hosted(model, driver), vectors)


@pytest.mark.parametrize("how", ["default", "registered"])
def test_without_a_gpu_the_body_runs(models, vectors, how):
  options = ort.SessionOptions()
  if how == "registered":
    register(options)  # what a C++ application does: registers the library, knows nothing else
  session = InferenceSession(models.add(nodes=2), options, providers=CPU)
  np.testing.assert_allclose(run(session, vectors), vectors["a"] + 2 * vectors["b"], rtol=1e-6)
  assert launches(session) == {"node0": 0, "node1": 0}


def test_auto_registers_nothing_where_ort_has_no_cuda(models, vectors, driver, driver_log):
  session = InferenceSession(models.add(), providers=CPU, ep="auto", driver=driver)
  run(session, vectors)
  assert launches(session) == {"node0": 0}
  assert driver_log("load") == []


def test_host_mode_runs_the_op(models, vectors, driver, driver_log):
  session = hosted(models.add(nodes=3), driver)
  for _ in range(2):
    got = run(session, vectors)
  np.testing.assert_allclose(got, vectors["a"] + 3 * vectors["b"], rtol=1e-6)
  assert launches(session) == {"node0": 2, "node1": 2, "node2": 2}
  assert len(driver_log("launch")) == 6


@pytest.mark.parametrize("ep", ["host", "cuda"])
def test_model_for_another_gpu_runs_the_body(models, vectors, driver, driver_log, monkeypatch, ep):
  monkeypatch.setenv("STANDIN_CC", "80")
  session = InferenceSession(models.add(), providers=CPU, ep=ep, driver=driver)
  assert_adds(session, vectors)
  assert launches(session) == {"node0": 0} and driver_log("load") == []
  # The same options and machine do run a model that was made for this GPU.
  if ep == "host":
    model = models.add(domain="ai.mirage.v1.sm80")
    session = InferenceSession(model, providers=CPU, ep=ep, driver=driver)
    run(session, vectors)
    assert launches(session) == {"node0": 1}


def test_a_line_says_that_no_kernel_is_for_this_gpu(models, vectors, driver, monkeypatch):
  monkeypatch.setenv("STANDIN_CC", "80")
  monkeypatch.setenv("STANDIN_NAME", "NVIDIA A100-SXM4-80GB")
  with pytest.warns(RuntimeWarning) as warned:
    session = InferenceSession(models.add(), providers=CPU, ep="host", driver=driver)
  (line,) = (str(w.message) for w in warned)
  assert "(device 0 is sm80, NVIDIA A100-SXM4-80GB; the model has kernels for sm90a): the original" in line
  assert_adds(session, vectors)


@pytest.mark.parametrize(("ep", "capability"), [("host", "90"), ("cuda", "80"), ("none", "80")])
@pytest.mark.filterwarnings("error")
def test_no_line_where_kernels_run_or_none_was_meant_to(models, driver, monkeypatch, ep, capability):
  """A session without the CUDA provider expects none."""
  monkeypatch.setenv("STANDIN_CC", capability)
  assert InferenceSession(models.add(), providers=CPU, ep=ep, driver=driver)


def test_model_of_a_later_plan_version_runs_the_body(models, vectors, driver):
  with pytest.warns(RuntimeWarning, match=r"device 0 is sm90a; .* kernels for ai\.mirage\.v2\.sm90a"):
    session = hosted(models.add(domain="ai.mirage.v2.sm90a"), driver)
  assert_adds(session, vectors)
  assert launches(session) == {"node0": 0}


def test_names_beyond_the_pool_run_the_body(models, vectors, driver):
  plans = [models.add_plan()] * 129
  for number, expected in ((127, 1), (128, 0)):
    model = models.add(models.bundle(*plans), number=number)
    session = hosted(model, driver)
    assert_adds(session, vectors)
    assert launches(session) == {"node0": expected}


def test_missing_cuda_provider_is_retried_with_the_bodies(models, vectors, driver):
  # Ops registered for CUDA in a session that has no CUDA provider: ORT finds no kernel.
  options = ort.SessionOptions()
  register(options, ep="cuda", driver=driver)
  with pytest.raises(Exception, match="Failed to find kernel|Could not find an implementation"):
    ort.InferenceSession(models.add(), options, providers=CPU)

  with pytest.warns(RuntimeWarning, match="the original operators run instead"):
    session = InferenceSession(models.add(), providers=CPU, ep="cuda", driver=driver)
  assert_adds(session, vectors)
  assert launches(session) == {"node0": 0}


def test_a_driver_that_does_not_take_the_image_runs_the_bodies(models, vectors, driver, monkeypatch):
  """As one that is older than the compiler of the model."""
  monkeypatch.setenv("STANDIN_FAIL", "cuLibraryLoadData")
  with pytest.warns(RuntimeWarning, match="the original operators run instead.*cuLibraryLoadData of cubin 0"):
    session = InferenceSession(models.add(), providers=CPU, ep="host", driver=driver)
  assert_adds(session, vectors)
  assert launches(session) == {"node0": 0}


@pytest.mark.parametrize(
  ("variable", "value", "suffix", "said"),
  [
    ("STANDIN_CC", "80", "sm90a", "CUDA device 0 of compute capability 8.0, but ai.mirage.v1.sm90a was"),
    (
      "STANDIN_NAME",
      "NVIDIA H200",
      "sm90a_h100pcie",
      "device 0, NVIDIA H200, but ai.mirage.v1.sm90a_h100pcie",
    ),
    ("STANDIN_PROCESSORS", "132", "sm90a_x114", "but ai.mirage.v1.sm90a_x114 was registered for device 0"),
  ],
)
def test_a_session_on_a_gpu_of_another_kind_runs_the_bodies(
  models, vectors, driver, monkeypatch, variable, value, suffix, said
):
  """Two kinds in one machine: what is registered is of device 0, the session is made on another one."""
  monkeypatch.setenv("STANDIN_NAME", "NVIDIA H100 PCIe")
  monkeypatch.setenv("STANDIN_PROCESSORS", "114")
  model = models.add(domain=f"ai.mirage.v1.{suffix}")
  options = ort.SessionOptions()
  session = InferenceSession(model, options, providers=CPU, ep="host", driver=driver)
  run(session, vectors)
  assert launches(session) == {"node0": 1}
  monkeypatch.setenv(variable, value)
  with pytest.warns(RuntimeWarning, match="the original operators run instead") as warned:
    session = InferenceSession(model, options, providers=CPU, ep="host", driver=driver)
  text = str(warned[0].message)
  assert said in text and "MIRAGE_DEVICE_MISMATCH" in text
  assert "put this one first in CUDA_VISIBLE_DEVICES" in text
  assert_adds(session, vectors)
  assert launches(session) == {"node0": 0}


def test_options_can_be_used_again_and_switched_off(models, vectors, driver):
  options = ort.SessionOptions()
  first = InferenceSession(models.add(), options, providers=CPU, ep="host", driver=driver)
  second = InferenceSession(models.add(), options, providers=CPU, ep="host", driver=driver)
  off = InferenceSession(models.add(), options, providers=CPU, ep="none")
  for session, times in ((first, 1), (second, 3), (off, 5)):
    for _ in range(times):
      run(session, vectors)
  assert [launches(s)["node0"] for s in (first, second, off)] == [1, 3, 0]


def test_callers_options_are_kept(models, driver, tmp_path):
  options = ort.SessionOptions()
  options.intra_op_num_threads = 1
  options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
  InferenceSession(models.add(), options, providers=CPU, ep="host", driver=driver)
  assert (tmp_path / "optimized.onnx").exists()
  assert options.intra_op_num_threads == 1


# --- what the driver receives


def test_the_driver_receives_what_the_plan_says(models, vectors, driver, driver_log):
  size = dim(0, 0) * 4
  args = (OutputPtr(0, size), InputPtr(0, size), InputPtr(1, size), Int32(dim(0, 0)))
  copy = (WorkspacePtr(const(64), size), InputPtr(1, size), Int64(dim(1, 0) * 4))
  grid = (dim(0, 0).ceildiv(32).ceildiv(8) * 8, const(2), const(3))
  plan = models.add_plan(
    workspace=dim(0, 0) * 4 + 64,
    variants=(
      Variant(
        (
          Launch(0, "standin_copy", (const(1),) * 3, 1, copy),
          Launch(0, "standin_add", grid, 32, args, 8, 100 * 1024, True),
        )
      ),
    ),
  )
  model = models.add(models.bundle(plan), workspace=True)
  session = hosted(model, driver)
  assert [line[1:] for line in driver_log("attribute")] == [["standin_add", "8", "102400", "device", "0"]]
  binding = session.io_binding()
  inputs = {n: ort.OrtValue.ortvalue_from_numpy(v) for n, v in vectors.items()}
  output = ort.OrtValue.ortvalue_from_numpy(np.zeros(100, np.float32))
  for name, value in inputs.items():
    binding.bind_ortvalue_input(name, value)
  binding.bind_ortvalue_output("c", output)
  session.run_with_iobinding(binding)

  first, second = driver_log("launch")
  assert first[1:-3] == "standin_copy grid 1 1 1 block 1 1 1 smem 0 stream 0 params".split()
  assert (
    second[1:-4]
    == ("standin_add grid 8 2 3 block 32 1 1 smem 102400 stream 0 cluster 8 1 1 pdl 1 params").split()
  )
  a, b = (str(inputs[name].data_ptr()) for name in "ab")
  assert second[-4:] == [str(output.data_ptr()), a, b, "100"]
  workspace, source, size = first[-3:]
  assert (source, size) == (b, "400")
  assert int(workspace) % 64 == 0 and workspace not in (a, b)
  np.testing.assert_array_equal(output.numpy(), vectors["a"] + vectors["b"])
  assert launches(session) == {"node0": 2}


def test_non_portable_clusters_are_asked_for(models, driver, driver_log):
  launch = Launch(0, "other", (const(16),) * 3, 1, (OutputPtr(0, const(0)),), 16)
  plan = models.add_plan(variants=(Variant((launch,)),))
  hosted(models.add(models.bundle(plan)), driver)
  assert driver_log("attribute") == [["attribute", "other", "14", "1", "device", "0"]]


def test_a_cubin_is_loaded_once_per_process(models, driver, driver_log):
  launch = Launch(0, "once", (const(1),) * 3, 1, (OutputPtr(0, const(0)),))
  plan = models.add_plan(variants=(Variant((launch,)),))
  cubins = (models.standin_cubin((plan,), once=[8]),)
  model = models.add(write_bundle(Bundle(cubins, (plan.to_text(),))), nodes=4)
  for _ in range(2):
    hosted(model, driver)
  assert len(driver_log("load")) == 1
  assert len(driver_log("function")) == 8  # every kernel object makes sure it is loaded


def test_the_first_true_guard_wins_and_zero_grids_are_skipped(models, driver, driver_log):
  def variant(layers, guard=None):
    size = dim(0, 0) * 4
    args = (OutputPtr(0, size), InputPtr(0, size), InputPtr(1, size), Int32(dim(0, 0)))
    return Variant((Launch(0, "standin_add", (dim(0, 0), const(layers), const(1)), 32, args),), guard)

  plan = models.add_plan(variants=(variant(1, dim(0, 0).le(4)), variant(2, dim(0, 0).le(8) * 2), variant(3)))
  session = hosted(models.add(models.bundle(plan)), driver)
  for n in (0, 3, 4, 5, 8, 9):
    feeds = {name: np.full(n, 2, np.float32) for name in "ab"}
    np.testing.assert_array_equal(run(session, feeds), np.full(n, 4, np.float32))
  layers = [line[line.index("grid") + 2] for line in driver_log("launch")]
  assert layers == ["1", "1", "2", "2", "3"]
  assert launches(session) == {"node0": 5}  # nothing was launched for n = 0
