"""A small model with three regions, rewritten; and ways to tamper with what the rewriter wrote."""

import contextlib
import copy
from dataclasses import dataclass, replace

import numpy as np
import onnx
from golden_texts import texts_of
from onnx import numpy_helper
from small_models import Net, matches, region_of

from mirage_onnx.compiler.candidates import Compiled, compile_candidates
from mirage_onnx.custom_op.bundle import read_bundle, write_bundle
from mirage_onnx.custom_op.node_digest import tie_nodes
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.ir import Candidate, KernelParams, Region, parse_ugraph, print_ugraph
from mirage_onnx.rewrite.apply import apply
from mirage_onnx.rewrite.model import BUNDLE_NAME
from mirage_onnx.target import H200

#: What the search finds for the three regions; written down, so that tests need not search.
UGRAPHS = tuple(texts_of("rewritten").values())
PARAMS = KernelParams(tile=(1, 1), warps=1)


@dataclass(frozen=True)
class Rewritten:
  original: onnx.ModelProto
  regions: tuple[Region, ...]
  compiled: tuple[Compiled, ...]

  @property
  def model(self):
    return self.using({})

  @property
  def nodes(self):
    return tuple(n.name for n in self.model.graph.node if n.op_type.startswith("MuGraph_"))

  def using(self, changes):
    """The rewritten model with other kernels for some regions, consistent in every record."""
    kernels = [changes.get(k, c) for k, c in enumerate(self.compiled)]
    pairs = list(zip(self.regions, kernels, strict=True))
    return apply(load_model(self.original), pairs, H200).model

  def recompiled(self, k, old, new):
    """Region k's kernels of a µGraph in which the text ``old`` is ``new``: a wrong search."""
    candidate = self.compiled[k].candidate
    text = print_ugraph(candidate.ugraph)
    assert old in text
    wrong = replace(candidate, ugraph=parse_ugraph(text.replace(old, new, 1)))
    done, refused = compile_candidates(self.regions[k], [wrong], H200, keep=1)
    assert not refused
    return done[0]


def chain():
  """h = relu(rms(x) W1), g = sigmoid(h W2 / 2), y = g W3 + h, as three regions."""
  net = Net()
  x = net.input(8, 64)
  h = net.Relu(net.MatMul(net.rms(x), net.weight(64, 64)))
  g = net.Sigmoid(net.Mul(net.MatMul(h, net.weight(64, 64)), 0.5))
  y = net.Add(net.MatMul(g, net.weight(64, 64)), h)
  model = net.model(y)
  found = matches(model).candidates
  regions = []
  taken = set()
  for name in (h, g, y):
    mine = [
      c for c in found
      if [o.tensor.name for o in c.region.outputs] == [name] and not taken & set(c.nodes)
    ]  # fmt: skip
    best = max(mine, key=lambda c: len(c.nodes))
    regions.append(best.region)
    taken |= set(best.nodes)
  assert taken == {n.name for n in model.graph.node}
  compiled = map(_compiled, regions, UGRAPHS)
  return Rewritten(model, tuple(regions), tuple(compiled))


def _compiled(region, text):
  candidate = Candidate(parse_ugraph(text), (PARAMS,))
  done, refused = compile_candidates(region, [candidate], H200, keep=1)
  assert not refused
  return done[0]


def any_rows():
  """g = sigmoid(x W / 2), of any number of rows."""
  net = Net()
  product = net.MatMul(net.input("rows", 64), net.weight(64, 64))
  model = net.model(net.Sigmoid(net.Mul(product, 0.5)))
  region = region_of(model)
  return Rewritten(model, (region,), (_compiled(region, UGRAPHS[1]),))


def tampered(model, change):
  """The model with another bundle, whose own hashes, and the digests of nodes, are right again."""
  result = onnx.ModelProto()
  result.CopyFrom(model)
  (tensor,) = (t for t in result.graph.initializer if t.name == BUNDLE_NAME)
  bundle = change(read_bundle(numpy_helper.to_array(tensor).tobytes()))
  tensor.CopyFrom(numpy_helper.from_array(np.frombuffer(write_bundle(bundle), np.uint8), BUNDLE_NAME))
  with contextlib.suppress(MirageError):  # a bundle that lacks a part is refused for that
    tie_nodes(result, bundle)
  return result


def with_record(k, change):
  def go(bundle):
    records = copy.deepcopy(bundle.provenance)
    change(records[k])
    return replace(bundle, provenance=records)

  return go


def with_plan(k, old, new):
  def go(bundle):
    assert old in bundle.plans[k]
    plans = list(bundle.plans)
    plans[k] = plans[k].replace(old, new, 1)
    return replace(bundle, plans=tuple(plans))

  return go


def permuted(order):
  """Plan k becomes what plan ``order[k]`` was, its provenance with it."""

  def go(bundle):
    return replace(
      bundle,
      plans=tuple(bundle.plans[k] for k in order),
      provenance=tuple(bundle.provenance[k] for k in order),
    )

  return go
