"""Dynamic dimensions, to the end: regions are replaced, and right at every size that a run has."""

import numpy as np
import onnxruntime as ort
import pytest
from small_models import Net, replaced_ops

import mirage_onnx
from mirage_onnx.errors import MirageError
from mirage_onnx.tune.declared_sizes import parse_sizes
from mirage_onnx.tune.known_sizes import Unpredicted

K = 64
SHAPES = {"batch": (1, 4), "seq": (2, 24)}
#: Inside, at and outside of what is declared; no rows too.
SIZES = [(1, 1), (4, 24), (2, 7), (3, 17), (5, 40), (0, 3)]


def rows(net):
  """Batch and sequence are one axis."""
  return net.Add(net.MatMul(net.rms(net.input("batch", "seq", K)), net.weight(K, 48)), 0.5)


def gated(net):
  """An input that is the same for all of a sequence: two axes."""
  x, gate = net.input("batch", "seq", K), net.input("batch", 1, K)
  return net.rms(net.Mul(x, net.Sigmoid(gate)))


def heads(net):
  """The result is transposed: axes of fixed and of dynamic extents take turns in memory."""
  x = net.Reshape(net.input("batch", "seq", 4 * K), [0, 0, 4, K])
  return net.Transpose(net.rms(x, net.weight(K)), perm=[0, 2, 1, 3])


def flattened(net):
  """To rows and back, to a shape that the model computes."""
  x = net.input("batch", "seq", K)
  y = net.rms(net.Reshape(x, [-1, K]))
  whole = net.Concat(net.Slice(net.Shape(x), [0], [2]), [2, K // 2], axis=0)
  return net.Sigmoid(net.Reshape(net.Exp(y), whole))


def repeated(net):
  """A number for every sequence, written out to a shape that the model computes."""
  x = net.input("batch", "seq", K)
  return net.rms(net.Mul(x, net.Expand(net.Sigmoid(net.input("batch", 1, 1)), net.Shape(x))))


def residual(net):
  """Two inputs that have to agree."""
  return net.rms(net.Add(net.input("batch", "seq", K), net.input("batch", "seq", K)))


def rotary(net):
  """Halves of the heads of queries, in a packed projection, change places."""
  x = net.Reshape(net.input("batch", "seq", 3 * 2 * K), [0, 0, 6, K])
  q, angle = net.Slice(x, [2], [4], [2]), net.input("batch", "seq", 1, K)
  halves = [net.Slice(q, [n], [n + K // 2], [3]) for n in (K // 2, 0)]
  other = net.Concat(net.Neg(halves[0]), halves[1], axis=-1)
  return net.Add(net.Mul(q, net.Cos(angle)), net.Mul(other, net.Sin(angle)))


def optimized(build, target="h200"):
  net = Net(seed=7)
  model = net.model(build(net))
  result = mirage_onnx.optimize(model, target=target, workers=1, margin=-20.0, shapes=SHAPES)
  return model, result


def values(model, sizes, seed):
  rng, named = np.random.default_rng(seed), dict(zip(("batch", "seq"), sizes, strict=True))
  return {
    v.name: rng.standard_normal(
      [named.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim]
    ).astype(np.float16)
    for v in model.graph.input
  }


def stock(model):
  return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


BUILDS = [rows, gated, heads, flattened, repeated, residual, rotary]


def check(model, result, all_sizes, **how):
  """At these sizes: the body bit for bit, the kernels nearly, and they run wherever rows are."""
  before, after = stock(model), stock(result.model)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), **how)
  for i, sizes in enumerate(all_sizes):
    feeds = values(model, sizes, i)
    (want,), (same,), (got,) = (s.run(None, feeds) for s in (before, after, session))
    assert same.shape == want.shape and same.tobytes() == want.tobytes()
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-3, atol=4e-3)
  rows = sum(0 not in sizes for sizes in all_sizes)
  assert all(n >= rows for n in mirage_onnx.launches(session).values())


@pytest.mark.parametrize("build", BUILDS)
def test_every_size(build):
  model, result = optimized(build)
  nodes = replaced_ops(result)
  left = {n.op_type for n in model.graph.node if n.name not in nodes}
  assert left <= {"Shape", "Slice", "Concat", "Add"}  # an Add is free in ONNX Runtime
  assert [list(v.type.tensor_type.shape.dim) for v in result.model.graph.input] == [
    list(v.type.tensor_type.shape.dim) for v in model.graph.input
  ]
  check(model, result, SIZES, emulate=True)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["h200", "local"])
@pytest.mark.parametrize("build", BUILDS)
def test_every_size_on_a_gpu(build, target):
  """With ``local`` the regions that are not faster stay, as measured."""
  model, result = optimized(build, target)
  check(model, result, [*SIZES, (64, 1000)], providers=["CUDAExecutionProvider"])


def test_inputs_that_disagree():
  """ONNX Runtime does not hold a model to its names: the kernel's plan does."""
  model, result = optimized(residual)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  first, second = (v.name for v in model.graph.input)
  feeds = values(model, (2, 5), 0) | {second: np.ones((2, 4, K), np.float16)}
  with pytest.raises(Exception, match="disagree .*: dim 1 of input 1 is 5, dim 1 of input 2 is 4"):
    session.run([], feeds)
  session.run([], feeds | {first: np.ones((2, 4, K), np.float16)})


def test_kept_where_it_would_lose(monkeypatch):
  # Not because so many rows were never measured (tests/tune/test_known_sizes.py).
  monkeypatch.setattr(mirage_onnx.pipeline, "unpredicted_at", lambda *_: Unpredicted())
  net = Net(seed=7)
  model = net.model(net.Add(net.MatMul(net.input("batch", K), net.weight(K, 4096)), 0.5))

  def report(**shapes):
    found = mirage_onnx.optimize(model, target="h200", workers=1, shapes=shapes).report
    return dict(next(r for r in found["regions"] if len(r["ops"]) == 2))

  assert report(batch=(1, 8))["status"] == "replaced"
  kept = report(batch=(1, 8, 65536))
  assert kept["reason"] == "NOT_FASTER" and "batch=65536: " in str(kept["reason_text"])
  assert "batch=1:" not in str(kept["reason_text"])
  assert [s["sizes"] for s in kept["sizes"]] == ["batch=1", "batch=8", "batch=65536"]


def test_shapes_option(net):
  assert parse_sizes(["batch=8,1 seq=1,128..512:128", "x=3..9"]) == {
    "batch": (1, 8), "seq": (1, 128, 256, 384, 512), "x": (3, 9),
  }  # fmt: skip
  for word in ("batch", "=1", "batch=", "b=0", "b=2..1", "b=1..4:0", "b=-1", "b=1..999999:1"):
    with pytest.raises(MirageError, match="is not of the form|more than 4096 sizes") as error:
      parse_sizes([word])
    assert word in error.value.detail
  with pytest.raises(MirageError, match="'sequence'.*batch"):
    model = net.model(net.rms(net.input("batch", K)))
    mirage_onnx.optimize(model, target="h200", shapes={"sequence": (1,)})
