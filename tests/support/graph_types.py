"""Graphs whose declared types and sizes are not those of the plan, through onnxruntime, by seed.

    LD_PRELOAD=libasan.so python tests/support/graph_types.py FIRST COUNT LIBRARY DRIVER

The custom-op library and the stand-in driver are built under the sanitizers, so a write beyond a
tensor ends the process. Prints the number of runs that were right, refused while the session was
made, and refused in the run, and the most milliseconds of the processor that one took; anything else, and
over ``LIMIT_S``, is a fault, whose seed is told. From seed ``ODD`` on it is the
structure of the graph that is another: what a node reads and makes, its attribute, its name, its bundle.
"""

import os
import random
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import numpy as np
import onnx
import onnxruntime

from mirage_onnx.custom_op import InferenceSession, InputSpec, OutputSpec, const, dim, write_bundle
from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.node_digest import ATTRIBUTE
from tests.custom_op.conftest import Models, add_plan

TYPES = (0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 14, 16, 17, 21, 22, 23)
SIZES = (0, 1, 4, 5, 100, 101, 1 << 20)
ODD = 1_000_000
#: Of the processor, under the sanitizers.
LIMIT_S = 2.0


def changed(rng, value):
  """One declared type of the graph is another."""
  edit = rng.randrange(6)
  tensor = value.type.tensor_type
  if edit < 2:
    tensor.elem_type = rng.choice(TYPES)
  elif edit == 2:
    tensor.ClearField("shape")
  elif edit == 3:
    tensor.ClearField("shape")
    for _ in range(rng.randrange(4)):
      tensor.shape.dim.add(dim_value=rng.choice(SIZES))
  elif edit == 4:
    elem = tensor.elem_type
    value.type.Clear()
    value.type.sequence_type.elem_type.tensor_type.elem_type = elem
  else:
    tensor.shape.dim.add(dim_param="m")


def _inputs(rng, model, node):
  what = rng.randrange(7)
  k = rng.randrange(len(node.input))
  if what == 0:
    del node.input[k]
  elif what == 1:
    node.input.insert(k, node.input[rng.randrange(len(node.input))])
  elif what == 2:
    node.input[:] = rng.sample(list(node.input), len(node.input))
  elif what == 3:
    node.input[k] = ""
  elif what == 4:
    node.input.extend(["a"] * rng.choice((1, 60, 70)))
  elif what == 5:
    node.input[0] = rng.choice(("a", "b"))
  else:
    del node.input[:]


def _outputs(rng, model, node):
  what = rng.randrange(5)
  if what == 0:
    node.output[rng.randrange(len(node.output))] = ""
  elif what == 1:
    node.output.extend(f"more{k}" for k in range(rng.choice((1, 40))))
  elif what == 2:
    node.output[:] = node.output[::-1]
  elif what == 3 and len(node.output) > 1:
    del node.output[-1]
  else:
    model.graph.output.append(onnx.ValueInfoProto(name=node.output[-1]))


def _attributes(rng, model, node):
  (own,) = [a for a in node.attribute if a.name == ATTRIBUTE] or [node.attribute.add(name=ATTRIBUTE)]
  odd = (5, 0.5, [1, 2], [0.5], ["a", "b"], "", "0" * 63, "0" * 65, own.s.upper(), b"\xff", "0" * (1 << 20),
         onnx.numpy_helper.from_array(np.zeros(3, np.uint8)), onnx.GraphProto(name="g"))  # fmt: skip
  value = rng.choice(odd)
  empty = onnx.AttributeProto.STRING if value == "" else None
  own.CopyFrom(onnx.helper.make_attribute(ATTRIBUTE, value, attr_type=empty))
  if rng.random() < 0.2:
    node.attribute.add().CopyFrom(own)
  if rng.random() < 0.2:
    node.attribute.append(onnx.helper.make_attribute("other", 1))


def _names(rng, model, node):
  what = rng.randrange(4)
  if what == 0:
    node.op_type = rng.choice(
      ("MuGraph_1", "MuGraph_127", "MuGraph_128", "MuGraph_00", "MuGraph_-1", "MuGraph_", "mugraph_0")
    )
  elif what == 1:
    node.domain = rng.choice(
      ("ai.mirage.v1.sm80", "ai.mirage.v1", "ai.mirage.v2.sm90a", "", "ai.mirage.v1.sm90a ")
    )
  elif what == 2:
    node.name = rng.choice(("", "node0", "n" * 100_000, "a\nb", "\u2028"))
  else:
    for f in model.functions:
      f.name = rng.choice(("MuGraph_9", "Add", f.name))
      del f.node[rng.randrange(len(f.node)) :]


