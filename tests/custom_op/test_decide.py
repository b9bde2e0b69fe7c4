"""The rule that decides between kernels and bodies, and where its facts come from."""

import onnxruntime as ort
import pytest
from refused import refused

from mirage_onnx.custom_op import InferenceSession, launches, register
from mirage_onnx.errors import MirageError
from mirage_onnx.targets import ARCHITECTURES, TARGETS, suffixes_that_run, target_of_domain
from tests.custom_op.host import CPU, hosted


@pytest.mark.parametrize(
  ("capability", "target"),
  sorted({a.capability: a.suffix for a in ARCHITECTURES.values()}.items()),
)
def test_domain_follows_the_gpu(native, capability, target):
  major, minor = capability
  mode, domain, _ = native.decide(major=major, minor=minor)
  assert (mode, domain) == ("cuda", f"ai.mirage.v1.{target}")


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if t.name != "sm_90"], ids=lambda t: t.name)
def test_domains_of_the_gpu_itself(native, target):
  """What Python calls them (targets/names.py), so that kernels for one GPU are found on it."""
  major, minor = target.capability
  facts = {"major": major, "minor": minor, "name": target.gpu, "multiprocessors": target.multiprocessors}
  general, *own = (d.removeprefix("ai.mirage.v1.") for d in native.decide(**facts)[1].split())
  assert (*own, general) == suffixes_that_run(target)
  assert target_of_domain(own[0]).gpu == target.gpu
  assert native.decide(**facts | {"name": "?!", "multiprocessors": 0})[1] == f"ai.mirage.v1.{general}"


@pytest.mark.parametrize(
  ("facts", "reason"),
  [
    ({"ort_has_cuda": 0}, "this ONNX Runtime has no CUDAExecutionProvider"),
    ({"driver_error": "cannot open"}, "cannot open"),
    ({"devices": 0}, "the driver has no CUDA device"),
    ({"major": 7, "minor": 5}, "there are no kernels for compute capability 7.5"),
    (
      {"major": 7, "minor": 5, "name": "Tesla T4"},
      "there are no kernels for compute capability 7.5, Tesla T4",
    ),
    ({"major": 9, "minor": 1}, "there are no kernels for compute capability 9.1"),
  ],
)
def test_auto_steps_aside_where_cuda_insists(native, facts, reason):
  assert native.decide(ep="auto", **facts) == ("none", "", reason)
  if "ort_has_cuda" in facts:  # an explicit wish does not depend on ORT's list of providers
    assert native.decide(ep="cuda", **facts)[:2] == ("cuda", "ai.mirage.v1.sm90a")
  else:
    assert native.decide(ep="cuda", **facts) == ("refuse", "", reason)
    assert native.decide(ep="host", driver_given=1, **facts) == ("refuse", "", reason)


def test_none_host_and_nonsense(native):
  assert native.decide(ep="none")[0] == "none"
  assert native.decide(ep="host", driver_given=1, ort_has_cuda=0)[0] == "host"
  assert native.decide(ep="host") == (
    "refuse", "", "ai.mirage.ep=host needs a driver library in ai.mirage.driver"
  )  # fmt: skip
  for ep in ("", "CUDA", "gpu"):
    assert native.decide(ep=ep)[0] == "refuse"


def choice(options, capfd, monkeypatch):
  monkeypatch.setenv("MIRAGE_ONNX_VERBOSE", "1")
  options.register_custom_ops_library(__import__("os").environ["MIRAGE_ONNX_OPS_LIBRARY"])
  return capfd.readouterr().err.strip()


def test_config_entries_win_over_the_environment(driver, capfd, monkeypatch):
  monkeypatch.setenv("MIRAGE_ONNX_EP", "host")
  monkeypatch.setenv("MIRAGE_ONNX_DRIVER", "/nowhere.so")
  options = ort.SessionOptions()
  options.add_session_config_entry("ai.mirage.driver", driver)
  line = choice(options, capfd, monkeypatch)
  expected = f"ep=host domain=ai.mirage.v1.sm90a driver={driver} (device 0 is sm90a)"
  assert line == f"mirage-onnx: {expected}"
  options = ort.SessionOptions()
  options.add_session_config_entry("ai.mirage.ep", "none")
  assert "ep=none domain=- driver=-" in choice(options, capfd, monkeypatch)


def test_the_default_is_auto(capfd, monkeypatch):
  line = choice(ort.SessionOptions(), capfd, monkeypatch)
  assert line.startswith("mirage-onnx: ep=none") and "no CUDAExecutionProvider" in line


def test_nothing_is_printed_unasked(models, driver, capfd, vectors):
  session = hosted(models.add(), driver)
  session.run(None, vectors)
  assert capfd.readouterr() == ("", "")


def test_python_wrapper_reads_the_environment(models, vectors, driver, monkeypatch):
  monkeypatch.setenv("MIRAGE_ONNX_EP", "host")
  monkeypatch.setenv("MIRAGE_ONNX_DRIVER", driver)
  for ep, expected in ((None, 1), ("none", 0)):
    session = InferenceSession(models.add(), providers=CPU, ep=ep)
    session.run(None, vectors)
    assert launches(session) == {"node0": expected}


def test_registering_twice_is_harmless(models, vectors, driver):
  options = ort.SessionOptions()
  register(options, ep="host", driver=driver)
  register(options, ep="host", driver=driver)
  got = ort.InferenceSession(models.add(), options, providers=CPU).run(None, vectors)
  assert (got[0] == vectors["a"] + vectors["b"]).all()


@pytest.mark.parametrize(
  ("ep", "library", "message"),
  [
    ("host", None, "needs a driver library"),
    ("host", "/nowhere.so", r"cannot open the CUDA driver /nowhere\.so"),
    ("cuda", "/nowhere.so", r"cannot open the CUDA driver /nowhere\.so"),
    ("host", "not a driver", "has no cuInit"),
    ("host", "STANDIN_NO_LAUNCH", r"has no cuLaunchKernelEx \(CUDA 12\.0 or later is needed\)"),
  ],
)
def test_drivers_that_cannot_be_used(ops_library, old_driver, ep, library, message):
  path = {"not a driver": str(ops_library), "STANDIN_NO_LAUNCH": ""}.get(library, library)
  if library == "STANDIN_NO_LAUNCH":
    path = old_driver(library)
  with refused("SESSION_FAILED", message):
    register(ort.SessionOptions(), ep=ep, driver=path)


@pytest.mark.parametrize(
  ("variable", "value", "message"),
  [("STANDIN_DEVICES", "0", "no CUDA device"), ("STANDIN_CC", "75", "compute capability 7.5")],
)
def test_devices_that_cannot_be_used(models, driver, monkeypatch, variable, value, message):
  monkeypatch.setenv(variable, value)
  with pytest.raises(MirageError, match=message):
    hosted(models.add(), driver)


def test_a_driver_that_fails_to_start(old_driver, monkeypatch):
  monkeypatch.setenv("STANDIN_FAIL", "cuInit")
  path = old_driver("STANDIN_COPY")  # a file of its own: an opened driver is kept
  with pytest.raises(MirageError, match=r"cuInit of .* failed: CUDA_ERROR_UNKNOWN \(999\)"):
    register(ort.SessionOptions(), ep="host", driver=path)
  monkeypatch.delenv("STANDIN_FAIL")
  register(ort.SessionOptions(), ep="host", driver=path)
