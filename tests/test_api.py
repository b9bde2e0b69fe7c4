"""``mirage_onnx.optimize`` and ``verify`` as a user calls them."""

import copy
import hashlib
import inspect
import json
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from refused import refused
from small_models import Net, feeds, run_model

import mirage_onnx
from mirage_onnx import api, asked_targets, cli
from mirage_onnx.asked_targets import asked_target
from mirage_onnx.compiler import candidates
from mirage_onnx.custom_op.choose_path import NO_COMPILER
from mirage_onnx.custom_op.comparison import NO_KERNEL
from mirage_onnx.emulator import driver, toolchain
from mirage_onnx.errors import Exit, MirageError
from mirage_onnx.report.schema import check_report, check_verify_report
from mirage_onnx.target import H200
from mirage_onnx.tune import local
from tests.support.rewritten import chain, tampered, with_record

pytestmark = pytest.mark.usefixtures("searched_once")


def model():
  net = Net()
  y = net.MatMul(net.rms(net.input(8, 512), net.weight(512)), net.weight(512, 256))
  return net.model(net.Relu(y))


@pytest.fixture
def path(tmp_path):
  found = tmp_path / "in.onnx"
  onnx.save(model(), found)
  return found


def domains(found):
  return {n.domain for n in found.graph.node}


def test_model_in_memory():
  result = mirage_onnx.optimize(model(), target="h200", workers=1)
  check_report(result.report)
  assert (result.report["input"], result.report["output"]) == (None, None)
  assert result.report["target"] == "h200"
  assert result.report["seconds"] > 0
  assert domains(result.model) == {"ai.mirage.v1.sm90a"}


@pytest.mark.parametrize("kind", [str, Path])
def test_path_to_path(path, kind, tmp_path):
  before = path.read_bytes()
  out = tmp_path / "out.onnx"
  result = mirage_onnx.optimize(kind(path), kind(out), target="h200", workers=1)
  assert (result.report["input"], result.report["output"]) == (str(path), str(out))
  saved = onnx.load(out)
  assert domains(saved) == domains(result.model)
  values = feeds(model(), np.random.default_rng(0))
  assert run_model(saved, values)[0].tobytes() == run_model(model(), values)[0].tobytes()
  assert path.read_bytes() == before
  assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]


def test_no_output_writes_nothing(path, tmp_path):
  result = mirage_onnx.optimize(path, target="h200", workers=1)
  assert result.report["output"] is None
  assert [p.name for p in tmp_path.iterdir()] == ["in.onnx"]


def test_external_weights(tmp_path):
  """Weights outside the model file are read where they are needed, and found again."""
  source = tmp_path / "in.onnx"
  onnx.save(model(), source, save_as_external_data=True, size_threshold=64, location="in.data")
  out = tmp_path / "elsewhere" / "out.onnx"
  out.parent.mkdir()
  mirage_onnx.optimize(source, out, target="h200", workers=1)
  for p in tmp_path.glob("in.*"):
    p.unlink()
  values = feeds(model(), np.random.default_rng(0))
  assert run_model(onnx.load(out), values)[0].tobytes() == run_model(model(), values)[0].tobytes()


def test_targets(monkeypatch):
  monkeypatch.setattr(asked_targets, "present_target", lambda: None)
  assert mirage_onnx.optimize(model(), workers=1).report["target"] == "h200"
  for name, code in (("local", "NO_GPU"), ("h900", "TARGET_UNKNOWN")):
    with refused(code):
      mirage_onnx.optimize(model(), target=name)
  monkeypatch.setattr(asked_targets, "present_target", lambda: H200)
  monkeypatch.setattr(local, "usable_profile", lambda: H200)
  assert asked_target(None) == asked_target("local") == (H200, True)
  assert asked_target("h200") == (H200, False)


