"""Odd graphs: nested, of many nodes, small ones that are dear to follow, odd shapes."""

import numpy as np
import onnx
from odd_base import INT, B, F, H, info, model, node, plain, weight
from onnx import TensorProto, helper, numpy_helper


def deep_graphs(rng):
  depth = rng.choice((1, 5, 12, 20, 24, 28, 31))
  op = rng.choice(("If", "Loop", "Scan", "mixed"))
  inner = [node("Relu", "x", "o0")]
  last = "o0"
  for k in range(depth):
    kind = rng.choice(("If", "Loop")) if op == "mixed" else op
    made = f"o{k + 1}"
    if kind == "If":
      body = helper.make_graph(inner, f"b{k}", [], [helper.make_empty_tensor_value_info(last)])
      other = helper.make_graph([node("Neg", "x", f"e{k}")], f"e{k}", [], [info(f"e{k}")])
      inner = [
        node(
          "If", "c", made, then_branch=body, else_branch=body if rng.random() < 0.3 and depth <= 12 else other
        )
      ]
    elif kind == "Loop":
      carried = [node("Identity", f"c{k}", f"cc{k}"), *inner]
      ins = [info(f"i{k}", INT, ()), info(f"c{k}", B, ()), info(f"v{k}")]
      body = helper.make_graph(
        carried, f"b{k}", ins, [info(f"cc{k}", B, ()), helper.make_empty_tensor_value_info(last)]
      )
      inner = [node("Loop", "t c x", made, body=body)]
    else:
      body = helper.make_graph(inner, f"b{k}", [info(f"s{k}")], [helper.make_empty_tensor_value_info(last)])
      inner = [node("Scan", "x", made, body=body, num_scan_inputs=1)]
    last = made
  return model(
    inner, [info("x"), info("c", B, ()), info("t", INT, ())], [helper.make_empty_tensor_value_info(last)]
  )


def deep_types(rng):
  found = plain(rng)
  kind = found.graph.value_info.add(name=rng.choice(("m", "a", "y", "none"))).type
  for _ in range(rng.choice((1, 5, 20, 40))):
    what = rng.choice(("sequence", "optional", "map"))
    if what == "map":
      kind.map_type.key_type = rng.choice((INT, TensorProto.STRING, F, 99))
      kind = kind.map_type.value_type
    else:
      kind = getattr(kind, f"{what}_type").elem_type
  if rng.random() < 0.5:
    kind.tensor_type.elem_type = rng.choice((F, H, 0, 99, -1))
  if rng.random() < 0.3:
    found.graph.input[0].type.CopyFrom(found.graph.value_info[0].type)
  return found


def many(rng):
  found = plain(rng)
  count = rng.choice((100, 1000, 3000))
  what = rng.randrange(10)
  graph = found.graph
  if what == 0:
    op = rng.choice(("Sum", "Max", "Mean", "Concat", "Min"))
    attributes = {"axis": 0} if op == "Concat" else {}
    graph.node.append(node(op, ["x"] * count, "z", **attributes))
    graph.output.append(info("z", F, (4 * count, 64) if op == "Concat" else (4, 64)))
  elif what == 1:
    names = [f"p{k}" for k in range(count)]
    graph.node.append(node("Split", "x", names, axis=0, num_outputs=count))
    graph.output.append(helper.make_empty_tensor_value_info(names[rng.randrange(count)]))
  elif what == 2:
    for k in range(count):
      graph.node[0].attribute.append(helper.make_attribute(f"a{k}", k))
  elif what == 3:
    for k in range(count):
      graph.value_info.append(info(f"v{k}", F, [f"d{k}", 3]))
  elif what == 4:
    for k in range(count):
      found.opset_import.append(helper.make_opsetid(f"d{k}", k))
  elif what == 5:
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n" * (100 * count)
  elif what == 6:
    for k in range(count):
      graph.node.append(node("Shape", "x", f"z{k}"))
      graph.output.append(info(f"z{k}", INT, (2,)))
  elif what == 7:
    before = "x"
    for k in range(min(count, 1000)):
      graph.node.append(node(rng.choice(("Add", "Mul")), f"{before} x", f"z{k}"))
      before = f"z{k}"
    graph.output.append(helper.make_empty_tensor_value_info(before))
  elif what == 8:
    graph.input[0].type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    for _ in range(rng.choice((9, 33, 64, 65, 500))):
      graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)
  else:
    for k in range(count):
      found.metadata_props.add(key=f"k{k % 7}", value="v" * 30)
      graph.initializer.append(numpy_helper.from_array(np.float32(k), f"s{k}"))
  return found


