"""The digest of a node: the same in Python and C++, and of everything that the node runs."""

import hashlib
from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refused import refused

from mirage_onnx.custom_op import Bundle, Variant, dim, launches, read_bundle, write_bundle
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.node_digest import ATTRIBUTE, check_digest, node_digest, tie_nodes
from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite.model import BUNDLE_NAME
from tests.custom_op.host import hosted, run
from tests.support.rewritten import permuted, tampered

LATE = "its plan and images do not have the digest that the node states"
NONE = "the node has no digest of its plan and images"


def launching(models, *cubins):
  """A plan of a variant for each image."""
  (base,) = models.add_plan().variants[0].launches
  rows = [Variant((replace(base, cubin=k),), dim(0, 0).le(k + 1)) for k in cubins[:-1]]
  return models.add_plan(variants=(*rows, Variant((replace(base, cubin=cubins[-1]),)))).to_text()


@pytest.fixture
def bundle(models):
  plans = [launching(models, *cubins) for cubins in ((0,), (1,), (0, 1), (1, 0), (0, 0), (0, 1, 0))]
  return Bundle((b"one", b"two"), tuple(plans))


def test_it_is_of_the_digests_of_the_sections(bundle):
  parts = bundle.plans[2].encode(), b"one", b"two"
  tied = hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts))
  assert node_digest(bundle, 2) == tied.hexdigest()


def test_both_compute_the_same(native, bundle):
  data = write_bundle(bundle)
  found = [native.node(data, k) for k in range(len(bundle.plans))]
  assert found == [(True, node_digest(bundle, k)) for k in range(len(bundle.plans))]
  assert len({digest for _, digest in found}) == len(bundle.plans)


def test_another_image_is_another_digest(bundle):
  other = replace(bundle, cubins=(b"one", b"tow"))
  same = [node_digest(bundle, k) == node_digest(other, k) for k in range(len(bundle.plans))]
  assert same == [True, False, False, False, True, False]


def judged(native, bundle, number, stated):
  """Why both refuse a node, or ""."""
  good, said = native.node(write_bundle(bundle), number, stated)
  try:
    check_digest(bundle, number, stated)
  except MirageError as error:
    assert not good and said.removeprefix("bundle: ") == error.detail
    return error.detail
  assert good
  return ""


def test_rules_in_their_order(native, bundle):
  right = node_digest(bundle, 1)
  assert judged(native, bundle, 1, right) == ""
  assert judged(native, bundle, 1, "") == NONE
  for wrong in (right[:-1], right + "0", right.upper(), "0" * 64, node_digest(bundle, 0)):
    assert judged(native, bundle, 1, wrong) == LATE
  assert judged(native, bundle, 6, right) == "it has no plan 6"
  assert judged(native, replace(bundle, cubins=(b"one",)), 1, right) == "it has no cubin 1"
  damaged = replace(bundle, plans=("plan 1\n",))
  assert judged(native, damaged, 0, right) == "plan line 1: expected 'plan 2'"


@pytest.mark.parametrize(("digest", "said"), [("", NONE), ("0" * 64, LATE), ("0" * 200, LATE)])
def test_no_session_without_the_right_digest(models, driver, driver_log, digest, said):
  model = models.add(digest=digest)
  with pytest.raises(Exception, match=rf"mirage-onnx: node 'node0' \(MuGraph_0\): bundle: {said}"):
    hosted(model, driver)
  assert not driver_log("load")  # no driver sees an image that the node does not name


def test_a_digest_that_is_no_text(models, driver):
  model = onnx.load_from_string(models.add())
  (node,) = model.graph.node
  del node.attribute[:]
  node.attribute.append(helper.make_attribute(ATTRIBUTE, 7))
  with pytest.raises(Exception, match=NONE):
    hosted(model.SerializeToString(), driver)


def test_plans_of_two_nodes_are_not_exchanged(models, driver, vectors):
  """Each node would run what was made for the other; every section has its hash."""
  n = dim(0, 0)
  first, second = models.add_plan(), models.add_plan(workspace=n * 4)
  right, turned = models.bundle(first, second), models.bundle(second, first)
  digest = node_digest(read_bundle(right), 0)
  session = hosted(models.add(right, digest=digest), driver)
  assert (run(session, vectors) == vectors["a"] + vectors["b"]).all()
  assert launches(session) == {"node0": 1}
  with pytest.raises(Exception, match=LATE):
    hosted(models.add(turned, digest=digest), driver)


def test_the_writer_states_it_and_the_reader_compares(chain):
  model = chain.model
  bundle = ModelFile.read(model.SerializeToString()).bundle()
  nodes = [n for n in model.graph.node if n.op_type.startswith("MuGraph_")]
  stated = [helper.get_node_attr_value(n, ATTRIBUTE).decode() for n in nodes]
  assert stated == [node_digest(bundle, k) for k in range(3)]
  assert all(list(f.attribute) == [ATTRIBUTE] for f in model.functions)
  onnx.checker.check_model(model)
  before = model.SerializeToString(deterministic=True)
  tie_nodes(model, bundle)
  assert model.SerializeToString(deterministic=True) == before


def test_a_bundle_of_another_model_is_refused(chain):
  """All of it is right but for the nodes, which are those of the model as it was written."""
  turned = tampered(chain.model, permuted([1, 0, 2]))
  (stored,) = (t for t in turned.graph.initializer if t.name == BUNDLE_NAME)
  model = chain.model
  (tensor,) = (t for t in model.graph.initializer if t.name == BUNDLE_NAME)
  tensor.CopyFrom(stored)
  with refused("BUNDLE_INVALID", LATE) as caught:
    ModelFile.read(model.SerializeToString()).bundle()
  assert f"node '{chain.nodes[0]}'" in caught.value.detail


def test_a_model_of_the_version_before(chain):
  model = chain.model
  (tensor,) = (t for t in model.graph.initializer if t.name == BUNDLE_NAME)
  data = bytearray(numpy_helper.to_array(tensor).tobytes())
  data[8] = 1
  tensor.CopyFrom(helper.make_tensor(BUNDLE_NAME, TensorProto.UINT8, [len(data)], bytes(data), raw=True))
  with refused("BUNDLE_INVALID", "it has version 1, this program reads 2: optimize the original model again"):
    ModelFile.read(model.SerializeToString()).bundle()


def test_a_kernel_that_is_named_by_no_plan_does_not_count(native):
  plan = "plan 2\noutput f32\nvariant\n"
  one, two = (Bundle((image,), (plan,)) for image in (b"a", b"b"))
  assert node_digest(one, 0) == node_digest(two, 0) == native.node(write_bundle(one))[1]
