"""Odd attributes, numbers of operands, and names."""

import numpy as np
from odd_base import HUGE, INT, ODD_FLOATS, B, F, H, info, model, node, plain
from onnx import helper, numpy_helper

_ATTRIBUTES = {
  "Softmax": ("x", {"axis": HUGE}), "Clip": ("x lo hi", {}), "LayerNormalization": ("x s", {"epsilon": ODD_FLOATS, "axis": HUGE, "stash_type": HUGE}),
  "Gemm": ("x w", {"alpha": ODD_FLOATS, "beta": ODD_FLOATS, "transA": HUGE, "transB": HUGE}), "LeakyRelu": ("x", {"alpha": ODD_FLOATS}),
  "Elu": ("x", {"alpha": ODD_FLOATS}), "HardSigmoid": ("x", {"alpha": ODD_FLOATS, "beta": ODD_FLOATS}),
  "Transpose": ("x", {"perm": None}), "Flatten": ("x", {"axis": HUGE}), "Concat": ("x x", {"axis": HUGE}), "Cast": ("x", {"to": HUGE}),
  "ReduceSum": ("x axes", {"keepdims": HUGE, "noop_with_empty_axes": HUGE}), "ReduceMean": ("x axes", {"keepdims": HUGE}),
  "Split": ("x axes", {"axis": HUGE, "num_outputs": HUGE}), "Slice": ("x lo8 hi8 axes steps", {}), "Pad": ("x pads", {}),
  "Tile": ("x reps", {}), "Expand": ("x reps", {}), "Reshape": ("x reps", {"allowzero": HUGE}), "Gather": ("x axes", {"axis": HUGE}),
  "GatherElements": ("x axes", {"axis": HUGE}), "GatherND": ("x axes", {"batch_dims": HUGE}), "OneHot": ("axes depth two", {"axis": HUGE}),
  "Range": ("n0 n1 n2", {}), "ConstantOfShape": ("reps", {}), "Unsqueeze": ("x axes", {}), "Squeeze": ("x axes", {}),
  "Trilu": ("x n0", {"upper": HUGE}), "CumSum": ("x n0", {"exclusive": HUGE}), "TopK": ("x depth1", {"axis": HUGE, "k": HUGE}),
  "Conv": ("x4 w4", {"group": HUGE, "kernel_shape": None, "pads": None, "strides": None, "dilations": None}),
  "MaxPool": ("x4", {"kernel_shape": None, "pads": None, "strides": None, "dilations": None, "ceil_mode": HUGE}),
  "AveragePool": ("x4", {"kernel_shape": None, "pads": None, "strides": None, "ceil_mode": HUGE}),
  "ConvTranspose": ("x4 w4", {"group": HUGE, "output_padding": None, "output_shape": None, "strides": None, "pads": None}),
  "Resize": ("x4  sc", {"axes": None}), "Upsample": ("x4 sc", {}), "DepthToSpace": ("x4", {"blocksize": HUGE}), "SpaceToDepth": ("x4", {"blocksize": HUGE}),
  "GroupNormalization": ("x4 s s", {"num_groups": HUGE, "epsilon": ODD_FLOATS}), "LpPool": ("x4", {"kernel_shape": None, "p": HUGE}),
  "Attention": ("x3 x3 x3", {"q_num_heads": HUGE, "kv_num_heads": HUGE, "scale": ODD_FLOATS, "softcap": ODD_FLOATS, "is_causal": HUGE}),
  "RMSNormalization": ("x s", {"axis": HUGE, "epsilon": ODD_FLOATS, "stash_type": HUGE}), "RotaryEmbedding": ("x3 cs cs", {"num_heads": HUGE, "rotary_embedding_dim": HUGE, "interleaved": HUGE}),
  "QuantizeLinear": ("x s", {"axis": HUGE, "block_size": HUGE, "output_dtype": HUGE, "precision": HUGE}), "DequantizeLinear": ("q8 s", {"axis": HUGE, "block_size": HUGE}),
  "EyeLike": ("x", {"dtype": HUGE, "k": HUGE}), "Multinomial": ("x", {"dtype": HUGE, "sample_size": HUGE}), "RandomNormalLike": ("x", {"dtype": HUGE}),
  "RandomUniform": ("", {"shape": None, "dtype": HUGE}), "Einsum": ("x x", {"equation": ("ij,ij", "ij,jk->ik", "...i,...i->...", "i" * 70 + "," + "j", "ij,ij->ijijij", "->", "a,b,c", "ii,ii->i", "ij,kl->..."), }),
  "LSTM": ("x3 w3 r3", {"hidden_size": HUGE, "layout": HUGE, "direction": ("forward", "bidirectional", "odd")}), "GRU": ("x3 w3 r3", {"hidden_size": HUGE}),
  "ScatterND": ("x axes x", {}), "ScatterElements": ("x axes x", {"axis": HUGE}), "Compress": ("x bb", {"axis": HUGE}), "Det": ("x4", {}), "STFT": ("x3 n0 s n1", {"onesided": HUGE}), "DFT": ("x3 n0 n1", {"inverse": HUGE}),
  "MelWeightMatrix": ("n0 n1 n2 f0 f1", {"output_datatype": HUGE}), "HannWindow": ("n0", {"output_datatype": HUGE, "periodic": HUGE}), "RoiAlign": ("x4 ro axes", {"output_height": HUGE, "output_width": HUGE}),
  "NonMaxSuppression": ("ro3 x3 n0", {"center_point_box": HUGE}), "Col2Im": ("x3 axes axes", {"pads": None, "strides": None, "dilations": None}), "GridSample": ("x4 x4", {"align_corners": HUGE}), "AffineGrid": ("x3 axes", {}), "CenterCropPad": ("x axes", {"axes": None}),
  "MatMulInteger": ("q8 q8", {}), "QLinearMatMul": ("q8 f0 z q8 f0 z f0 z", {}), "QLinearConv": ("x4 f0 z w4 f0 z f0 z", {"group": HUGE, "strides": None}), "SplitToSequence": ("x axes", {"axis": HUGE, "keepdims": HUGE}), "ConcatFromSequence": ("sq", {"axis": HUGE, "new_axis": HUGE}),
  "ImageDecoder": ("u8", {"pixel_format": ("RGB", "odd")}), "StringSplit": ("st", {"maxsplit": HUGE, "delimiter": ("", "a")}), "TfIdfVectorizer": ("axes", {"max_gram_length": HUGE, "min_gram_length": HUGE, "max_skip_count": HUGE, "ngram_counts": None, "ngram_indexes": None, "pool_int64s": None, "mode": ("TF", "odd")}),
  "Unique": ("x", {"axis": HUGE, "sorted": HUGE}), "BatchNormalization": ("x4 s s s s", {"epsilon": ODD_FLOATS, "training_mode": HUGE}), "InstanceNormalization": ("x4 s s", {"epsilon": ODD_FLOATS}), "LRN": ("x4", {"size": HUGE, "alpha": ODD_FLOATS}), "MaxUnpool": ("x4 i4", {"kernel_shape": None, "strides": None, "pads": None}),
  "NegativeLogLikelihoodLoss": ("x4 axes", {"ignore_index": HUGE}), "SoftmaxCrossEntropyLoss": ("x4 axes", {"ignore_index": HUGE}), "ReverseSequence": ("x axes", {"batch_axis": HUGE, "time_axis": HUGE}), "Bernoulli": ("x", {"dtype": HUGE}), "TensorScatter": ("x x axes", {"axis": HUGE}), "Swish": ("x", {"alpha": ODD_FLOATS}),
}  # fmt: skip


