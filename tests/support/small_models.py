"""Write small ONNX models in a few lines, and take them through the stages of the pipeline.

net = Net()
x = net.input(8, 64)
model = net.model(net.MatMul(net.Mul(x, 2.0), net.weight(64, 32)))
"""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import mirage_onnx
from mirage_onnx.compiler import candidates
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.superopt.search import search
from mirage_onnx.target import H200
from mirage_onnx.verify.prover import prover as region_prover
from mirage_onnx.verify.weights import sample_weights


class Net:
  """Any other method adds the node of this name; numbers become constants."""

  def __init__(self, dtype=np.float16, prefix="", seed=0, opset=20):
    self.dtype, self.prefix, self.opset = np.dtype(dtype), prefix, opset
    self.rng = np.random.default_rng(seed)
    self.nodes = []
    self.inputs = []
    self.weights = []

  def _name(self, kind):
    return f"{self.prefix}{kind}{len(self.nodes) + len(self.inputs) + len(self.weights)}"

  def input(self, *shape, dtype=None):
    name = self._name("x")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
    self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
    return name

  def constant(self, value, dtype=None):
    name = self._name("c")
    array = np.asarray(value, dtype or self.dtype)
    self.weights.append(numpy_helper.from_array(array, name))
    return name

  def weight(self, *shape, scale=None):
    scale = scale or 1 / np.sqrt(shape[0])
    return self.constant(self.rng.standard_normal(shape) * scale)

  def __getattr__(self, op):
    def add(*args, **attributes):
      inputs = [
        a if isinstance(a, str)
        else self.constant(a, np.int64 if isinstance(a, list) else None)
        for a in args
      ]  # fmt: skip
      out = self._name("t")
      node = helper.make_node(op, inputs, [out], name=f"{op}_{out}", **attributes)
      self.nodes.append(node)
      return out

    if op.startswith("_"):
      raise AttributeError(op)
    return add

  def cast(self, x, dtype):
    return self.Cast(x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

  def rms(self, x, gamma=None, eps=1e-3):
    square = self.Mul(x, x)
    root = self.Sqrt(self.Add(self.ReduceMean(square, [-1]), eps))
    y = self.Div(x, root)
    return self.Mul(y, gamma) if gamma else y

  def model(self, *outputs):
    graph = helper.make_graph(
      self.nodes, "small", self.inputs, [onnx.ValueInfoProto(name=o) for o in outputs],
      self.weights,
    )  # fmt: skip
    domains = {"": self.opset} | {n.domain: 1 for n in self.nodes if n.domain}
    imports = [helper.make_opsetid(*d) for d in domains.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


def layers_with_a_mask(net):
  """Sixteen layers that each multiply by one mask: the program, its candidates and times of its nodes."""
  x, mask = net.input(8, 64), net.Exp(net.Neg(net.input(8, 64)))
  for _ in range(16):
    x = net.Tanh(net.Add(net.MatMul(net.Mul(x, mask), net.weight(64, 64)), x))
  program = import_model(load_model(net.model(x)))
  node_us = {n.name: 20.0 if n.op_type == "MatMul" else 3.0 for n in program.nodes}
  return program, find_candidates(program).candidates, node_us


def matches(model, **sizes):
  """``sizes``: what regions assume of the names of dimensions."""
  return find_candidates(import_model(load_model(model)), sizes=sizes or None)


def largest(found):
  """The candidate with the most nodes, of these with the most outputs."""
  return max(found.candidates, key=lambda c: (len(c.nodes), len(c.outputs)))


def region_of(model, **sizes):
  return largest(matches(model, **sizes)).region


def prover(loaded=None):
  """What the pipeline passes to the search: proof, then safety in floating point."""
  own = {}

  def prove(region, graph, params):
    if id(region) not in own:
      weights = sample_weights(loaded, region) if loaded else None
      own[id(region)] = region_prover(region, weights)
    return own[id(region)](region, graph, params)

  return prove


def search_region(region, loaded=None, *, budget_s=900.0, **options):
  """As far as it goes, on a busy machine, too."""
  return search(region, H200, prover(loaded), budget_s=budget_s, **options)


def feeds(model, rng):
  """Random values of every graph input; small whole numbers where it wants integers."""
  found = {}
  for value in model.graph.input:
    shape = [d.dim_value or 2 for d in value.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    data = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.integer):
      data = rng.integers(0, 2, shape)
    found[value.name] = np.asarray(data).astype(dtype)
  return found


def check_stored_once(model):
  """Optimized for an H200, the large weights of ``model`` are under their names, with their bytes."""
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  before = {w.name: w.raw_data for w in model.graph.initializer if len(w.raw_data) > 4096}
  after = {w.name: w.raw_data for w in result.model.graph.initializer}
  assert before and all(after.get(name) == data for name, data in before.items())


def check_kernels(model, result, values, atol=1e-3, rtol=4e-3, **how):
  """The outputs: of the bodies bit for bit, of the kernels nearly, all of which run.

  Emulated, unless ``how`` says otherwise.
  """
  wants, bodies = run_model(model, values), run_model(result.model, values)
  assert [x.tobytes() for x in bodies] == [x.tobytes() for x in wants]
  how = how or {"emulate": True}
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), **how)
  for got, want in zip(session.run(None, values), wants, strict=True):
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=rtol, atol=atol)
  counts = mirage_onnx.launches(session)
  assert counts and all(n >= 1 for n in counts.values())
  return wants


def replaced_ops(result):
  return {n for r in result.report["regions"] if r["status"] == "replaced" for n in r["ops"]}


def norm_to_three():
  """One norm, three contractions of it."""
  net = Net()
  y = net.rms(net.input(8, 512), net.weight(512))
  return net.model(*(net.MatMul(y, net.weight(512, n)) for n in (128, 128, 256)))


def refuse_once(monkeypatch):
  """The compiler refuses what comes first; what it was asked for."""
  real, calls = candidates.compile_many, []

  def compile_many(sources, target, workers=1):
    calls.append(sources)
    if len(calls) == 1:
      return [Rejection("SPILLS", "it spills") for _ in sources]
    return real(sources, target, workers)

  monkeypatch.setattr(candidates, "compile_many", compile_many)
  return calls


def run_model(model, values):
  options = ort.SessionOptions()
  options.log_severity_level = 3
  options.intra_op_num_threads = 1
  session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  return session.run(None, values)