def test_refused_before_the_work(path, tmp_path, monkeypatch):
  def forbidden(*_):
    raise AssertionError("the search began")

  monkeypatch.setattr(api.pipeline, "run", forbidden)
  cases = [
    (path, path, "OUTPUT_IS_INPUT"),
    (path, tmp_path / "no" / "out.onnx", "OUTPUT_UNWRITABLE"),
    (tmp_path / "no.onnx", None, "FILE_MISSING"),
  ]
  for source, out, code in cases:
    with refused(code):
      mirage_onnx.optimize(source, out, target="h200")


@pytest.mark.parametrize(
  "options",
  [
    {"output": 3}, {"target": ["h200", "a100"]}, {"target": 90}, {"budget_s": "10m"}, {"margin": "x"},
    {"shapes": "batch=1"}, {"shapes": {"batch": -1}}, {"shapes": {"batch": "1,8"}}, {"journal": 1},
  ],
)  # fmt: skip
def test_arguments_of_other_types(options):
  with refused("OPTION_INVALID"):
    mirage_onnx.optimize(model(), **{"target": "h200", **options})
  with refused("OPTION_INVALID", "region=3 is of type int, not a text"):
    mirage_onnx.explain(model(), 3, target="h200")


def test_a_model_as_bytes():
  found = mirage_onnx.inspect(model().SerializeToString(), target="h200", shapes={})
  assert found.regions == mirage_onnx.inspect(model(), target="h200").regions
  with refused("MODEL_INVALID", "no serialized onnx.ModelProto"):
    mirage_onnx.inspect(b"model.onnx", target="h200")


def test_without_onnxruntime_nothing_is_written_unchecked(path, tmp_path, monkeypatch):
  monkeypatch.setattr(api, "find_spec", lambda name: None)
  out = tmp_path / "out.onnx"
  with refused("ORT_MISSING", "--no-check"):
    mirage_onnx.optimize(path, out, target="h200")
  assert not out.exists()
  assert (
    mirage_onnx.optimize(path, out, target="h200", workers=1, check=False).report["checked"] == "not checked"
  )


def test_an_optimized_model_is_not_optimized_again():
  """Where there still is a region left to replace."""
  again = mirage_onnx.optimize(model(), target="h200", workers=1).model
  name = again.graph.output[0].name
  for op in ("Exp", "Tanh", "Abs", "Sigmoid", "Exp", "Tanh"):
    again.graph.node.add(op_type=op, name=f"n_{name}", input=[name], output=[f"{name}_"])
    name += "_"
  again.graph.output[0].name = name
  with refused("OPTION_INVALID", "already optimized"):
    mirage_onnx.optimize(again, target="h200", workers=1)


def test_verify(path, tmp_path):
  out = tmp_path / "out.onnx"
  mirage_onnx.optimize(path, out, target="h200", workers=1)
  assert api.verify(path, out).passed
  with refused("FILE_MISSING"):
    api.verify(path, tmp_path / "no.onnx")


def test_pairs_of_models_in_memory(path, tmp_path):
  """verify, bench and diff take what optimize takes; a path and a model in memory are compared, too."""
  original = onnx.load(path)
  result = mirage_onnx.optimize(original, target="h200", workers=1)
  assert mirage_onnx.verify(original, result.model, emulate=False).passed
  report = mirage_onnx.diff(path, result.model)
  assert (report.a, report.b) == (str(path), "the model in memory") and len(report.nodes) == 1
  row, *_ = mirage_onnx.bench(original, result.model, seconds=0.5, provider="cpu").rows
  assert row.a_us > 0 and row.b_us > 0
  assert str(result).startswith("whole model: ") and "regions: 1 replaced in 1 place (" in str(result)
  for function in (mirage_onnx.verify, mirage_onnx.bench, mirage_onnx.diff):
    with pytest.raises(MirageError, match="of type int, not a path"):
      function(original, 3)
  with pytest.raises(MirageError, match="a margin of 2"):
    mirage_onnx.optimize(original, target="h200", margin=2)


