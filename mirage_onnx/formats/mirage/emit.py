"""From a draft with named axes to a µGraph and the numbers that make it the saved program.

A factor that is an axis of its own is cut in tiles of one element; where it was joined with the
factors after it, these are the tile. Index factors beyond the µGraph's grid dimensions and loops
are whole in the tile, because all operations treat them independently.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from mirage_onnx.formats.mirage.axes import LOOP, Axes, Roles
from mirage_onnx.formats.mirage.draft import Draft, DraftKernel, DraftValue, unsupported
from mirage_onnx.ir import (
  BlockOp,
  DType,
  Kernel,
  KernelParams,
  KTensor,
  Layout,
  Phase,
  Save,
  UGraph,
)

GRID_DIMENSIONS = 3


def emit_ugraph(draft: Draft, axes: Axes) -> tuple[UGraph, tuple[KernelParams, ...]]:
  """The µGraph, and the numbers of its kernels at the extents of the saved graph.

  Raises:
      RejectionError: SAVED_UNSUPPORTED where blocks write copies of one value.
  """
  tensors = tuple(
    KTensor(t.name, t.dtype, axes.of(_leaves(draft, t.dims)), t.role) for t in draft.tensors.values()
  )
  writers = [
    _Writer(draft, kernel, axes, roles) for kernel, roles in zip(draft.kernels, axes.roles, strict=True)
  ]
  kernels = tuple(w.kernel() for w in writers)
  return UGraph(tensors, kernels), tuple(w.params() for w in writers)


def _leaves(draft: Draft, dims: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
  return tuple(f for d in dims for f in draft.factors.leaves(d))


@dataclass
class _Writer:
  draft: Draft
  source: DraftKernel
  axes: Axes
  roles: Roles
  ops: list[BlockOp] = field(default_factory=list)

  def __post_init__(self) -> None:
    indices = [x for x in self._axes_of(range(GRID_DIMENSIONS)) if self._is_read(x)]
    # An axis that is more than its index must be cut: its tile is what the block reduces.
    indices.sort(key=lambda x: self._tile(x) == 1)
    self.grid = tuple(sorted(indices[:GRID_DIMENSIONS], key=self._axes_of((0, 1, 2)).index))
    loop = tuple(f for f, role in self.roles.items() if role == LOOP)
    named = tuple(f for f in loop if f in self.axes.name)
    self.looped = self.axes.of(named)
    self.loop = self.looped[0] if self.looped else None
    self.repeats = self.draft.factors.size(() if named else loop)

  def _axes_of(self, roles: object) -> tuple[str, ...]:
    """The axes whose first factor has one of the roles, in their order."""
    assert isinstance(roles, tuple | range)
    return self.axes.of(f for r in roles for f, role in self.roles.items() if role == r)

  def _is_read(self, axis: str) -> bool:
    return any(axis in self._load_axes(v) for v in self.source.values if v.op == "load")

  def _load_axes(self, v: DraftValue) -> tuple[str, ...]:
    return self.axes.of(_leaves(self.draft, self.draft.tensors[v.tensor].dims))

  def _tile(self, axis: str) -> int:
    """Elements of a tile of an indexed axis: those of its factors without an index."""
    inner = tuple(f for f in self.axes.members[axis] if f not in self.roles)
    return self.draft.factors.size(inner)

  def params(self) -> KernelParams:
    loop_tile = self._tile(self.loop) if self.loop else 0
    return KernelParams(tile=tuple(map(self._tile, self.grid)), loop_tile=loop_tile)

  def kernel(self) -> Kernel:
    index: list[int] = []
    for v in self.source.values:
      index.append(self._value(v, index))
    saves = tuple(self._save(name, index[value]) for name, value in self.source.saves)
    return Kernel(self.source.name, self.grid, None, self.loop, tuple(self.ops), saves)

  def _value(self, v: DraftValue, index: list[int]) -> int:
    phase = Phase.POST if v.post else Phase.LOOP
    args = [index[a] for a in v.args]
    over = self.axes.of(self.draft.factors.leaves(v.over))
    match v.op:
      case "load":
        return self._load(v, phase)
      case "const":
        return self._push("const", (), phase, axes=(), value=v.number)
      case "extent":
        return self._extent(over, phase)
      case "powr":
        return self._push("powr", args, phase, value=v.number)
      case "matmul":
        return self._matmul(args, over, phase)
      case "sum":
        return self._sum(args[0], over, phase)
      case "acc":
        return self._accumulate(args[0])
    return self._push(v.op, args, phase)

  def _load(self, v: DraftValue, phase: Phase) -> int:
    axes = self._load_axes(v)
    tensor = self.draft.tensors[v.tensor]
    self.ops.append(
      BlockOp(
        op="load",
        args=(),
        axes=axes,
        dtype=tensor.dtype,
        phase=phase,
        layout=Layout.SHARED,
        tensor=v.tensor,
        imap=tuple(g if g in axes else None for g in self.grid),
        fmap=self.loop if self.loop in axes else None,
      )
    )
    return len(self.ops) - 1

  def _extent(self, over: tuple[str, ...], phase: Phase) -> int:
    if not over:
      return self._push("const", (), phase, axes=(), value=Fraction(1))
    return self._push("extent", (), phase, axes=(), reduced=over)

  def _matmul(self, args: list[int], over: tuple[str, ...], phase: Phase) -> int:
    if not over:
      return self._push("mul", args, phase)
    # Operands in the type of the first that was loaded, as the tensor cores take them.
    types = [self.ops[a].dtype for a in args]
    narrow = next((d for d in types if d.is_half), DType.F32)
    args = [a if self.ops[a].dtype is narrow else self._cast(a, narrow) for a in args]
    axes = self._union(args)
    inner = tuple(a for a in axes if a != over[-1])
    product = self._push("matmul", args, phase, axes=inner, reduced=over[-1:])
    return self._sum(product, over[:-1], phase)

  def _sum(self, arg: int, over: tuple[str, ...], phase: Phase) -> int:
    if not over:
      return arg
    axes = tuple(a for a in self.ops[arg].axes if a not in over)
    return self._push("sum", [arg], phase, axes=axes, reduced=over)

  def _accumulate(self, arg: int) -> int:
    """The sum over all iterations.

    Those of whole loop axes happen inside one iteration, those of a loop that cuts no input are
    equal.
    """
    have = self.ops[arg].axes
    total = self._sum(arg, tuple(x for x in self.looped if x in have), Phase.LOOP)
    total = self._push("acc_sum", [total], Phase.POST)
    whole = tuple(x for x in self.looped[1:] if x not in have)
    if whole:
      total = self._times(total, self._extent(whole, Phase.POST))
    if self.repeats > 1:
      number = Fraction(self.repeats)
      total = self._times(total, self._push("const", (), Phase.POST, axes=(), value=number))
    return total

  def _times(self, a: int, b: int) -> int:
    return self._push("mul", [a, b], Phase.POST)

  def _save(self, name: str, arg: int) -> Save:
    tensor = self.draft.tensors[name]
    wanted = self.axes.of(_leaves(self.draft, tensor.dims))
    if set(wanted) != set(self.ops[arg].axes):
      raise unsupported(f"{self.source.name}: blocks write copies of one value to {name}")
    if self.ops[arg].dtype is not tensor.dtype:
      arg = self._cast(arg, tensor.dtype)
    return Save(name, arg, self.grid)

  def _cast(self, arg: int, dtype: DType) -> int:
    return self._push("cast", [arg], self.ops[arg].phase, dtype=dtype)

  def _union(self, args: list[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(a for i in args for a in self.ops[i].axes))

  def _push(
    self,
    op: str,
    args: list[int] | tuple[()],
    phase: Phase,
    *,
    axes: tuple[str, ...] | None = None,
    dtype: DType = DType.F32,
    reduced: tuple[str, ...] = (),
    value: Fraction | None = None,
  ) -> int:
    self.ops.append(
      BlockOp(
        op=op,
        args=tuple(args),
        axes=self._union(list(args)) if axes is None else axes,
        dtype=dtype,
        phase=phase,
        layout=Layout.SHARED,
        value=value,
        reduced=reduced,
      )
    )
    return len(self.ops) - 1
