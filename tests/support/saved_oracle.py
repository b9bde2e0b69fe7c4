"""What a saved graph computes: its JSON run in float64, block by block, by position.

An independent reading of the format (paper, section 2: arXiv 2405.05751), on JSON and numpy only. A
graph that is not executable as written raises ``NotExecutableError``.
"""

from itertools import product
from typing import Any

import numpy as np
from scipy import special

Json = dict[str, Any]

UNARY = {
  "exp": np.exp,
  "square": np.square,
  "sqrt": np.sqrt,
  "log": np.log,
  "sigmoid": special.expit,
  "silu": lambda x: x * special.expit(x),
  "gelu": lambda x: x * special.ndtr(x),
  "relu": lambda x: np.maximum(x, 0),
  "rms_norm": lambda x: x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)),
  "reduction_0": lambda x: x.sum(axis=0, keepdims=True),
  "reduction_1": lambda x: x.sum(axis=1, keepdims=True),
  "reduction_2": lambda x: x.sum(axis=2, keepdims=True),
}
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


class NotExecutableError(ValueError):
  """The graph does not say what to compute."""


def need(condition, otherwise):
  if not condition:
    raise NotExecutableError(otherwise)


def run_saved(graph, inputs):
  """The outputs of one kernel graph on float64 inputs, in the order of its output operators."""
  env = {}
  given = iter(inputs)
  outputs = []
  for op in graph:
    kind = op["op_type"]
    if kind == "kn_input_op":
      x = next(given, None)
      need(x is not None, "more inputs than the reference has")
      results = [x]
    elif kind == "kn_output_op":
      outputs.append(fetch(env, op["input_tensors"][0]))
      continue
    elif kind == "kn_customized_op":
      results = run_kernel(op, [fetch(env, t) for t in op["input_tensors"]])
    else:
      arguments = [fetch(env, t) for t in op["input_tensors"]]
      results = [apply(kind.removeprefix("kn_").removesuffix("_op"), arguments)]
    store(env, op["output_tensors"], results)
  need(next(given, None) is None, "fewer inputs than the reference has")
  return outputs


def shape_of(tensor):
  return tuple(tensor["dim"][: tensor["num_dims"]])


def fetch(env, tensor):
  need(tensor["guid"] in env, f"tensor {tensor['guid']} does not exist yet")
  x = env[tensor["guid"]]
  need(x.shape == shape_of(tensor), f"{x.shape} is read as {shape_of(tensor)}")
  return x


def store(env, tensors, results):
  need(len(tensors) == len(results), "wrong number of results")
  for tensor, x in zip(tensors, results, strict=True):
    need(tensor["guid"] not in env, "a tensor is made twice")
    need(x.shape == shape_of(tensor), f"{x.shape} is recorded as {shape_of(tensor)}")
    env[tensor["guid"]] = x


def apply(op, arguments):
  if op == "matmul":
    need(len(arguments) == 2, "a matmul has two operands")
    a, b = arguments
    need(a.ndim == b.ndim and a.shape[:-2] == b.shape[:-2], "batches of a matmul differ")
    need(a.shape[-1] == b.shape[-2], f"matmul of {a.shape} and {b.shape}")
    return a @ b
  if op in UNARY:
    need(len(arguments) == 1, f"{op} has one operand")
    return UNARY[op](arguments[0])
  need(op in BINARY and len(arguments) == 2, f"no meaning for {op}")
  a, b = arguments
  fits = a.ndim == b.ndim and all(m == n or 1 in (m, n) for m, n in zip(a.shape, b.shape, strict=True))
  need(fits, f"{op} of {a.shape} and {b.shape}")
  return BINARY[op](a, b)


def run_kernel(op, inputs):
  block = op["bgraph"]
  tensors = {t["guid"]: x for t, x in zip(op["input_tensors"], inputs, strict=True)}
  grid = [block["grid_dim"][g] for g in "xyz"]
  results = {}
  for index in product(*map(range, grid)):
    for saved, tile in run_block(block, tensors, grid, index):
      guid = saved["dtensor"]["guid"]
      shape = shape_of(saved["dtensor"])
      if guid not in results:
        results[guid] = np.full(shape, np.nan)
      where = [slice(0, n) for n in tile.shape]
      extents = list(tile.shape)
      maps = [saved["output_map"][g] for g in "xyz"]
      for g, d in enumerate(maps):
        if grid[g] == 1:
          continue
        need(0 <= d < tile.ndim, "blocks write one place")
        need(where[d] == slice(0, tile.shape[d]), "two grid dimensions on one dimension")
        size = tile.shape[d]
        where[d] = slice(index[g] * size, (index[g] + 1) * size)
        extents[d] = size * grid[g]
      need(tuple(extents) == shape, f"blocks write {extents}, recorded is {shape}")
      # Grid dimension with one block on a mapped dimension: nothing to shift.
      results[guid][tuple(where)] = tile
  need(set(results) == {t["guid"] for t in op["output_tensors"]}, "other outputs are written")
  return [results[t["guid"]] for t in op["output_tensors"]]