def test_verify_notices_a_difference(path, tmp_path):
  changed = onnx.load(path)
  changed.graph.node[-1].op_type = "Abs"
  other = tmp_path / "other.onnx"
  onnx.save(changed, other)
  assert not api.verify(path, other).passed


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """A model of three regions and its rewritten form."""
  made, folder = chain(), tmp_path_factory.mktemp("pair")
  onnx.save(made.original, folder / "a.onnx")
  onnx.save(made.model, folder / "b.onnx")
  return made, folder / "a.onnx", folder / "b.onnx"


@pytest.fixture
def no_gpu(monkeypatch):
  monkeypatch.setattr("mirage_onnx.custom_op.choose_path.present_target", lambda: None)


def test_verify_emulates_where_there_is_no_gpu(pair, no_gpu):
  _, a, b = pair
  found = api.verify(a, b)
  assert found.passed and found.note == ""
  assert {n.path for n in found.nodes} == {"emulated"}
  assert found.source.endswith("byte for byte")
  check_verify_report(found.to_dict())
  bodies = api.verify(a, b, emulate=False)
  assert {n.path for n in bodies.nodes} == {"body"} and bodies.note == NO_KERNEL


def test_verify_given_inputs(pair, no_gpu, tmp_path):
  made, a, b = pair
  values = feeds(made.original, np.random.default_rng(0))
  np.savez(tmp_path / "inputs.npz", **values)
  for given in (tmp_path / "inputs.npz", str(tmp_path / "inputs.npz"), values):
    found = api.verify(a, b, inputs=given)
    assert found.passed and found.inputs == ("given",)
    assert len(found.regions) == 3
  with refused("INPUTS_INVALID"):
    api.verify(a, b, inputs={})


def test_verify_without_a_compiler(pair, no_gpu, monkeypatch):
  _, a, b = pair
  monkeypatch.setenv("CXX", "/nowhere/g++")
  toolchain.host_compiler.cache_clear()
  driver.open_driver.cache_clear()
  try:
    found = api.verify(a, b)
    with pytest.raises(MirageError) as caught:
      api.verify(a, b, emulate=True)
  finally:
    toolchain.host_compiler.cache_clear()
    driver.open_driver.cache_clear()
  assert found.passed and found.note == f"{NO_KERNEL}; {NO_COMPILER}"
  assert caught.value.code == "HOST_COMPILER_MISSING"


