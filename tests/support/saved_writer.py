"""Writes saved graphs in the original's JSON format, and recomputes the shapes in a changed one.

A tensor is an int, its ``guid``. ``recorded`` makes a mutant as consistent as what a search saves.
"""

import copy
from itertools import count
from typing import Any

Json = dict[str, Any]
Shape = tuple[int, ...]
NOWHERE = (-1, -1, -1)
FLOAT16 = 921


class MisfitError(ValueError):
  """The operations of a graph do not fit together, whatever shapes are recorded."""


class Kernel:
  def __init__(self, names, grid, loop, chunk):
    self._names = names
    self.operators = []
    self.block = {
      "block_dim": {"x": 128, "y": 1, "z": 1},
      "forloop_range": loop,
      "grid_dim": triple(grid),
      "graph_level": "thread_block_graph",
      "operators": self.operators,
      "reduction_dimx": chunk,
      "smem_offset": 0,
    }

  def load(self, tensor, imap=NOWHERE, loop_dim=-1):
    extra = {"input_map": triple(imap), "forloop_dim": loop_dim, "dtensor": {"guid": tensor}}
    return self._add("tb_input_op", (), extra)

  def op(self, name, *inputs):
    return self._add(f"tb_{name}_op", inputs, {})

  def store(self, value, omap=NOWHERE):
    tensor = next(self._names)
    extra = {"output_map": triple(omap), "dtensor": {"guid": tensor}}
    self.operators.append(operator("tb_output_op", (value,), (), extra))
    return tensor

  def _add(self, kind, inputs, extra):
    out = next(self._names)
    self.operators.append(operator(kind, inputs, (out,), extra))
    return out


class Graph:
  def __init__(self):
    self._names = count(1000)
    self.operators = []

  def input(self, *shape):
    out = next(self._names)
    op = operator("kn_input_op", (), (out,), {"input_map": triple(NOWHERE)})
    op["output_tensors"] = [tensor(out, shape, post=None)]
    self.operators.append(op)
    return out

  def op(self, name, *inputs):
    out = next(self._names)
    self.operators.append(operator(f"kn_{name}_op", inputs, (out,), {}))
    return out

  def kernel(self, grid=(1, 1, 1), loop=1, chunk=64):
    kernel = Kernel(self._names, grid, loop, chunk)
    op = operator("kn_customized_op", (), (), {"bgraph": kernel.block})
    self.operators.append(op)
    return kernel

  def output(self, value):
    extra = {"output_map": triple(NOWHERE)}
    self.operators.append(operator("kn_output_op", (value,), (), extra))

  def saved(self):
    return recorded(self.operators)


def begun(*shapes):
  g = Graph()
  return (g, *(g.input(*s) for s in shapes))


def squares(count):
  return begun(*[(8, 8)] * count)


def triple(values):
  return dict(zip("xyz", values, strict=True))


def operator(kind, inputs, outputs, extra):
  return {
    "op_type": kind,
    "input_tensors": [{"guid": g} for g in inputs],
    "output_tensors": [{"guid": g} for g in outputs],
    **extra,
  }


def tensor(guid, shape, post):
  """``post`` is None for a device tensor."""
  padded = [*shape, *[0] * (4 - len(shape))]
  common = {"data_type": FLOAT16, "dim": padded, "guid": guid, "num_dims": len(shape)}
  if post is None:
    return {**common, "layout": "DmemRowMajor"}
  return {**common, "layout": "SmemRowMajor", "after_accum": post, "smem_offset": 0}


def recorded(operators):
  """A copy with the interface of its custom kernels and every shape recomputed.

  Raises:
      MisfitError: there are no shapes that fit.
  """
  graph = copy.deepcopy(operators)
  shapes = {}
  for op in graph:
    kind = op["op_type"].removeprefix("kn_").removesuffix("_op")
    if kind == "input":
      t = op["output_tensors"][0]
      shapes[t["guid"]] = tuple(t["dim"][: t["num_dims"]])
      continue
    if kind == "customized":
      _record_kernel(op, shapes)
      continue
    arguments = [t["guid"] for t in op["input_tensors"]]
    op["input_tensors"] = [tensor(g, look_up(shapes, g), None) for g in arguments]
    if kind != "output":
      guid = op["output_tensors"][0]["guid"]
      shapes[guid] = result_shape(kind, [look_up(shapes, g) for g in arguments], 1)
      op["output_tensors"] = [tensor(guid, shapes[guid], None)]
  return graph


