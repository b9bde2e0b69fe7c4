"""Cut models: what is exposed, fed and kept."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from refused import refused
from small_models import Net

from mirage_onnx.custom_op.boundary import (
  FED,
  Boundary,
  boundaries,
  detached_nodes,
  detached_original,
  exposed,
)
from mirage_onnx.custom_op.model_nodes import ModelFile

CPU = ["CPUExecutionProvider"]
X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)


@pytest.fixture
def files(chain):
  return ModelFile(chain.original, None), ModelFile(chain.model, None)


def run(model, feeds):
  session = ort.InferenceSession(model, providers=CPU)
  names = [o.name for o in session.get_outputs()]
  return dict(zip(names, session.run(names, feeds), strict=True))


def test_boundaries(chain, files):
  h, g, y = (r.outputs[0].tensor.name for r in chain.regions)
  assert boundaries(files[1]) == (
    Boundary(chain.nodes[0], ("x0",), (h,)),
    Boundary(chain.nodes[1], (h,), (g,)),
    Boundary(chain.nodes[2], (g, h), (y,)),
  )
  assert boundaries(files[0]) == ()


def test_a_sparse_weight_is_a_weight(chain):
  model = onnx.ModelProto()
  model.CopyFrom(chain.model)
  model.graph.sparse_initializer.add().values.name = "x0"
  assert boundaries(ModelFile(model, None))[0] == Boundary(
    chain.nodes[0], (), boundaries(ModelFile(chain.model, None))[0].makes
  )


def test_the_original_shows_what_regions_read(chain, files):
  cuts = boundaries(files[1])
  found = run(exposed(files[0], cuts), {"x0": X})
  h, g, y = (r.outputs[0].tensor.name for r in chain.regions)
  assert list(found) == [y, h, g]
  assert len(chain.original.graph.output) == 1, "the caller's model stays"


def test_regions_of_nodes_without_names(chain, files):
  """Of names onnxruntime wants each once, but there may be none."""
  cuts = boundaries(files[1])
  values = {"x0": X, **run(exposed(files[0], cuts), {"x0": X})}
  fed = {FED + name: values[name] for cut in cuts for name in cut.reads}
  bare = onnx.ModelProto()
  bare.CopyFrom(files[0].proto)
  for node in bare.graph.node:
    node.name = ""
  found = run(detached_original(ModelFile(bare, None), cuts, values), fed)
  named = run(detached_original(files[0], cuts, values), fed)
  assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in named.items()}


def test_regions_are_cut_out_alike(chain, files):
  """In stock onnxruntime the custom nodes run their bodies, so both sides agree bit for bit."""
  cuts = boundaries(files[1])
  values = {"x0": X, **run(exposed(files[0], cuts), {"x0": X})}
  fed = {FED + name: values[name] for cut in cuts for name in cut.reads}
  assert len(fed) == 3
  left = run(detached_original(files[0], cuts, values), fed)
  right = run(detached_nodes(files[1], cuts, values), fed)
  assert list(left) == list(right) == [name for cut in cuts for name in cut.makes]
  assert all(left[n].tobytes() == right[n].tobytes() for n in left)
  # Each reads what it is fed, not what another makes.
  changed = {**fed, FED + cuts[1].reads[0]: np.zeros_like(X)}
  other = run(detached_nodes(files[1], cuts, values), changed)
  assert (other[cuts[1].makes[0]] == 0.5).all()
  assert other[cuts[0].makes[0]].tobytes() == left[cuts[0].makes[0]].tobytes()


def test_some_of_the_nodes(files):
  cuts = boundaries(files[1])[1:2]
  values = {cuts[0].reads[0]: X}
  (node,) = onnx.load_from_string(detached_nodes(files[1], cuts, values)).graph.node
  assert node.name == cuts[0].node


@pytest.mark.parametrize("what", ["reads", "makes"])
def test_models_of_different_origin(files, what):
  names = {"reads": ("x0",), "makes": ("x0",), what: ("elsewhere",)}
  cut = Boundary("n", **names)
  with refused("SHAPES_DIFFER", "'elsewhere', which node 'n'"):
    exposed(files[0], [cut])
    detached_original(files[0], [cut], {"x0": X})


def test_a_shape_that_is_made_of_an_input():
  """Kernels do not read it, so it is in no ``reads``; the original's nodes do."""
  net = Net(np.float32)
  x, like = net.input(1, 4), net.input(3, 4)
  y = net.Expand(net.Neg(x), net.Shape(like))
  file = ModelFile(net.model(y), None)
  values = {x: np.ones((1, 4), np.float32), like: np.ones((3, 4), np.float32)}
  found = run(
    detached_original(file, [Boundary("n", (x,), (y,))], values),
    {FED + name: value for name, value in values.items()},
  )
  np.testing.assert_array_equal(found[y], -np.ones((3, 4)))
