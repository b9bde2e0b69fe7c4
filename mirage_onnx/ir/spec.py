"""The rules of ``ir/ugraph.py`` as small checks, each ending in a sentence.

Central is how a tile is cut: for every axis of a value, by which of grid, cluster and loop. A load
says it by its maps; all arguments of an operation must agree on it, so that two tiles which meet
under one axis name hold the same elements in every block, rank and iteration.
"""

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import (
  BlockOp,
  DType,
  Kernel,
  KTensor,
  Phase,
  Region,
  Save,
  UGraph,
  is_part_axis,
  part_axis,
)
from mirage_onnx.ir.block_ops import (
  ACCUMULATORS,
  OPERATORS,
  OVER,
  OVER_AXES,
  RUNNING,
  Kind,
  kind_of,
  merge_of,
)
from mirage_onnx.ir.functions import ELEMENTWISE, IRRATIONAL

ROLES = ("input", "weight", "rows", "output", "temp")
WIDE = (DType.F32, DType.F64)
OPERANDS = (DType.F16, DType.BF16, DType.F32)

#: Axis -> which of grid, cluster and loop cut it.
Cuts = dict[str, frozenset[str]]


class _IllFormedError(ValueError):
  pass


def check_ugraph(graph: UGraph) -> Rejection | None:
  """None if the graph means something, else why it does not."""
  try:
    _check_tensors(graph)
    _check_part_axes(graph)
    written: set[str] = set()
    for kernel in graph.kernels:
      with_kernel = f"kernel {kernel.name}: "
      try:
        _check_kernel(graph, kernel, written)
      except _IllFormedError as e:
        return Rejection("NOT_EQUIVALENT", f"ill-formed: {with_kernel}{e}")
    for t in graph.tensors:
      _need(
        t.role in ("input", "weight", "rows") or t.name in written,
        f"the {t.role} tensor {t.name} is never saved",
      )
  except _IllFormedError as e:
    return Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")
  return None


def check_interface(region: Region, graph: UGraph) -> Rejection | None:
  """None if the graph reads and writes exactly what the region does, in its layout."""
  sources = {i.name: i for i in region.given}
  sinks = {o.name: o for o in region.outputs}
  try:
    for t in graph.tensors:
      known = all(a.partition("/")[0] in region.extents for a in t.axes)
      _need(known, f"{t.name} has an axis of unknown extent")
      if t.role == "temp":
        _need(t.name not in sources | sinks, f"{t.name} is both a temp and a region tensor")
        continue
      theirs = (sinks if t.role == "output" else sources).get(t.name)
      _need(theirs is not None, f"the region has no {t.role} {t.name}")
      assert theirs is not None
      _need(t.dtype is theirs.dtype, f"{t.name} is {theirs.dtype}, not {t.dtype}")
      if t.role == "weight":
        _need(theirs.is_weight, f"{t.name} is no initializer, so it cannot be restored")
        _need(set(t.axes) == set(theirs.axes), f"{t.name} is over {theirs.axes}")
      else:
        _need(t.axes == theirs.axes, f"{t.name} is over {theirs.axes} in memory")
    outputs = {t.name for t in graph.tensors if t.role == "output"}
    _need(outputs == set(sinks), f"the graph writes {sorted(outputs)}, not {sorted(sinks)}")
  except _IllFormedError as e:
    return Rejection("NOT_EQUIVALENT", f"ill-formed: {e}")
  return None


def _need(condition: bool, otherwise: str) -> None:
  if not condition:
    raise _IllFormedError(otherwise)


