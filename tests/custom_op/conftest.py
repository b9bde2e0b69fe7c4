"""Builds the custom-op library and the driver stand-in once, and models that use them."""

import ctypes
import fcntl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from cubin_images import Compiled, cubin_image
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed

from mirage_onnx.custom_op import (
  Bundle,
  InputPtr,
  InputSpec,
  Int32,
  Launch,
  OutputPtr,
  OutputSpec,
  Plan,
  Variant,
  const,
  dim,
  read_bundle,
  write_bundle,
)
from mirage_onnx.custom_op.node_digest import ATTRIBUTE, node_digest
from mirage_onnx.errors import MirageError
from tests.support.rewritten import chain as make_chain

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "cpp" / "ort_custom_ops"
MAX_RANK = 8


def compile_shared(output, *arguments):
  """Runs g++ unless another test process has already made the file."""
  with output.with_suffix(".lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not output.exists():
      partial = output.with_suffix(".partial")
      command = ["g++", "-std=c++17", "-shared", "-fPIC", *arguments, "-o", str(partial)]
      subprocess.run(command, check=True, capture_output=True, text=True)
      partial.rename(output)
  return output


@pytest.fixture(scope="session")
def build_dir(tmp_path_factory):
  base = tmp_path_factory.getbasetemp()
  return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def ops_library(build_dir):
  build = build_dir / "ops"
  library = build / "libmirage_onnx_ops.so"
  with (build_dir / "ops.lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not library.exists():
      configure = ["cmake", "-S", str(SOURCES), "-B", str(build)]
      subprocess.run(configure, check=True, capture_output=True, text=True)
      compile_all = ["cmake", "--build", str(build), "--parallel", "2"]
      subprocess.run(compile_all, check=True, capture_output=True, text=True)
  return library


@pytest.fixture(autouse=True)
def _environment(ops_library, monkeypatch):
  """Every test uses the library that was just built, and no setting of the caller's shell."""
  for name in ("EP", "DRIVER", "VERBOSE"):
    monkeypatch.delenv(f"MIRAGE_ONNX_{name}", raising=False)
  for name in ("LOG", "CC", "DEVICES", "FAIL", "SHARED", "CLUSTERS"):
    monkeypatch.delenv(f"STANDIN_{name}", raising=False)
  monkeypatch.setenv("MIRAGE_ONNX_OPS_LIBRARY", str(ops_library))


@pytest.fixture(scope="session")
def driver(build_dir):
  return str(compile_shared(build_dir / "standin.so", str(HERE / "standin_driver.cc")))


@pytest.fixture(scope="session")
def old_driver(build_dir):
  """Builds a stand-in without some entry point, by its compile definition."""

  def build(definition):
    source = str(HERE / "standin_driver.cc")
    path = build_dir / f"{definition.lower()}.so"
    return str(compile_shared(path, source, f"-D{definition}"))

  return build


@pytest.fixture
def driver_log(tmp_path, monkeypatch):
  """Calls that the stand-in saw, by their first word, each split into words."""
  path = tmp_path / "driver.log"
  path.touch()
  monkeypatch.setenv("STANDIN_LOG", str(path))

  def read(kind):
    lines = [line.split() for line in path.read_text().splitlines()]
    return [words for words in lines if words[0] == kind]

  return read


@dataclass(frozen=True)
class Native:
  handle: ctypes.CDLL

  def eval(self, text, shapes):
    """(0 value, 1 not parsed, 2 not evaluated), the value, the reason."""
    ranks = (ctypes.c_uint32 * max(1, len(shapes)))(*(len(s) for s in shapes))
    flat = [d for s in shapes for d in (*s, *([0] * (MAX_RANK - len(s))))]
    dims = (ctypes.c_int64 * max(1, len(flat)))(*flat)
    value, error, data = ctypes.c_int64(), ctypes.create_string_buffer(512), text.encode()
    code = self.handle.mirage_test_eval(
      data, ctypes.c_size_t(len(data)), ranks, ctypes.c_size_t(len(shapes)), dims,
      ctypes.byref(value), error, ctypes.c_size_t(512),
    )  # fmt: skip
    return code, value.value, error.value.decode()

  def plan(self, text):
    """ "" when the C++ parser accepts the plan, else its reason."""
    error = ctypes.create_string_buffer(512)
    size = ctypes.c_size_t
    self.handle.mirage_test_plan(text, size(len(text)), error, size(512))
    return error.value.decode(errors="replace")

  def bundle(self, data, kind=0, number=0):
    """ "" when the C++ reader takes the bundle and finds the section (kind 0: none), else its reason."""
    error = ctypes.create_string_buffer(512)
    size, u32 = ctypes.c_size_t, ctypes.c_uint32
    self.handle.mirage_test_bundle(data, size(len(data)), u32(kind), u32(number), error, size(512))
    return error.value.decode(errors="replace")

  def node(self, data, number=0, stated="any"):
    """(accepted, the digest of a node that runs this plan of a bundle, else why it is refused)"""
    text = ctypes.create_string_buffer(512)
    size = ctypes.c_size_t
    refused = self.handle.mirage_test_node(
      data, size(len(data)), ctypes.c_uint32(number), stated.encode(), text, size(512)
    )
    return not refused, text.value.decode(errors="replace")

  def image(self, data):
    """Kernels of an image, a line each, or the reason of its refusal: (accepted, text)."""
    text = ctypes.create_string_buffer(4096)
    refused = self.handle.mirage_test_image(data, ctypes.c_size_t(len(data)), text, ctypes.c_size_t(4096))
    return not refused, text.value.decode(errors="replace")

  def sha256(self, data):
    out = ctypes.create_string_buffer(32)
    self.handle.mirage_test_sha256(data, ctypes.c_size_t(len(data)), out)
    return out.raw

  def decide(self, **facts):
    """Mode, domain and reason of the decision rule."""
    known = {
      "ep": "auto", "driver_given": 0, "ort_has_cuda": 1, "driver_error": "",
      "devices": 1, "major": 9, "minor": 0, "name": "", "multiprocessors": 0,
    } | facts  # fmt: skip
    values = [v.encode() if isinstance(v, str) else int(v) for v in known.values()]
    domain, reason = ctypes.create_string_buffer(256), ctypes.create_string_buffer(256)
    mode = self.handle.mirage_decide_domain(*values, domain, reason, ctypes.c_size_t(256))
    return (
      ("none", "cuda", "host", "refuse")[mode],
      domain.value.decode(),
      reason.value.decode(),
    )


@pytest.fixture(scope="session")
def native(ops_library):
  return Native(ctypes.CDLL(str(ops_library)))


def add_plan(**changes):
  """out = a + b over float vectors of any length, by the stand-in's standin_add."""
  size = dim(0, 0) * 4
  args = (OutputPtr(0, size), InputPtr(0, size), InputPtr(1, size), Int32(dim(0, 0)))
  launch = Launch(0, "standin_add", (dim(0, 0).ceildiv(32), const(1), const(1)), 32, args)
  fields = {
    "inputs": (InputSpec("f32", (None,)),) * 2,
    "outputs": (OutputSpec("f32", (dim(0, 0),)),),
    "variants": (Variant((launch,)),),
  }
  return Plan(**(fields | changes))


def digest_of(data, number):
  """What a node states that runs this plan of a bundle; of one that cannot be read, anything."""
  try:
    return node_digest(read_bundle(data), number)
  except MirageError:
    return "0" * 64


@dataclass(frozen=True)
class Models:
  #: Makes the cubins of each test its own: the library keeps a loaded cubin and its kernels'
  #: limits as long as the process lives, so a test would see what an earlier one had set.
  tag: str
  add_plan = staticmethod(add_plan)

  def standin_cubin(self, plans=(), **kernels):
    """An image for the stand-in: kernel names with the sizes of their parameters.

    They are compiled for the threads and clusters with which ``plans`` launch them.
    """
    launches = {k.kernel: k for plan in plans for v in plan.variants for k in v.launches}
    compiled = {}
    for name, sizes in kernels.items():
      used = launches.get(name)
      shape = (used.block, used.cluster) if used else (32, 1)
      compiled[name] = Compiled(tuple(sizes), *shape)
    lines = [f"{name} {' '.join(map(str, sizes))}\n" for name, sizes in kernels.items()]
    text = "".join(("STANDIN\n", *lines, "end\n", self.tag)).encode() + b"\0"
    return cubin_image(compiled, {".standin": text})

  def bundle(self, *plans):
    texts = tuple(plan if isinstance(plan, str) else plan.to_text() for plan in plans)
    known = tuple(plan for plan in plans if not isinstance(plan, str))
    cubin = self.standin_cubin(known, standin_add=[8, 8, 8, 4], standin_copy=[8, 8, 8], other=[8])
    return write_bundle(Bundle((cubin,), texts, ({"kernel": "test"},)))

  def add(
    self,
    bundle=None,
    *,
    domain="ai.mirage.v1.sm90a",
    nodes=1,
    workspace=False,
    number=0,
    function=True,
    digest=None,
  ):
    """A chain y = a + b + b + ... of MuGraph nodes ``node0``, ``node1``, ...

    The function body is the ONNX Add, so both paths give the same values. ``digest``: what the nodes
    state, if it is not that of the bundle; "": they have no such attribute.
    """
    data = self.bundle(add_plan()) if bundle is None else bundle
    name = f"MuGraph_{number}"
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    extra = ["workspace"] if workspace else []
    body = [new_node("Add", "x y", "z")]
    if workspace:
      empty = helper.make_tensor("empty", TensorProto.UINT8, [1], [0])
      shape = helper.make_tensor("shape", TensorProto.INT64, [1], [0])
      body += [
        new_node("Constant", "", "shape", value=shape),
        helper.make_node("ConstantOfShape", ["shape"], extra, value=empty),
      ]
    formals = ["bundle", "x", "y"]
    definition = helper.make_function(
      domain, name, formals, ["z", *extra], body, opsets[:1], attributes=[ATTRIBUTE]
    )
    stated = digest_of(data, number) if digest is None else digest
    attributes = {ATTRIBUTE: stated} if stated else {}
    values = ["a", *(f"v{i}" for i in range(1, nodes)), "c"]
    graph_nodes, infos = [], []
    for i in range(nodes):
      outputs = [values[i + 1], *(f"w{i}" for _ in extra)]
      graph_nodes.append(
        helper.make_node(
          name, ["bundle", values[i], "b"], outputs, name=f"node{i}", domain=domain, **attributes
        )
      )
      infos += [typed(w, TensorProto.UINT8, [None])
                for w in outputs[1:]]  # fmt: skip
    infos += [typed(v, TensorProto.FLOAT, ["n"]) for v in values[1:-1]]
    floats = [typed(v, TensorProto.FLOAT, ["n"]) for v in "abc"]
    graph = helper.make_graph(
      graph_nodes,
      "add",
      floats[:2],
      floats[2:],
      [numpy_helper.from_array(np.frombuffer(data, np.uint8), "bundle")],
      value_info=infos,
    )
    model = helper.make_model(
      graph, opset_imports=opsets, ir_version=10, functions=[definition] if function else []
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


@pytest.fixture
def models(request):
  return Models(request.node.nodeid)


@pytest.fixture
def vectors():
  rng = np.random.default_rng(7)
  return {name: rng.standard_normal(100).astype(np.float32) for name in "ab"}


@pytest.fixture(scope="session")
def chain():
  return make_chain()
