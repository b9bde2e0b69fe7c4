"""What ONNX Runtime's own kernels cost on a target: a measured table, interpolated.

``targets/tables/<target>.json`` is written by ``bench/baseline_table.py`` on the GPU itself. Each figure is
an operator's share of a replayed CUDA graph. Operators that ORT computes in the kernel of a neighbour cost
what that takes more with them (``ort_joins.py``), so a prediction never claims a gain that ORT's own
optimizer makes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod

import numpy as np

from mirage_onnx.importer.causal import implied
from mirage_onnx.importer.split_caches import CACHED
from mirage_onnx.ir.program import Node, Program
from mirage_onnx.target import TARGETS, Target
from mirage_onnx.targets import table_path
from mirage_onnx.tune.operator_grid import TimesGrid
from mirage_onnx.tune.operator_kinds import BROADCASTS, GridPlace, place_of
from mirage_onnx.tune.ort_joins import FREE, Guest, folded, joined
from mirage_onnx.tune.other_gpu import measured_like, product_us, scaled_us

#: The kind of a grid that says what a bias adds to a product, by the elements of the result.
BIAS = "Bias"
#: Operators that copy what they yield: as long as the cheapest function of one operand at least,
#: which reads as much as it writes. What repeats its elements (Expand) reads fewer; parts of unequal
#: sizes put together are measured.
COPIES, COPY = frozenset({"Slice", "Split", "Concat", "Gather", "Expand"}), "Relu"


@dataclass(frozen=True, slots=True)
class Table:
  """``ops``: operator -> points (elements, us); ``matmul``: points (m, k, n, us).

  ``grid``: times by more sizes and types, in place of both where it knows them.
  """

  source: str
  ops: Mapping[str, tuple[tuple[float, float], ...]]
  matmul: tuple[tuple[int, int, int, float], ...]
  grid: TimesGrid | None = None
  grid_first: bool = True

  @property
  def most_elements(self) -> int:
    """Of the largest operator that was measured."""
    if self.grid is not None:
      return self.grid.most_elements
    return int(max(points[-1][0] for points in self.ops.values()))

  def op_us(self, op: str, elements: int) -> float | None:
    """Time of an operator over ``elements``: linear between points, unknown beyond the last one."""
    points = self.ops.get(op)
    if not points or elements > points[-1][0]:
      return None
    xs, ys = zip(*points, strict=True)
    return float(np.interp(elements, xs, ys))

  def matmul_us(self, m: int, k: int, n: int) -> float | None:
    """Time of a contraction with an m-row operand: by the bytes of the other one.

    Of rows between those that were measured, the time of the next more; unknown beyond. (Ten times
    the rows are not ten times the time: 4096 rows take a library a third of what 256 rows say.)
    """
    row = min((p[0] for p in self.matmul if p[0] >= m), default=None)
    points = sorted((p[1] * p[2], p[3]) for p in self.matmul if p[0] == row)
    if not points or k * n > points[-1][0]:
      return None
    xs, ys = zip(*points, strict=True)
    return float(np.interp(k * n, xs, ys))


def ranking_table(target: Target) -> Table | None:
  """The table that says which regions to time first: that of ``target``, else of a GPU like it."""
  return load_table(target) or (load_table(TARGETS[target.ranked_by]) if target.ranked_by else None)


@cache
def load_table(target: Target) -> Table | None:
  """The table of ``target``: measured, or another GPU's, scaled (``other_gpu.py``); None without either.

  ``calibrate`` measures one of a GPU that is here; those of rows are in ``targets/tables``.
  """
  path = table_path(target.name)
  if not target.table and not path.is_file():
    like = measured_like(target)
    table = load_table(like) if like else None
    return _scaled(table, like, target) if table and like else None
  table = _read(target)
  return replace(table, grid_first=False) if table.ops else table


@cache
def model_table(target: Target) -> Table | None:
  """The table that says what whole models take: with all that is known of ``target``, however."""
  return _read(target) if target.table or table_path(target.name).is_file() else load_table(target)


def _read(target: Target) -> Table:
  data = json.loads(target.table or table_path(target.name).read_text())
  data.setdefault("gpu", target.gpu)
  ops = {k: tuple(sorted((float(e), float(t)) for e, t in v)) for k, v in data.get("ops", {}).items()}
  matmul = tuple((int(m), int(k), int(n), float(t)) for m, k, n, t in data.get("matmul", ()))
  grid = TimesGrid.of(data["points"]) if "points" in data else None
  return Table(f"onnxruntime {data['ort']} on {data['gpu']}", ops, matmul, grid)


def _scaled(table: Table, measured: Target, target: Target) -> Table:
  ops = {
    op: tuple((elements, scaled_us(us, measured, target)) for elements, us in points)
    for op, points in table.ops.items()
  }
  matmul = tuple((m, k, n, product_us(us, k, n, measured, target)) for m, k, n, us in table.matmul)
  return Table(f"{table.source}, scaled to {target.name}", ops, matmul)


def node_times_us(program: Program, table: Table) -> dict[str, float]:
  """Predicted time of every node that the table knows; unknown ones are left out.

  Leaving a node out can only make a region look less worth replacing.
  """
  guests, nodes = joined(program), {n.name: n for n in program.nodes}
  found = dict.fromkeys(folded(program), 0.0)
  for node in (n for n in program.nodes if n.name not in found):
    guest = guests.get(node.name)
    if guest is not None:
      found[node.name] = _guest_us(guest, nodes[guest.host], program, table)
      continue
    if node.op_type in FREE:
      found[node.name] = 0.0
      continue
    time_us = _node_us(node, program, table)
    if time_us is not None:
      found[node.name] = time_us
  return found


def _guest_us(guest: Guest, host: Node, program: Program, table: Table) -> float:
  """What a host takes longer with its guest, as far as that is known."""
  place = place_of(host, program) if table.grid and guest.joint else None
  if place is None or table.grid is None:
    return 0.0
  if guest.joint == BIAS:
    m, _, n = place.sizes
    return table.grid.us(BIAS, place.dtype, (m * n,)) or 0.0
  both, alone = (table.grid.us(kind, place.dtype, place.sizes) for kind in (guest.joint, place.kind))
  return max(0.0, both - alone) if both is not None and alone is not None else 0.0


def alone_us(program: Program, target: Target, table: Table | None = None) -> dict[str, tuple[str, float]]:
  """Of every node that ORT computes in the kernel of another one: which, and its time without.

  The time is what it takes more than it does there; ``table``: that of the target's choices if none is given.
  """
  table = table or ranking_table(target)
  if table is None:
    return {}
  nodes = {n.name: n for n in program.nodes}
  found = dict[str, tuple[str, float]]()
  unasked = folded(program)
  for name, guest in joined(program).items():
    if name in unasked:
      continue
    us = _node_us(nodes[name], program, table)
    more_us = us and us - _guest_us(guest, nodes[guest.host], program, table)
    if more_us and more_us > 0:
      found[name] = guest.host, more_us
  return found


def _node_us(node: Node, program: Program, table: Table) -> float | None:
  if table.grid is None:
    return _listed_us(node, program, table)
  if not table.ops:
    return _grid_us(node, program, table.grid)
  asks = (_grid_us(node, program, table.grid), _listed_us(node, program, table))
  return next((us for us in (asks if table.grid_first else asks[::-1]) if us is not None), None)


def _listed_us(node: Node, program: Program, table: Table) -> float | None:
  contractions = sum(s.op == "matmul" for s in node.steps)
  out = program.tensors[node.outputs[0]] if node.outputs else None
  if out is None or not out.is_static or contractions > 1:
    return None
  if node.op_type in COPIES and node.barrier is None:
    made = sum(prod(program.numbers(o) or ()) for o in node.outputs)
    if node.op_type == "Concat" and len({program.numbers(i) for i in node.inputs}) > 1:
      return table.op_us("Concat", made) or table.op_us(COPY, made)
    return table.op_us(COPY, made // 2 if node.op_type == "Expand" else made)
  if contractions:
    product = weight_product(node, program)
    return table.matmul_us(*product) if product else None
  size = largest_elements(node, program)
  time_us = table.op_us(node.op_type, size)
  if time_us is None and node.steps and node.barrier is None and len(node.steps) == 1:
    binary = len(node.inputs) == 2
    time_us = table.op_us("Mul" if binary else "Exp", size)
  return time_us


def _grid_us(node: Node, program: Program, grid: TimesGrid) -> float | None:
  place = place_of(node, program)
  if place is None:
    return None
  us = grid.us(place.kind, place.dtype, place.sizes)
  if us is not None and node.op_type == "Gemm" and len(node.inputs) > 2:
    m, _, n = place.sizes
    us += grid.us(BIAS, place.dtype, (m * n,)) or 0.0
  return _alike_us(node, place, grid) if us is None else us


def _alike_us(node: Node, place: GridPlace, grid: TimesGrid) -> float | None:
  """What an operator over elements takes that was not measured so: as its like, or as many bytes in fp16."""
  if len(place.sizes) != 1 or node.barrier is not None or not node.steps:
    return None
  like = [place.kind, *(place.kind.removesuffix(end) for end in BROADCASTS if place.kind.endswith(end))]
  if node.op_type in COPIES or node.op_type == "Transpose":
    like.append(COPY)
  elif len(node.steps) == 1:
    like.append("Mul" if len(node.inputs) == 2 else "Exp")
  (elements,) = place.sizes
  wide = elements * (2 if place.dtype == "fp32" else 1)
  asked = ((kind, *at) for kind in like for at in ((place.dtype, elements), ("fp16", wide)))
  known = (grid.us(kind, dtype, (count,)) for kind, dtype, count in asked)
  return next((us for us in known if us is not None), None)


def weight_product(node: Node, program: Program) -> tuple[int, int, int] | None:
  """(rows of the activation, the sizes of the weight) of a node that contracts an initializer.

  Of one of few bits nothing is known: other kernels compute with those.
  """
  if not any(s.op == "matmul" for s in node.steps) or any(s.op == "stored" for s in node.steps):
    return None
  out = program.tensors[node.outputs[0]]
  weights = (program.tensors[i].shape for i in node.inputs if i in program.weights)
  shape = next(weights, None)
  if not out.is_static or shape is None or len(shape) < 2:
    return None
  k, n = sorted((int(shape[-2]), int(shape[-1])))
  sizes = [int(d) for d in out.shape or (1,)]
  return max(1, prod(sizes) // max(1, sizes[-1])), k, n


def largest_elements(node: Node, program: Program) -> int:
  """Elements of the largest tensor of static shape that a node reads or yields first."""
  names = (*node.inputs, *node.outputs[:1])
  tensors = (program.tensors[i] for i in names if i in program.tensors)
  return max((prod(int(d) for d in t.shape or ()) for t in tensors if t.is_static), default=1)


def contracts(node: Node) -> bool:
  return any(s.op == "matmul" for s in node.steps)


def with_floors(times: Mapping[str, float], program: Program, target: Target) -> dict[str, float]:
  """``times``, and for contractions that the table does not have what reading and writing them takes.

  Those of two activations, and weights of more bytes than any that was measured. No kernel is faster
  than the memory, so a region still never looks more worth replacing than it is.
  """
  found = dict(times)
  for node in program.nodes:
    # What writes a cache is timed as what copies it, too: nobody says here that it is in one buffer.
    if node.name in found or not (contracts(node) or (node.steps and node.op_type == CACHED)):
      continue
    names = (n for n in (*node.inputs, *node.outputs) if n and not implied(n))
    tensors = [program.tensors[n] for n in names]
    if all(t.is_static and t.dtype is not None for t in tensors):
      moved = sum(prod(int(d) for d in t.shape or ()) * t.dtype.size_bytes for t in tensors if t.dtype)
      found[node.name] = target.launch_us + moved / (target.stream_tbps * 1e6)
  return found