def _check_tensors(graph: UGraph) -> None:
  names = [t.name for t in graph.tensors]
  _need(len(set(names)) == len(names), "two tensors have one name")
  _need(bool(graph.kernels), "there is no kernel")
  for t in graph.tensors:
    _need(t.role in ROLES, f"{t.name} has the unknown role {t.role}")
    _need(len(set(t.axes)) == len(t.axes), f"{t.name} has an axis twice")
    kept = t.dtype.is_float or (t.dtype.is_computed and t.role in ("input", "weight"))
    kept = kept or (t.dtype.is_byte and t.role == "input")
    if t.role == "rows":
      kept = t.dtype in (DType.I32, DType.I64)
    _need(kept, f"{t.name} is {t.dtype}, which is no float type")
  for t in graph.tensors:
    for w in (w for w in t.windows if w.picks):
      by = next((x for x in graph.tensors if x.name == w.picks and x.role == "rows"), None)
      _need(by is not None, f"nothing is {w.picks}, which picks rows of {t.name}")
      _need(w is t.windows[0] and w.full is not None, f"{w.picks} does not pick rows of {t.name}")

  for t in graph.tensors:
    if t.limit:
      by = next((x for x in graph.tensors if x.name == t.limit[1]), None)
      counts = by is not None and by.role == "input" and by.dtype in (DType.I32, DType.I64)
      _need(counts and t.limit[0] in t.axes, f"{t.limit[1]} does not say where {t.name} ends")
    if t.places:
      own = t.role == "weight" and t.dtype is DType.I32 and len(t.axes) == 1 and not t.windows
      _need(own, f"{t.name} is no constant of places along one axis")
    if t.band:
      own = {t.band.rows, t.band.columns} <= set(t.axes) and t.band.rows != t.band.columns
      _need(own and t.role == "weight", f"{t.name} is no constant with the axes of its band")


def _check_part_axes(graph: UGraph) -> None:
  names = [k.name for k in graph.kernels]
  _need(len(set(names)) == len(names), "two kernels have one name")
  _need(not any("/" in n for n in names), "the name of a kernel holds a /")
  parts = {part_axis(a, k.name) for k in graph.kernels for a in k.grid}
  for t in graph.tensors:
    for axis in (a for a in t.axes if is_part_axis(a)):
      _need(axis in parts, f"{t.name} is over {axis}, which no grid has")
      _need(t.role == "temp", f"the {t.role} tensor {t.name} is over the part axis {axis}")


def _check_kernel(graph: UGraph, kernel: Kernel, written: set[str]) -> None:
  _need(len(set(kernel.grid)) == len(kernel.grid), "two grid dimensions split one axis")
  _need(len(kernel.grid) <= 3, "a grid has at most three dimensions")
  tensors = {t.name: t for t in graph.tensors}
  cuts: list[Cuts] = []
  for index, op in enumerate(kernel.ops):
    try:
      cuts.append(_check_op(kernel, index, op, tensors, written, cuts))
    except _IllFormedError as e:
      raise _IllFormedError(f"%{index} = {op.op}: {e}") from None
  for axis, level, maps in (
    (kernel.cluster, "cluster", [o.cmap for o in kernel.loads]),
    (kernel.loop, "loop", [o.fmap for o in kernel.loads]),
  ):
    _need(axis is None or axis in maps, f"no load is cut by the {level} over {axis}")
  _need(bool(kernel.saves), "nothing is saved")
  for save in kernel.saves:
    _check_save(kernel, save, tensors, written, cuts)
    written.add(save.tensor)


def _check_op(
  kernel: Kernel,
  index: int,
  op: BlockOp,
  tensors: dict[str, KTensor],
  written: set[str],
  cuts: list[Cuts],
) -> Cuts:
  _need(all(0 <= a < index for a in op.args), "an argument is not an earlier value")
  entry = ELEMENTWISE.get(op.op) or OPERATORS.get(op.op)
  _need(entry is not None, "there is no such operation")
  arity = entry.arity if entry else 0
  _need(len(op.args) == arity, f"{arity} arguments are needed, not {len(op.args)}")
  kept = op.dtype.is_float or (op.op == "load" and (op.dtype.is_computed or op.dtype.is_byte))
  _need(kept, f"{op.dtype} is no float type")
  _need(len(set(op.axes)) == len(op.axes), "an axis comes twice")
  if op.op == "load":
    result = _check_load(kernel, op, tensors, written)
  else:
    _check_attributes(op)
    everything = {a for t in tensors.values() for a in t.axes}
    _need(set(op.reduced) <= everything, f"no tensor has {op.reduced}")
    result = _check_inner(kernel, op, [kernel.ops[a] for a in op.args], _union(op, cuts))
  _need(set(result) == set(op.axes), f"the value is over {sorted(result)}, not {op.axes}")
  if op.phase is Phase.POST:
    looped = [a for a, by in result.items() if "loop" in by]
    _need(not looped, f"a value after the loop has a tile of the loop axis {looped}")
  return result


