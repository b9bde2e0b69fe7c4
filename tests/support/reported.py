"""Models that were optimized, with the record of their run; made once a process."""

from functools import cache

import numpy as np
import onnx
from small_models import Net

from mirage_onnx import api
from mirage_onnx.importer.graph import subgraphs
from mirage_onnx.report import run_record

#: What ends a script, a comment, an attribute or a CDATA section somewhere, or turns text around.
HOSTILE = (
  "<script>alert(1)</script>",
  "]]>",
  "--><img src=x onerror=alert(1)>",
  "\"'&amp;\u202e\x01",
  "</style>",
)


def small_model():
  """A norm before a product, a product and a cast that stay, two equal parts, and a node of no time."""
  net = Net()
  x = net.input(8, 256)
  y = net.MatMul(net.rms(x, net.weight(256)), net.weight(256, 256))
  z = net.MatMul(net.rms(net.Hardmax(y), net.weight(256)), net.weight(256, 256))
  return net.model(net.cast(z, np.float32))


def hostile_model():
  """The same, with names of nodes and tensors that try to be markup."""
  model = small_model()
  names = {}

  def named(name):
    if name not in names:
      names[name] = f"{HOSTILE[len(names) % len(HOSTILE)]}{len(names)}"
    return names[name]

  graph = model.graph
  assert not any(list(subgraphs(n)) for n in graph.node)
  for node in graph.node:
    node.name = named(node.name)
    node.input[:] = map(named, node.input)
    node.output[:] = map(named, node.output)
  for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
    value.name = named(value.name)
  return model


@cache
def optimized(hostile=False):
  """(original, result)."""
  model = hostile_model() if hostile else small_model()
  return model, api.optimize(model, target="h200", workers=1)


def record_of(hostile=False):
  return run_record.read(optimized(hostile)[1].model)


def copied(model):
  return onnx.ModelProto.FromString(model.SerializeToString())
