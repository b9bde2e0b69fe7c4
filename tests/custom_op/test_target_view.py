"""A file for several targets: each GPU runs its own kernels, another one the original, and views say so."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import mirage_onnx
from mirage_onnx.custom_op.bodies import BODY_DOMAIN, inlined, with_bodies
from mirage_onnx.custom_op.library import get_library_path, load_library
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.node_digest import is_custom
from mirage_onnx.custom_op.target_view import only, seen_by, seen_file, suffixes_of
from mirage_onnx.emulator.driver import Driver
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.rewrite.apply import Layer, apply
from mirage_onnx.target import H200, get_target, get_targets
from tests.support.emulated_session import host_session
from tests.support.rewritten import tampered, with_plan
from tests.support.several_kernels import CAPABILITY, REPLACED, kernels, several, three_regions

CPU = ["CPUExecutionProvider"]


@pytest.fixture
def model():
  copy = onnx.ModelProto()
  copy.CopyFrom(several())
  return copy


def run(model, **options):
  session = mirage_onnx.InferenceSession(model.SerializeToString(), providers=CPU, **options)
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  return session.run(None, {"x0": x})[0], mirage_onnx.launches(session)


def original():
  return run(three_regions().original, ep="none")[0]


def error(got):
  want = original().astype(np.float64)
  return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("suffix", [*REPLACED, "sm86"])
def test_the_library_makes_the_kernels_of_its_gpu(model, suffix):
  """And of no other; of a GPU that the file has nothing for, none."""
  library = load_library(get_library_path())
  first = library.mark()
  session = host_session(model.SerializeToString(), CAPABILITY.get(suffix, (8, 6)))
  made = [int(c.op.removeprefix("MuGraph_")) for c in library.counters() if c.id >= first]
  own = {n.op_type for n in custom_nodes(model) if n.domain.endswith(f".{suffix}")}
  assert {f"MuGraph_{k}" for k in made} == own and len(made) == len(REPLACED.get(suffix, ()))
  if not made:
    assert session.run(None, {"x0": np.ones((8, 64), np.float16)})


def custom_nodes(model):
  every = (*nodes_of(model.graph), *(n for f in model.functions for n in f.node))
  return [n for n in every if is_custom(n.domain, n.op_type)]


#: Of one architecture: what each target replaces, the first of them for all its GPUs.
ONE_ARCHITECTURE = {"h100": (0, 1), "h200": (1, 2), "sm_90ax60": (0,), "a100": (0, 1, 2)}
H200_AND_MORE = {"NVIDIA H200": 132, "NVIDIA GH200 480GB": 132, "NVIDIA H100 80GB HBM3 MIG 3g.40gb": 60}


@pytest.fixture(scope="module", params=[(0, 1, 2, 3), (3, 0, 1, 2)], ids=["h100 first", "a100 first"])
def one_architecture(request):
  targets = get_targets(",".join(ONE_ARCHITECTURE))
  replaced = list(zip(targets, ONE_ARCHITECTURE.values(), strict=True))
  first, *others = (
    Layer(t, tuple(kernels(t)[k] for k in which)) for t, which in map(replaced.__getitem__, request.param)
  )
  return apply(load_model(three_regions().original), first.chosen, first.target, others=others).model


@pytest.mark.parametrize(
  ("gpu", "own"),
  [
    ("NVIDIA H200", {"sm90a": 1, "sm90a_h200": 2}),
    ("NVIDIA GH200 480GB", {"sm90a": 2}),
    ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", {"sm90a": 1, "sm90a_x60": 1}),
    ("", {"sm80": 3}),
  ],
)
def test_a_gpu_runs_its_own_before_those_of_its_architecture(one_architecture, gpu, own):
  """By the driver's name of it, or its size; the general kernels where it has no own."""
  target = H200 if gpu else get_target("a100")
  target = replace(target, gpu=gpu or target.gpu, multiprocessors=H200_AND_MORE.get(gpu, 108))
  library = load_library(get_library_path())
  first, driver = library.mark(), Driver(target)
  onnx.checker.check_model(one_architecture)
  session = mirage_onnx.InferenceSession(
    one_architecture.SerializeToString(), providers=CPU, ep="host", driver=str(driver.path)
  )
  assert session.get_inputs()
  made = [c.op for c in library.counters() if c.id >= first]
  domains = {n.op_type: n.domain.removeprefix("ai.mirage.v1.") for n in custom_nodes(one_architecture)}
  assert Counter(domains[op] for op in made) == own
  of_one_gpu = {int(op.removeprefix("MuGraph_")) for op, domain in domains.items() if "_" in domain}
  assert of_one_gpu == set(range(3)), "the library has few names for them, the first ones"


def test_each_of_one_architecture_runs_right(one_architecture):
  assert set(suffixes_of(one_architecture)) == {"sm90a", "sm90a_h200", "sm90a_x60", "sm80"}
  for suffix in suffixes_of(one_architecture):
    view = seen_by(one_architecture, suffix)
    got, launches = run(view, emulate=True)
    assert error(got) < 2e-3 and launches and set(launches.values()) == {1}


def test_without_the_library_it_is_the_original(model):
  onnx.checker.check_model(model)
  session = ort.InferenceSession(model.SerializeToString(), providers=CPU)
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  assert session.run(None, {"x0": x})[0].tobytes() == original().tobytes()