def attributes(rng):
  """An operator with attributes and small operands at their ends."""
  op = rng.choice(sorted(_ATTRIBUTES))
  names, given = _ATTRIBUTES[op]
  chosen = {}
  for name, values in given.items():
    if rng.random() < 0.6:
      if values is None:
        chosen[name] = [rng.choice(HUGE) for _ in range(rng.choice((0, 1, 2, 3, 4, 8)))]
      elif rng.random() < 0.3:
        chosen[name] = rng.choice(([1], [1.5], "s", 1, 0.5))
      else:
        chosen[name] = rng.choice(values)
  ints = lambda n: np.array([rng.choice((*HUGE, 0, 1, -1, 2)) for _ in range(n)], np.int64)  # noqa: E731
  scalars = {n: np.array(rng.choice((*HUGE, 0, 1, 3)), np.int64) for n in ("n0", "n1", "n2", "depth")}
  values = {
    **scalars, "depth1": ints(1), "axes": ints(rng.choice((0, 1, 2, 3))), "lo8": ints(2), "hi8": ints(2), "steps": ints(2),
    "pads": ints(rng.choice((0, 3, 4, 8))), "reps": ints(rng.choice((0, 1, 2, 3, 9, 65))), "two": np.zeros(2, np.float32),
    "lo": np.float32(rng.choice(ODD_FLOATS)), "hi": np.float32(rng.choice(ODD_FLOATS)), "sc": np.array([rng.choice(ODD_FLOATS) for _ in range(rng.choice((0, 2, 4)))], np.float32),
    "s": np.ones(64, np.float32), "w": np.ones((64, 8), np.float32), "f0": np.float32(1), "f1": np.float32(2), "z": np.uint8(0),
    "bb": np.ones(3, bool),
  }  # fmt: skip
  odd = lambda *dims: [rng.choice((*HUGE, "n")) if rng.random() < 0.1 else d for d in dims]  # noqa: E731
  shapes = {
    "x": (F, (4, 64)), "x3": (F, (2, 8, 64)), "x4": (F, (1, 4, 8, 8)), "w4": (F, (4, 4, 3, 3)), "w3": (F, (1, 32, 64)), "r3": (F, (1, 32, 8)),
    "cs": (F, (8, 32)), "q8": (2, (4, 64)), "ro": (F, (3, 4)), "ro3": (F, (1, 8, 4)), "i4": (INT, (1, 4, 8, 8)), "u8": (2, (9,)), "st": (8, (3,)), "sq": (F, (4, 64)),
  }  # fmt: skip
  inputs, weights = [], []
  for name in dict.fromkeys(n for n in names.split(" ") if n):
    if name in values and rng.random() < 0.85:
      weights.append(numpy_helper.from_array(np.asarray(values[name]), name))
    else:
      array = values.get(name)
      kind, dims = (
        shapes[name]
        if array is None
        else (helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), np.shape(array))
      )
      inputs.append(info(name, kind, odd(*dims)))
      if rng.random() < 0.05:
        inputs[-1].type.tensor_type.ClearField("shape")
  operands = names.split(" ") if names else []
  if rng.random() < 0.15:
    operands = operands[: rng.randrange(len(operands) + 1)]
  if rng.random() < 0.1:
    operands[rng.randrange(len(operands)) if operands else 0 :] = ["" for _ in operands[:1]]
  outs = [f"y{k}" for k in range(rng.choice((1, 1, 1, 2, 3)))]
  nodes = [node(op, operands, outs, **chosen)]
  if rng.random() < 0.3 and inputs:  # of a type that nothing knows
    nodes.insert(0, helper.make_node("Theirs", [], [f"{inputs[0].name}"], domain="my"))
    inputs = inputs[1:]
  if rng.random() < 0.4:
    nodes.append(
      node(
        rng.choice(("Relu", "Shape", "Identity", "Cast")),
        "y0",
        "r",
        **({"to": 1} if nodes[-1] is None else {}),
      )
    )
    outs = ["r"]
  opset = rng.choice((7, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26))
  made = [helper.make_empty_tensor_value_info(o) for o in outs]
  for m in made:
    if rng.random() < 0.3:
      m.CopyFrom(info(m.name, rng.choice((F, INT, H)), odd(4, 64)))
  return model(nodes, inputs, made, weights, opset=opset)