def piece(x, dim, index, count):
  need(dim < x.ndim and x.shape[dim] % count == 0, f"{x.shape} does not cut in {count} at {dim}")
  size = x.shape[dim] // count
  where = [slice(None)] * x.ndim
  where[dim] = slice(index * size, (index + 1) * size)
  return x[tuple(where)]


def run_block(block, tensors, grid, index):
  loop, chunk = block["forloop_range"], block["reduction_dimx"]
  sums = {}
  env = {}
  for iteration in range(loop):
    env = {}
    for op in block["operators"]:
      kind = op["op_type"].removeprefix("tb_").removesuffix("_op")
      if kind == "output" or after_loop(op):
        continue
      if kind == "input":
        need(op["dtensor"]["guid"] in tensors, "the kernel does not have this input")
        x = fetch(tensors, op["dtensor"])
        used = [op["input_map"][g] for g, n in zip("xyz", grid, strict=True) if n > 1]
        cut = [d for d in used if d >= 0]
        need(len(set(cut)) == len(cut), "two grid dimensions cut one dimension")
        for g, d in zip(range(3), (op["input_map"][g] for g in "xyz"), strict=True):
          if d >= 0:
            x = piece(x, d, index[g], grid[g])
        if op["forloop_dim"] >= 0:
          x = piece(x, op["forloop_dim"], iteration, loop)
      elif kind.startswith("accum_"):
        need(len(op["input_tensors"]) == 1, "an accumulator has one operand")
        tile = summand(kind, fetch(env, op["input_tensors"][0]), chunk)
        guid = op["output_tensors"][0]["guid"]
        sums[guid] = sums[guid] + tile if guid in sums else tile
        continue
      else:
        x = calculate(kind, [fetch(env, t) for t in op["input_tensors"]], chunk)
      need(len(op["output_tensors"]) == 1, f"{kind} has one result")
      store(env, op["output_tensors"], [x])
  post = {}
  for op in block["operators"]:
    kind = op["op_type"].removeprefix("tb_").removesuffix("_op")
    if kind.startswith("accum_"):
      last = fetch(env, op["input_tensors"][0]).shape[-1]
      total = sums[op["output_tensors"][0]["guid"]]
      store(post, op["output_tensors"], [finished(kind, total, loop * last)])
    elif kind == "output":
      yield op, fetch(post, op["input_tensors"][0])
    elif after_loop(op):
      arguments = [fetch(post, t) for t in op["input_tensors"]]
      store(post, op["output_tensors"], [calculate(kind, arguments, chunk)])


def after_loop(op):
  """Whether all that the operator reads exists only after the loop."""
  flags = {t["after_accum"] for t in op["input_tensors"]}
  need(len(flags) < 2, "operands from both sides of the end of the loop")
  post = True in flags
  accumulates = op["op_type"].startswith("tb_accum_")
  need(not (post and accumulates), "an accumulator after the loop")
  for t in op["output_tensors"]:
    need(t["after_accum"] == (post or accumulates), "recorded on the wrong side of the loop")
  return post


def calculate(kind, arguments, chunk):
  if kind.endswith("_to_dimx"):
    dim = int(kind.split("_")[1])
    return chunks(np.moveaxis(arguments[0], dim, -1), chunk).swapaxes(dim, -1)
  return apply(kind, arguments)


def chunks(x, chunk):
  """The sum of the chunks of the last dimension."""
  need(x.shape[-1] % chunk == 0, f"{x.shape[-1]} is not a multiple of {chunk}")
  return x.reshape(*x.shape[:-1], -1, chunk).sum(axis=-2)


def summand(kind, x, chunk):
  if kind == "accum_nored":
    return x
  if kind in ("accum_red_ld_sum", "accum_red_ld_mean"):
    return x.sum(axis=-1, keepdims=True)
  if kind == "accum_red_ld_rms":
    return (x * x).sum(axis=-1, keepdims=True)
  need(kind == "accum_redtox_ld_sum", f"no meaning for {kind}")
  return chunks(x, chunk)


def finished(kind, total, count):
  """An accumulator after the last iteration; ``count`` elements went into each mean."""
  if kind == "accum_red_ld_mean":
    return total / count
  return np.sqrt(total / count) if kind == "accum_red_ld_rms" else total