@pytest.mark.parametrize("suffix", REPLACED)
def test_each_view_runs_its_kernels(model, suffix):
  assert suffixes_of(model) == ("sm90a", "sm80", "sm89")
  view = seen_by(model, suffix)
  onnx.checker.check_model(view)
  nodes = ModelFile.read(view.SerializeToString()).custom_nodes()
  assert {n.domain for n in nodes} == {f"ai.mirage.v1.{suffix}"} and len(nodes) == len(REPLACED[suffix])
  top = {n.output[0]: n for n in model.graph.node}
  assert all(n.name == top[n.outputs[0]].name for n in nodes)
  got, launches = run(view, emulate=True)
  assert error(got) < 2e-3 and list(launches.values()) == [1] * len(nodes)


def test_a_view_of_another_gpu_is_the_original(model):
  view = seen_by(model, "sm86")
  assert not custom_nodes(view)
  assert run(view, ep="none")[0].tobytes() == original().tobytes()


def test_emulation_runs_the_first_target(model):
  got, launches = run(model, emulate=True)
  assert error(got) < 2e-3 and len(launches) == 3 and sum(launches.values()) == 2


def test_one_target_stays_as_it_is():
  single = three_regions().model
  file = ModelFile(single, None)
  assert suffixes_of(single) == ("sm90a",) and only(file, "sm90a") is file
  assert suffixes_of(three_regions().original) == ()


def test_a_file_of_it_is_beside_its_weights(model, tmp_path):
  onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
  with seen_file(tmp_path / "m.onnx", "sm80") as path:
    assert path.parent == tmp_path
    assert ort.InferenceSession(path, providers=CPU).get_inputs()[0].name == "x0"
  assert not path.exists()


def test_bodies_are_the_original_at_every_depth(model):
  outputs = {o for n in model.graph.node for o in n.output}
  bodied = with_bodies(model, outputs)
  assert {n.domain for n in bodied.graph.node} == {BODY_DOMAIN}
  onnx.checker.check_model(bodied)
  session = host_session(bodied.SerializeToString(), (8, 0))
  assert not any(mirage_onnx.launches(session).values())
  for left in (outputs, {next(iter(outputs))}):
    flat = inlined(model, left)
    onnx.checker.check_model(flat)
    assert run(flat, ep="none")[0].tobytes() == original().tobytes()
  assert len(custom_nodes(inlined(model, {model.graph.node[0].output[0]}))) == 5


def call(domain, name):
  return helper.make_node(name, ["bundle"], ["again"], domain=domain)


def test_bodies_without_an_end_are_refused(model):
  by_name = {(f.domain, f.name): f for f in model.functions}
  innermost = by_name["ai.mirage.v1.sm80", "MuGraph_0"]
  innermost.node.append(call("ai.mirage.v1.sm90a", "MuGraph_1"))
  for suffix in ("sm80", "sm86"):
    with pytest.raises(MirageError, match="calls what is for ai.mirage.v1.sm.* again") as caught:
      seen_by(model, suffix)
    assert caught.value.code == "BUNDLE_INVALID"
  with pytest.raises(MirageError, match="again"):
    inlined(model, {o for n in model.graph.node for o in n.output})


def test_a_body_that_is_its_own_is_refused(model):
  function = model.functions[0]
  function.node.append(call(function.domain, function.name))
  for look in (lambda: seen_by(model, "sm86"), lambda: inlined(model, {model.graph.node[0].output[0]})):
    with pytest.raises(MirageError, match="again"):
      look()


def test_bodies_that_double_are_refused(model):
  outer = next(f for f in model.functions if any(is_custom(n.domain, n.op_type) for n in f.node))
  outer.node.append(call("ai.mirage.v1.sm89", "MuGraph_2"))
  with pytest.raises(MirageError, match="has several custom operators"):
    seen_by(model, "sm80")


@pytest.mark.parametrize("suffix", REPLACED)
def test_a_damaged_plan_is_refused_where_it_would_run(model, suffix):
  """And nowhere else: each GPU reads its own part of the bundle."""
  number = next(
    int(n.op_type.removeprefix("MuGraph_")) for n in custom_nodes(model) if n.domain.endswith(suffix)
  )
  wrong = tampered(model, with_plan(number, "block ", "block 9"))
  for other in REPLACED:
    if other == suffix:
      with pytest.raises(Exception, match="compiled for 32 threads, the plan has 932"):
        run(seen_by(wrong, other), emulate=True)
    else:
      assert error(run(seen_by(wrong, other), emulate=True)[0]) < 2e-3


@pytest.mark.parametrize("suffix", REPLACED)
def test_a_wrong_digest_in_a_body_is_refused(model, suffix):
  node = next(n for n in custom_nodes(model) if n.domain.endswith(suffix))
  (digest,) = (a for a in node.attribute if a.name == "digest")
  digest.s = b"0" * 64
  with pytest.raises(Exception, match="do not have the digest"):
    host_session(model.SerializeToString(), CAPABILITY[suffix])
  with pytest.raises(MirageError, match="do not have the digest"):
    ModelFile.read(seen_by(model, suffix).SerializeToString()).bundle()