def forged(bundle):
  """One instruction of one image is another, every hash is right again, and another NVRTC is named."""
  cubins = list(bundle.cubins)
  code = bytearray(cubins[0])
  sections = struct.unpack_from("<Q", code, 40)[0]
  for i in range(struct.unpack_from("<H", code, 60)[0]):
    _, kind, flags, _, at, size = struct.unpack_from("<IIQQQQ", code, sections + 64 * i)
    if kind == 1 and flags & 4:  # PROGBITS, executable
      code[at + size // 2] ^= 1
  cubins[0] = bytes(code)
  records = copy.deepcopy(bundle.provenance)
  records[0]["nvrtc"] = "1.2.3"
  for kernel in records[0]["kernels"]:
    kernel["image_sha256"] = hashlib.sha256(cubins[0]).hexdigest()
  return replace(bundle, cubins=tuple(cubins), provenance=records)


def test_an_image_that_nothing_looked_at_does_not_pass(pair, no_gpu, tmp_path, capsys):
  """The emulator runs the generated text, so all results are right."""
  made, a, _ = pair
  b = tmp_path / "b.onnx"
  onnx.save(tampered(made.model, forged), b)
  for emulate in (True, False):
    found = api.verify(a, b, emulate=emulate)
    assert all(o.passed for o in found.outputs) and not found.passed
    assert "kernels compiled by NVRTC 1.2.3 were not compiled again" in found.unverified
    check_verify_report(found.to_dict())
  assert cli.main(["verify", str(a), str(b)]) == Exit.CHECK_FAILED
  text = " ".join(capsys.readouterr().err.split())
  assert "not verified: images that did not run on a GPU were not compared" in text and "FAILED" in text


def test_without_nvrtc_nothing_passes_but_what_ran(pair, no_gpu, monkeypatch):
  def missing(*_, **__):
    raise MirageError("COMPILER_MISSING", "no libnvrtc")

  _, a, b = pair
  monkeypatch.setattr("mirage_onnx.custom_op.provenance.compile_cubin", missing)
  found = api.verify(a, b)
  assert not found.passed and "no libnvrtc" in found.unverified
  on_gpu = replace(
    found, passed=True, unverified="", nodes=tuple(replace(n, path="kernel") for n in found.nodes)
  )
  assert on_gpu.with_source("", "no libnvrtc").passed
  some = (replace(on_gpu.nodes[0], launches=0), *on_gpu.nodes[1:])
  assert not replace(on_gpu, nodes=some).with_source("", "no libnvrtc").passed


def graph_token(record):
  record["ugraph"] = record["ugraph"].replace("max %0 %15", "min %0 %15")


def number(record):
  record["params"][0] = record["params"][0].replace("warps=1", "warps=4")


def digest(record):
  record["kernels"][0]["sha256"] = record["kernels"][0]["sha256"][::-1]


@pytest.mark.parametrize("corrupt", [graph_token, number, digest])
@pytest.mark.parametrize("how", [[], ["--emulate", "--json"], ["--no-emulate"]])
def test_one_corrupted_token_fails_the_command(pair, no_gpu, tmp_path, capsys, corrupt, how):
  made, a, _ = pair
  onnx.save(tampered(made.model, with_record(0, corrupt)), tmp_path / "b.onnx")
  assert cli.main(["verify", str(a), str(tmp_path / "b.onnx"), *how]) == Exit.CHECK_FAILED
  out, err = capsys.readouterr()
  (line,) = err.splitlines()
  assert line.startswith(f"error: SOURCE_MISMATCH: node '{made.nodes[0]}': ")
  assert made.compiled[0].sources[0].name in line
  assert json.loads(out)["error"]["code"] == "SOURCE_MISMATCH" if out else "--json" not in how


def test_one_token_of_the_generator_fails_the_command(pair, no_gpu, capsys, monkeypatch):
  made, a, b = pair
  real = candidates.emit_kernel

  def emit(*args):
    source = real(*args)
    return replace(source, text=source.text.replace("= expf(", "= exp2f(", 1))

  monkeypatch.setattr(candidates, "emit_kernel", emit)
  assert cli.main(["verify", str(a), str(b)]) == Exit.CHECK_FAILED
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: SOURCE_MISMATCH: node '{made.nodes[1]}': kernel ")


def test_public_names():
  """Also after the subpackages are imported, which could hide a function of the same name."""
  for name in mirage_onnx.__all__:
    value = getattr(mirage_onnx, name)
    assert not isinstance(value, ModuleType), name


def test_public_functions_say_and_type_all_that_they_take():
  functions = {name: getattr(mirage_onnx, name) for name in mirage_onnx.__all__}
  functions["verify"] = api.verify
  for name, function in functions.items():
    if inspect.isfunction(function):
      taken = [p for p in inspect.signature(function).parameters if p != "kwargs"]
      assert set(taken) <= set(function.__annotations__) and "return" in function.__annotations__, name
      said = set(re.findall(r"``(\w+)[`=]|^ +(\w+): ", inspect.getdoc(function) or "", re.M))
      assert [p for p in taken if not any(p in pair for pair in said)] == [], name


#: In a process of its own, so that everything is imported for the first time.
OPTIMIZES = """
import sys, threading
import mirage_onnx
errors, together = [], threading.Barrier(4)
def work(i):
  together.wait()
  try:
    mirage_onnx.optimize(sys.argv[1], f"{sys.argv[2]}/{i}.onnx", target="h200")
  except BaseException as error:
    errors.append(repr(error))
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(errors)
"""


@pytest.mark.slow  # four searches: 8 s of processor
def test_several_threads_optimize_at_once(path, tmp_path):
  command = [sys.executable, "-c", OPTIMIZES, str(path), str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.stdout == "[]\n", done.stdout + done.stderr[-2000:]
  assert len({(tmp_path / f"{i}.onnx").read_bytes() for i in range(4)}) == 1