def _check_load(kernel: Kernel, op: BlockOp, tensors: dict[str, KTensor], written: set[str]) -> Cuts:
  _need(op.tensor in tensors, f"there is no tensor {op.tensor}")
  tensor = tensors[op.tensor]
  readable = tensor.role in ("input", "weight") or op.tensor in written
  _need(readable, f"{op.tensor} is read before a kernel has saved it")
  produced_here = any(s.tensor == op.tensor for s in kernel.saves)
  _need(not produced_here, f"{op.tensor} is read and saved by one kernel")
  _need(set(op.axes) == set(tensor.axes), f"{op.tensor} is over {tensor.axes}")
  _need(len(op.imap) == len(kernel.grid), "imap needs one entry per grid dimension")
  result: dict[str, set[str]] = {a: set() for a in tensor.axes}
  named = [*zip(op.imap, kernel.grid, strict=True), (op.cmap, kernel.cluster)]
  for (axis, role), level in zip(
    [*named, (op.fmap, kernel.loop)],
    [*["grid"] * len(kernel.grid), "cluster", "loop"],
    strict=True,
  ):
    if axis is not None:
      _need(axis == role, f"a map sends the {level} to {axis}, but the kernel to {role}")
      _need(axis in result, f"a map names {axis}, which {op.tensor} does not have")
      result[axis].add(level)
  # A finer cut is a cut of what the coarser ones left over.
  for axis, by in result.items():
    needed = {"grid"} if axis in kernel.grid and by else set()
    needed |= {"cluster"} if axis == kernel.cluster and "loop" in by else set()
    _need(needed <= by, f"{axis} is cut by {sorted(by)} without {sorted(needed - by)}")
  return {a: frozenset(by) for a, by in result.items()}


def _check_attributes(op: BlockOp) -> None:
  free = not op.tensor and not op.imap and op.cmap is None and op.fmap is None
  _need(free, "only a load has a tensor and maps")
  if op.op == "const":
    _need(op.value is not None, "a constant needs a value")
    _need(not isinstance(op.value, str) or op.value in IRRATIONAL, f"what is {op.value}?")
  elif op.op == "powr":
    _need(op.value is not None and not isinstance(op.value, str), "the exponent is missing")
  else:
    _need(op.value is None, "the operation takes no value")
  _need(len(set(op.reduced)) == len(op.reduced), f"{op.reduced} names an axis twice")
  if op.op != "extent" and op.op not in OVER_AXES:
    _need(not op.reduced, "the operation takes no axes")
  if op.op == "extent":
    parts = [a for a in op.reduced if is_part_axis(a)]
    _need(not parts, f"the extent of {parts} is a number of the launch")


def _union(op: BlockOp, cuts: list[Cuts]) -> Cuts:
  result: Cuts = {}
  for a in op.args:
    for axis, by in cuts[a].items():
      mine = result.setdefault(axis, by)
      same = f"{axis} is cut by {sorted(mine)} here and by {sorted(by)} there"
      _need(mine == by, same)
  return result