def _bundles(rng, model, node):
  (stored,) = [t for t in model.graph.initializer if t.name == "bundle"]
  what = rng.randrange(7)
  if what == 0:
    stored.dims[:] = rng.choice(([1, len(stored.raw_data)], [len(stored.raw_data), 1], [0], [], [1 << 40]))
  elif what == 1:
    stored.data_type = rng.choice(TYPES)
  elif what == 2:
    model.graph.input.append(onnx.helper.make_tensor_value_info("bundle", 2, list(stored.dims)))
  elif what == 3:
    stored.raw_data = stored.raw_data[: rng.randrange(len(stored.raw_data))]
    stored.dims[:] = [len(stored.raw_data)]
  elif what == 4:
    constant = onnx.helper.make_node("Identity", ["bundle"], ["again"])
    model.graph.node.insert(0, constant)
    node.input[0] = "again"
  elif what == 5:
    model.graph.initializer.remove(stored)
    model.graph.input.append(onnx.helper.make_tensor_value_info("bundle", 2, [None]))
  else:
    other = model.graph.initializer.add()
    other.CopyFrom(stored)
    other.name = "other"
    at = rng.randrange(len(stored.raw_data))
    other.raw_data = stored.raw_data[:at] + b"\x5a" + stored.raw_data[at + 1 :]
    node.input[0] = "other"


def _nodes(rng, model, node):
  graph = model.graph
  if rng.random() < 0.5:  # in a branch
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    inner.output[0] = "inner"
    made = onnx.helper.make_tensor_value_info("inner", 1, [None])
    branch = onnx.helper.make_graph([inner], "branch", [], [made])
    flag = onnx.helper.make_node("Constant", [], ["flag"], value=onnx.numpy_helper.from_array(np.array(True)))
    graph.node.extend(
      [flag, onnx.helper.make_node("If", ["flag"], ["z"], then_branch=branch, else_branch=branch)]
    )
    graph.output.append(onnx.helper.make_empty_tensor_value_info("z"))
  else:
    again = onnx.NodeProto()
    again.CopyFrom(node)
    again.output[:] = [f"{o}2" for o in node.output]
    graph.node.append(again)
    graph.output.append(onnx.helper.make_tensor_value_info(again.output[0], 1, [None]))


STRUCTURE = (_inputs, _outputs, _attributes, _names, _bundles, _nodes)


def case(seed):
  """(model, length of the vectors)"""
  rng = random.Random(seed)
  n, models = rng.choice((0, 1, 4, 5, 100)), Models(str(seed % 7))
  fields = {}
  if rng.random() < 0.6:
    fields["workspace"] = rng.choice((const(64), dim(0, 0) * 8, dim(1, 0) + 3, const(0)))
  if rng.random() < 0.3:
    fields["inputs"] = tuple(InputSpec("f32", (rng.choice((None, n, 4)),)) for _ in range(2))
  if rng.random() < 0.2:
    fields["outputs"] = (OutputSpec("f32", (rng.choice((dim(1, 0), dim(0, 0).max(1), const(n))),)),)
  plan = add_plan(**fields)
  data = write_bundle(Bundle((models.standin_cubin((plan,), standin_add=[8, 8, 8, 4]),), (plan.to_text(),)))
  made = models.add(data, workspace="workspace" in fields, nodes=rng.randrange(1, 3))
  model = onnx.load_from_string(made)
  graph = model.graph
  if seed >= ODD:
    own = [n for n in graph.node if n.op_type.startswith("MuGraph_")]
    STRUCTURE[seed % len(STRUCTURE)](rng, model, rng.choice(own))
    return model.SerializeToString(), n
  values = [*graph.value_info, *graph.output, *graph.input]
  for _ in range(rng.choice((0, 1, 1, 2))):
    changed(rng, rng.choice(values))
  return model.SerializeToString(), n


def run(seed, driver):
  """ "right", "creation" or "run" (where it was refused); anything else is a fault."""
  data, n = case(seed)
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  options.intra_op_num_threads = 1  # of many cores, each waits at work for a task
  try:
    session = InferenceSession(data, options, ["CPUExecutionProvider"], ep="host", driver=driver)
  except Exception as error:
    return "creation" if str(error) else "an error without a text"
  feeds = {name: np.arange(n, dtype=np.float32) + k for k, name in enumerate("ab")}
  if seed >= ODD:
    given = {i.name for i in session.get_inputs()}
    feeds = {k: v for k, v in feeds.items() if k in given}
  try:
    got = session.run(None, feeds)[0]
  except Exception as error:
    return "run" if str(error) else "an error without a text"
  if seed >= ODD:
    return "right"  # whatever it computes, nothing was written elsewhere
  times = sum(name.startswith("node") for name in (c.name for c in onnx.load_from_string(data).graph.node))
  want = feeds["a"] + times * feeds["b"]
  # Of no elements, a plan may say that its output has one, which no launch writes.
  shapes = (want.shape, (max(n, 1),))
  same = got.dtype == np.float32 and got.shape in shapes and np.allclose(got[:n], want)
  return "right" if same else f"a wrong result: {got!r:.80}"


def main():
  first, count, library, driver = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
  os.environ["MIRAGE_ONNX_OPS_LIBRARY"] = library
  found, longest = {"right": 0, "creation": 0, "run": 0}, 0.0
  for seed in range(first, first + count):
    print(seed, file=sys.stderr)
    began = time.process_time()
    end = run(seed, driver)
    longest = max(longest, time.process_time() - began)
    if longest > LIMIT_S:
      end = f"{longest:.2f} s"
    if end not in found:
      print(f"seed {seed}: {end}")
      return 1
    found[end] += 1
  print(*found.values(), round(longest * 1000))
  return 0


if __name__ == "__main__":
  sys.exit(main())
