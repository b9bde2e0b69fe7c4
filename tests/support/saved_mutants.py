"""Every single change of a saved graph of some kinds, with its shapes recorded anew if they fit.

Many compute the same as before; the oracle says which.
"""

import copy
from dataclasses import dataclass
from itertools import islice

from saved_writer import Json, MisfitError, recorded

UNARY = ("exp", "square", "sqrt", "sigmoid", "silu", "gelu", "relu", "rms_norm")
BINARY = ("add", "sub", "mul", "div")
ACCUMULATORS = (
  "accum_nored", "accum_red_ld_sum", "accum_red_ld_mean", "accum_red_ld_rms",
  "accum_redtox_ld_sum",
)  # fmt: skip

Graph = list[Json]


@dataclass(frozen=True)
class Mutant:
  kind: str
  graph: Graph


def blocks(graph):
  return [op["bgraph"] for op in graph if "bgraph" in op]


def operators(graph):
  result = []
  for op in graph:
    result += op["bgraph"]["operators"] if "bgraph" in op else [op]
  return result


def name_of(op):
  return str(op["op_type"][3:-3])


def renamed(op, name):
  op["op_type"] = f"{op['op_type'][:3]}{name}_op"


def map_edits(graph, field):
  """One entry of one map of one block input or output."""
  kind = field.removesuffix("_map")
  for n, op in enumerate(operators(graph)):
    if not op["op_type"].startswith("tb_") or name_of(op) != kind:
      continue
    for g in "xyz":
      for d in range(-1, op["dtensor"]["num_dims"]):
        if d != op[field][g]:
          yield lambda x, n=n, g=g, d=d: operators(x)[n][field].update({g: d})


def loop_edits(graph):
  for n, op in enumerate(operators(graph)):
    if "forloop_dim" not in op:
      continue
    for d in range(-1, op["dtensor"]["num_dims"]):
      if d != op["forloop_dim"]:
        yield lambda x, n=n, d=d: operators(x)[n].update(forloop_dim=d)


def tensor_edits(graph):
  """A block input reads another device tensor."""
  made = [t["guid"] for op in graph for t in op["output_tensors"]]
  for n, op in enumerate(operators(graph)):
    if op["op_type"] != "tb_input_op":
      continue
    for guid in made:
      if guid != op["dtensor"]["guid"]:
        yield lambda x, n=n, guid=guid: operators(x)[n]["dtensor"].update(guid=guid)


def swap_edits(graph):
  for n, op in enumerate(operators(graph)):
    if len(op["input_tensors"]) == 2 and "bgraph" not in op:
      yield lambda x, n=n: operators(x)[n]["input_tensors"].reverse()


def operand_edits(graph):
  """An operand is replaced by any other value that exists in the same graph."""
  levels = [(graph, "kn_")] + [(b["operators"], "tb_") for b in blocks(graph)]
  for ops, prefix in levels:
    values = [t["guid"] for op in ops for t in op["output_tensors"]]
    for op in ops:
      if op["op_type"] == "kn_customized_op":
        continue
      n = next(i for i, o in enumerate(operators(graph)) if o is op)
      assert op["op_type"].startswith(prefix)
      for position, t in enumerate(op["input_tensors"]):
        for guid in values:
          if guid != t["guid"]:
            yield lambda x, n=n, p=position, guid=guid: operators(x)[n]["input_tensors"][p].update(guid=guid)


def function_edits(graph, names):
  for n, op in enumerate(operators(graph)):
    if name_of(op) in names:
      for other in names:
        if other != name_of(op):
          yield lambda x, n=n, other=other: renamed(operators(x)[n], other)


def drop_edits(graph):
  """An operation is left out; what read its result reads an operand."""
  for n, op in enumerate(operators(graph)):
    if name_of(op) in ("input", "output", "customized"):
      continue
    for t in op["input_tensors"]:
      yield lambda x, n=n, guid=t["guid"]: _drop(x, n, guid)


def _drop(graph, n, instead):
  op = operators(graph)[n]
  gone = op["output_tensors"][0]["guid"]
  for ops in (graph, *(b["operators"] for b in blocks(graph))):
    ops[:] = [o for o in ops if o is not op]
  for o in operators(graph):
    for t in o["input_tensors"]:
      if t["guid"] == gone:
        t["guid"] = instead


def order_edits(graph):
  """A function before an accumulator comes after it, or the other way round."""
  for n, op in enumerate(operators(graph)):
    for m, later in enumerate(operators(graph)):
      reads = [t["guid"] for t in later["input_tensors"]]
      pair = (name_of(op), name_of(later))
      accumulates = [p in ACCUMULATORS for p in pair]
      unary = len(op["input_tensors"]) == len(reads) == 1
      made = [t["guid"] for t in op["output_tensors"]]
      if unary and sum(accumulates) == 1 and reads == made and "output" not in pair[1]:
        yield lambda x, n=n, m=m: _exchange(x, n, m)


def _exchange(graph, n, m):
  first, second = operators(graph)[n], operators(graph)[m]
  one, two = name_of(first), name_of(second)
  renamed(first, two)
  renamed(second, one)


def number_edits(graph):
  """Twice or half as many blocks, iterations, or elements of a chunk."""
  for n, block in enumerate(blocks(graph)):
    for field in ("forloop_range", "reduction_dimx"):
      for number in (block[field] * 2, block[field] // 2):
        if number:
          yield lambda x, n=n, f=field, v=number: blocks(x)[n].update({f: v})
    for g in "xyz":
      for number in (block["grid_dim"][g] * 2, block["grid_dim"][g] // 2):
        if number:
          yield lambda x, n=n, g=g, v=number: blocks(x)[n]["grid_dim"].update({g: v})


KINDS = {
  "input map": lambda g: map_edits(g, "input_map"),
  "loop map": loop_edits,
  "output map": lambda g: map_edits(g, "output_map"),
  "other tensor": tensor_edits,
  "swapped operands": swap_edits,
  "other operand": operand_edits,
  "other function": lambda g: function_edits(g, UNARY),
  "other operation": lambda g: function_edits(g, BINARY),
  "other accumulator": lambda g: function_edits(g, ACCUMULATORS),
  "left out": drop_edits,
  "exchanged": order_edits,
  "numbers": number_edits,
}


def mutants(graph, step=1):
  """The mutants whose shapes fit, of every ``step``-th edit."""
  every = ((kind, edit) for kind, edits in KINDS.items() for edit in edits(graph))
  for kind, edit in islice(every, 0, None, step):
    changed = copy.deepcopy(graph)
    edit(changed)
    try:
      yield Mutant(kind, recorded(changed))
    except MisfitError:
      continue
