"""A file for several GPUs on one of them: its own kernels run, at every depth, and no others."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import mirage_onnx
from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.custom_op.library import get_library_path, load_library
from mirage_onnx.importer import load_model
from mirage_onnx.rewrite.apply import Layer, apply
from mirage_onnx.target import H200, get_target, get_targets
from mirage_onnx.tune.device import present_target
from tests.support.several_kernels import three_regions

pytestmark = pytest.mark.gpu
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def kernels(target, which):
  three, found = three_regions(), []
  for k in which:
    done, refused = compile_candidates(three.regions[k], [three.compiled[k].candidate], target, keep=1)
    assert not refused
    found.append((three.regions[k], done[0]))
  return tuple(found)


def model(order):
  """``order``: of targets, each with the regions that it replaces."""
  layers = [Layer(t, kernels(t, which)) for t, which in order]
  loaded = load_model(three_regions().original)
  return apply(loaded, layers[0].chosen, layers[0].target, others=layers[1:]).model


def run(proto):
  session = mirage_onnx.InferenceSession(proto.SerializeToString(), providers=CUDA)
  assert session.get_providers()[0] == CUDA[0]
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  return session.run(None, {"x0": x})[0].astype(np.float64), mirage_onnx.launches(session)


@pytest.mark.parametrize("place", ["outside", "in the middle", "inside"])
def test_its_kernels_run_at_every_depth(place, h200):
  a100, ada = get_target("a100"), get_target("rtx4090")
  every = (0, 1, 2)
  others = [(a100, every), (ada, every)]
  at = ["outside", "in the middle", "inside"].index(place)
  order = [*others[:at], (H200, every), *others[at:]]
  got, launches = run(model(order))
  session = ort.InferenceSession(three_regions().original.SerializeToString(), providers=CUDA[1:])
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  want = session.run(None, {"x0": x})[0].astype(np.float64)
  assert np.linalg.norm(got - want) < 5e-3 * np.linalg.norm(want)
  assert sum(launches.values()) == 3, launches


def test_a_gpu_without_kernels_runs_the_original(h200):
  proto = model([(get_target("a100"), (0, 1)), (get_target("rtx4090"), (1, 2))])
  onnx.checker.check_model(proto)
  assert present_target().suffix == "sm90a"
  got, launches = run(proto)
  assert not any(launches.values())
  plain = ort.InferenceSession(three_regions().original.SerializeToString(), providers=CUDA)
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  assert np.array_equal(got, plain.run(None, {"x0": x})[0].astype(np.float64))


@pytest.mark.parametrize("own", [True, False])
def test_kernels_for_one_gpu_run_on_it_alone(own, h200):
  """The GPU that is here is the second of its architecture in the file, or none of them."""
  gpu = present_target()
  general = next(t for t in ("gh200", "h100-pcie") if t != gpu.name)
  second = gpu.name if own else next(t for t in ("h200", "h100") if t != gpu.name)
  first, further = get_targets(f"{general},{second}")
  assert further.suffix.startswith("sm90a_")
  proto = model([(first, (0, 1)), (further, (1, 2))])
  library = load_library(get_library_path())
  begin = library.mark()
  got, _ = run(proto)
  nodes = (*proto.graph.node, *(n for f in proto.functions for n in f.node))
  domains = {n.op_type: n.domain.rpartition(".")[2] for n in nodes if n.op_type.startswith("MuGraph_")}
  ran = Counter(domains[c.op] for c in library.counters() if c.id >= begin and c.launches)
  assert ran == ({"sm90a": 1, further.suffix: 2} if own else {"sm90a": 2})
  session = ort.InferenceSession(three_regions().original.SerializeToString(), providers=CUDA[1:])
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  want = session.run(None, {"x0": x})[0].astype(np.float64)
  assert np.linalg.norm(got - want) < 5e-3 * np.linalg.norm(want)