def _record_kernel(op, device):
  block = op["bgraph"]
  grid = [block["grid_dim"][g] for g in "xyz"]
  loop, chunk = block["forloop_range"], block["reduction_dimx"]
  shapes = {}
  post = {}
  reads = []
  writes = []
  for inner in block["operators"]:
    kind = inner["op_type"].removeprefix("tb_").removesuffix("_op")
    arguments = [t["guid"] for t in inner["input_tensors"]]
    found = [look_up(shapes, g) for g in arguments]
    inner["input_tensors"] = [tensor(g, s, post[g]) for g, s in zip(arguments, found, strict=True)]
    if kind == "output":
      guid = inner["dtensor"]["guid"]
      device[guid] = scaled(found[0], inner["output_map"], grid, grow=True)
      inner["dtensor"] = tensor(guid, device[guid], None)
      writes.append(inner["dtensor"])
      continue
    out = inner["output_tensors"][0]["guid"]
    after = False
    if kind == "input":
      guid = inner["dtensor"]["guid"]
      inner["dtensor"] = tensor(guid, look_up(device, guid), None)
      reads.append(inner["dtensor"])
      shape = scaled(device[guid], inner["input_map"], grid, grow=False)
      looped = {"x": inner["forloop_dim"], "y": -1, "z": -1}
      shapes[out] = scaled(shape, looped, [loop, 1, 1], grow=False)
    else:
      shapes[out] = result_shape(kind, found, chunk)
      sides = {post[g] for g in arguments}
      if len(sides) != 1 or (kind.startswith("accum_") and sides == {True}):
        raise MisfitError(f"{kind} across the end of the loop")
      after = kind.startswith("accum_") or sides == {True}
    post[out] = after
    inner["output_tensors"] = [tensor(out, shapes[out], after)]
  op["input_tensors"], op["output_tensors"] = reads, writes


def look_up(shapes, guid):
  if guid not in shapes:
    raise MisfitError(f"{guid} is not there yet")
  return shapes[guid]


def scaled(shape, maps, grid, *, grow):
  """The shape with its mapped dimensions divided by (``grow``: times) the grid's."""
  result = list(shape)
  for g, blocks in zip("xyz", grid, strict=True):
    d = maps[g]
    if d < 0:
      continue
    if d >= len(result) or (not grow and result[d] % blocks):
      raise MisfitError(f"{shape} does not cut in {blocks} at dimension {d}")
    result[d] = result[d] * blocks if grow else result[d] // blocks
  return tuple(result)


def result_shape(kind, shapes, chunk):
  first = shapes[0]
  if kind == "matmul":
    a, b = shapes
    if len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2]:
      raise MisfitError(f"matmul of {a} and {b}")
    return (*a[:-1], b[-1])
  if len(shapes) == 2:
    if len(first) != len(shapes[1]):
      raise MisfitError(f"{kind} of {shapes}")
    for m, n in zip(*shapes, strict=True):
      if m != n and 1 not in (m, n):
        raise MisfitError(f"{kind} of {shapes}")
    return tuple(map(max, *shapes))
  if kind.startswith("accum_red_ld"):
    return (*first[:-1], 1)
  if kind.startswith("accum_redtox"):
    if first[-1] % chunk:
      raise MisfitError(f"{first[-1]} is not a multiple of {chunk}")
    return (*first[:-1], chunk)
  if kind.startswith("reduction_"):
    dim = int(kind.split("_")[1])
    if dim >= len(first):
      raise MisfitError(f"{kind} of {first}")
    left = chunk if kind.endswith("dimx") else 1
    if first[dim] % left:
      raise MisfitError(f"{first[dim]} is not a multiple of {left}")
    return (*first[:dim], left, *first[dim + 1 :])
  return first