def arities(rng):
  """If, Loop, Scan and SequenceMap whose graphs take and make other counts."""
  op = rng.choice(("If", "Loop", "Scan", "SequenceMap"))

  def body(k):
    ins = [
      info(f"b{k}_{j}", rng.choice((F, INT, B)), rng.choice(((), (4,), (4, 64))))
      for j in range(rng.randrange(5))
    ]
    made = [f"o{k}_{j}" for j in range(rng.randrange(4))]
    nodes = [node("Identity", rng.choice([i.name for i in ins] or ["x"]), m) for m in made]
    return helper.make_graph(
      nodes, f"g{k}", ins, [helper.make_empty_tensor_value_info(m) for m in made if rng.random() < 0.9]
    )

  given = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
    "SequenceMap": ("body",),
  }[op]
  chosen = {name: body(k) for k, name in enumerate(given) if rng.random() < 0.9}
  if op == "Scan":
    chosen["num_scan_inputs"] = rng.choice(HUGE)
    for name in ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"):
      if rng.random() < 0.4:
        chosen[name] = [rng.choice(HUGE) for _ in range(rng.randrange(4))]
  if rng.random() < 0.1:
    chosen[given[0]] = 3
  operands = [rng.choice(("x", "t", "c", "", "sq")) for _ in range(rng.randrange(6))]
  outs = [f"y{k}" for k in range(rng.randrange(4))]
  nodes = [
    node("SequenceConstruct", "x x", "sq"),
    node(op, operands, outs, **chosen),
    node("Relu", "x", "last"),
  ]
  ins = [info("x"), info("t", INT, rng.choice(((), (1,)))), info("c", B, ())]
  made = [helper.make_empty_tensor_value_info(o) for o in (*outs, "last")]
  return model(nodes, ins, made, opset=rng.choice((8, 9, 11, 13, 16, 17, 19, 21, 23, 25)))


def names(rng):
  """Values whose names are in each other's way."""
  found = plain(rng)
  graph = found.graph
  odd = rng.choice(
    (
      "",
      " ",
      "x",
      "y",
      "a\nb",
      "a\0b",
      "\u2028",
      "n" * 70_000,
      "/",
      "..",
      "mirage/bundle",
      "%",
      "{}",
      "\\",
      "'",
      "🙂" * 9,
      "\ufeff",
    )
  )
  for n in graph.node:
    if rng.random() < 0.3:
      n.name = odd
    for holder in (n.input, n.output):
      for k in range(len(holder)):
        if rng.random() < 0.15:
          holder[k] = odd
  for holder in (graph.input, graph.output, graph.initializer):
    for v in holder:
      if rng.random() < 0.2:
        v.name = odd
  if rng.random() < 0.3:
    branch = helper.make_graph([node("Relu", "x", odd)], "b", [], [helper.make_empty_tensor_value_info(odd)])
    graph.node.append(node("If", "cc", "z", then_branch=branch, else_branch=branch))
    graph.input.append(info("cc", B, ()))
  if rng.random() < 0.3:
    graph.name = odd
  return found