def _check_inner(kernel: Kernel, op: BlockOp, args: list[BlockOp], cuts: Cuts) -> Cuts:
  if op.op in ACCUMULATORS:
    inside = all(a.phase is Phase.LOOP for a in args)
    _need(inside, "accumulates a value from after the loop")
    _need(op.phase is Phase.POST, "an accumulator's value exists only after the loop")
  else:
    outside = [f"%{i}" for i in op.args if kernel.ops[i].phase is not op.phase]
    _need(not outside, f"{outside} is not of phase {op.phase}")
  kind = kind_of(op.op)
  if op.op in ACCUMULATORS or kind is Kind.RUNNING:
    looped = [a for a, by in cuts.items() if "loop" in by]
    _need(not looped, f"adds up tiles of {looped} that are different elements")
  if op.op in RUNNING:
    _need(op.phase is Phase.LOOP, "a running value exists only in the loop")
    _need(op.dtype in WIDE, f"a running maximum is kept in f32, not {op.dtype}")
  if kind is Kind.PREVIOUS:
    _need(kind_of(args[0].op) is Kind.RUNNING, f"{args[0].op} has no previous value")
    _need(args[0].dtype is op.dtype, f"the running maximum is {args[0].dtype}")
  if kind is Kind.RESCALED:
    more = sorted(set(args[1].axes) - set(args[0].axes))
    _need(not more, f"the factor varies over {more}, the sum does not")
  if kind is Kind.CLUSTER:
    _need(kernel.cluster is not None, "the kernel has no cluster")
    _need(op.phase is Phase.POST, "a cluster reduction comes after the loop")
    shared = [a for a, by in cuts.items() if "cluster" in by]
    _need(not shared, f"adds up pieces of {shared} that are different elements")
  if kind is Kind.CONTRACTION:
    _need(len(op.reduced) == 1, "a matmul contracts one axis")
    _need(all(op.reduced[0] in a.axes for a in args), f"an operand lacks {op.reduced[0]}")
    kinds = {a.dtype for a in args}
    _need(len(kinds) == 1 and kinds <= set(OPERANDS), f"operands are {sorted(kinds)}")
  if kind is Kind.REDUCTION:
    _need(bool(op.reduced) and set(op.reduced) <= set(cuts), f"there is no {op.reduced} here")
  if kind is not None and kind in OVER and merge_of(op.op).rounds:
    _need(op.dtype in WIDE, f"a sum accumulates in f32, not {op.dtype}")
  if op.op in OVER_AXES:
    return {a: by for a, by in cuts.items() if a not in op.reduced}
  return cuts


def _check_save(
  kernel: Kernel, save: Save, tensors: dict[str, KTensor], written: set[str], cuts: list[Cuts]
) -> None:
  _need(save.tensor in tensors, f"there is no tensor {save.tensor}")
  tensor = tensors[save.tensor]
  _need(tensor.role in ("output", "temp"), f"{save.tensor} is an input")
  _need(save.tensor not in written, f"{save.tensor} is saved twice")
  _need(0 <= save.arg < len(kernel.ops), f"there is no %{save.arg} to save")
  op = kernel.ops[save.arg]
  _need(op.phase is Phase.POST, f"%{save.arg} is saved before the loop ends")
  wrong = f"the blocks of {kernel.grid} all write what {save.omap} says of {save.tensor}"
  _need(len(save.omap) == len(kernel.grid), wrong)
  parts: dict[str, str] = {}
  for axis, mapped in zip(kernel.grid, save.omap, strict=True):
    part = part_axis(axis, kernel.name)
    _need(mapped in (axis, part), wrong)
    if mapped == part:
      parts[axis] = part
  varies = [a for axis, part in parts.items() for a in (axis, part) if a in op.axes]
  _need(not varies, f"%{save.arg} varies over {varies}, of which {save.tensor} has a partial result")
  _need({*op.axes, *parts.values()} == set(tensor.axes), f"{save.tensor} is over {tensor.axes}")
  missing = [m for m in save.omap if m not in tensor.axes]
  _need(not missing, f"blocks that differ in {missing} write the same part of {save.tensor}")
  for axis, by in cuts[save.arg].items():
    wanted = frozenset({"grid"} if axis in save.omap else ())
    _need(by == wanted, f"{save.tensor} gets a part of {axis} cut by {sorted(by)}")