def dense(rng):
  """Small graphs that are dear to follow: products of themselves, ladders, many readers."""
  count = rng.choice((10, 20, 40, 80))
  nodes, known = [], ["x"]
  how = rng.randrange(7)
  dims, weights = (8, 64), [weight(rng, "w", (64, 64)), weight(rng, "s", (64,))]
  for k in range(count):
    last, out = known[-1], f"v{k}"
    if how == 0:
      nodes.append(node(rng.choice(("Mul", "Add")), f"{last} {last}", out))
    elif how == 1:
      nodes.append(
        node(rng.choice(("Mul", "Add", "Sub", "Div", "Max")), f"{last} {known[max(0, len(known) - 2)]}", out)
      )
    elif how == 2:
      nodes.append(
        node(
          rng.choice(("Sum", "Max", "Mean")),
          [rng.choice(known[-6:]) for _ in range(rng.randrange(2, 9))],
          out,
        )
      )
    elif how == 3:
      nodes.append(node("MatMul", f"{last} w", out) if k % 2 else node("Softmax", last, out))
    elif how == 4:
      nodes.append(
        node(rng.choice(("Exp", "Tanh", "Sqrt", "Erf", "Neg", "Reciprocal")), rng.choice(known[-3:]), out)
      )
    elif how == 5:
      nodes.append(
        node("LayerNormalization", f"{last} s", out)
        if k % 3 == 0
        else node("Add", f"{last} {rng.choice(known)}", out)
      )
    else:
      nodes += [
        node("Transpose", last, f"t{k}", perm=[1, 0]),
        node("Transpose", f"t{k}", f"u{k}", perm=[1, 0]),
        node("Add", f"u{k} {rng.choice(known)}", out),
      ]
    known.append(out)
  outputs = [
    helper.make_empty_tensor_value_info(n) for n in {known[-1], *rng.sample(known[1:], min(3, count))}
  ]
  return model(nodes, [info("x", rng.choice((F, H)), dims)], outputs, weights)


def shapes(rng):
  """Shapes that are made of shapes, many times."""
  count = rng.choice((5, 20, 60))
  nodes, last, weights = [], "x", [numpy_helper.from_array(np.array([k]), f"k{k}") for k in range(3)]
  weights += [
    numpy_helper.from_array(np.array([-1]), "minus"),
    numpy_helper.from_array(np.ones(1 << rng.choice((4, 9, 10)), np.int64), "vec"),
  ]
  for k in range(count):
    nodes += [node("Shape", last, f"s{k}")]
    what = rng.randrange(5)
    if what == 0:
      nodes += [
        node("Gather", f"s{k} k0", f"g{k}"),
        node("Concat", f"g{k} minus", f"c{k}", axis=0),
        node("Reshape", f"{last} c{k}", f"r{k}"),
      ]
    elif what == 1:
      nodes += [node("Add", f"s{k} k0", f"c{k}"), node("Expand", f"{last} c{k}", f"r{k}")]
    elif what == 2:
      nodes += [
        node("Slice", f"s{k} k0 k1", f"g{k}"),
        node("Concat", f"minus g{k}", f"c{k}", axis=0),
        node("Reshape", f"{last} c{k}", f"r{k}"),
      ]
    elif what == 3:
      nodes += [node("ConstantOfShape", f"s{k}", f"c{k}"), node("Add", f"{last} c{k}", f"r{k}")]
    else:
      nodes += [
        node("Mul", "vec vec", f"q{k}"),
        node("Concat", f"q{k} vec", f"h{k}", axis=0),
        node("Identity", last, f"r{k}"),
      ]
    last = f"r{k}"
  return model(
    nodes,
    [info("x", F, rng.choice(((4, 64), ("n", 64), ("n", "m"))))],
    [helper.make_empty_tensor_value_info(last)],
    weights,
  )
