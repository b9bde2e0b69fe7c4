"""From a derivation to a kernel: block graph, maps, element types.

Values are computed in fp32; operands of a tensor-core contraction are rounded to the 16-bit type
of its weight, loads and saves have the tensor's type. Tiled kernels contract what comes of fp32
tensors alone in fp32, without tensor cores. Layouts come from ``lower/layouts.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import BlockOp, DType, Kernel, KTensor, Layout, Phase, Save
from mirage_onnx.ir.functions import ELEMENTWISE, EXPONENTS
from mirage_onnx.ir.term import ADD, CONST, EXTENT, MAXR, MUL, POW, SUM
from mirage_onnx.lower.dataflow import made_of
from mirage_onnx.lower.layouts import Laid, lay_out
from mirage_onnx.superopt.choices import Choice, Place
from mirage_onnx.superopt.derive import Derivation
from mirage_onnx.superopt.egraph import COPY, PARTS, EGraph, part_of
from mirage_onnx.superopt.roles import KernelRoles
from mirage_onnx.superopt.space import Space

_POWERS = {e: op for op, e in EXPONENTS.items()}


@dataclass(slots=True)
class _Builder:
  g: EGraph
  roles: KernelRoles
  tensors: Mapping[int, KTensor]
  clusters: bool
  general: bool
  wide: bool
  ops: list[BlockOp]
  memo: dict[BlockOp, int]

  def put(self, op: BlockOp) -> int:
    if op not in self.memo:
      self.memo[op] = len(self.ops)
      self.ops.append(op)
    return self.memo[op]

  def value(self, op: str, args: tuple[int, ...], phase: Phase, **more: object) -> int:
    return self.put(self._op(op, args, phase, **more))

  def _op(self, op: str, args: tuple[int, ...], phase: Phase, **more: object) -> BlockOp:
    axes = tuple(sorted({a for i in args for a in self.ops[i].axes}))
    fields: dict[str, object] = {"axes": axes, "dtype": DType.F32, **more}
    return BlockOp(op, args, phase=phase, layout=Layout.ELEMENT, **fields)  # type: ignore[arg-type]

  def cast(self, i: int, dtype: DType) -> int:
    op = self.ops[i]
    if op.dtype is dtype:
      return i
    return self.value("cast", (i,), op.phase, dtype=dtype)

  def load(self, c: int, phase: Phase) -> int:
    tensor = self.tensors[c]
    loop = self.roles.loop if phase is Phase.LOOP and self.roles.loop in tensor.axes else None
    return self.put(
      BlockOp(
        "load", (), tensor.axes, tensor.dtype, phase, Layout.ELEMENT,
        tensor=tensor.name,
        imap=tuple(a if a in tensor.axes else None for a in self.roles.grid),
        cmap=loop if self.clusters else None,
        fmap=loop,
      )
    )  # fmt: skip

  def pure(self, choice: Choice, args: list[int], phase: Phase) -> int:
    node = choice.node
    if node.op == COPY:
      return self.value("cast", (args[0],), phase)
    args = [self.cast(a, DType.F32) for a in args]
    if node.op == POW:
      assert isinstance(node.attr, Fraction)
      name = _POWERS.get(node.attr)
      if name:
        return self.value(name, (args[0],), phase)
      return self.value("powr", (args[0],), phase, value=node.attr)
    if node.op in (ADD, MUL):
      # Combine the values over few axes first: a scalar times a vector before the tile.
      args = sorted(args, key=lambda i: (len(self.ops[i].axes), i))
      if node.op == ADD:
        args = self._begun(args, phase)
      total = args[0]
      for a in args[1:]:
        total = self.value(node.op, (total, a), phase)
      return total
    if node.op not in ELEMENTWISE:
      raise RejectionError("LAYOUT", f"no block operation computes {node.op}")
    return self.value(node.op, tuple(args), phase)

  def _begun(self, args: list[int], phase: Phase) -> list[int]:
    """The summands, with the sums of some of them that the block has already in their place.

    It is less work, and it rounds as what was summed up before: in x + m - max(x + m), with a mask
    m of the least finite value, x is lost at both places or at none.
    """
    for pair in combinations(args, 2):
      made = self.memo.get(self._op(ADD, pair, phase))
      if made is not None:
        return self._begun([made, *(a for a in args if a not in pair)], phase)
    return args

  def reduce(self, choice: Choice, arg: int, phase: Phase) -> int:
    node = choice.node
    arg = self.cast(arg, DType.F32)
    bound = set(node.over)
    axes = tuple(a for a in self.ops[arg].axes if a not in bound)
    inside = tuple(sorted(bound))
    inner = Phase.LOOP if choice.kind == "acc" else phase
    kind = PARTS.get(node.op, node.op)
    op = {SUM: "sum", MAXR: "rmax"}[kind]
    i = self.value(op, (arg,), inner, axes=axes, reduced=inside)
    return self.accumulate(i, kind) if choice.kind == "acc" else i

  def run(self, choice: Choice, arg: int) -> int:
    """The running maximum of a tile's maximum."""
    bound = set(choice.node.over)
    arg = self.cast(arg, DType.F32)
    axes = tuple(a for a in self.ops[arg].axes if a not in bound)
    tile = self.value("rmax", (arg,), Phase.LOOP, axes=axes, reduced=tuple(sorted(bound)))
    return self.value("run_max", (tile,), Phase.LOOP)

  def rescale(self, choice: Choice, args: list[int]) -> int:
    """The sum over the loop of terms that are shifted by the running maximum ``args[-1]``.

    With acc <- acc * exp(old maximum - new maximum) + tile, acc is the sum shifted by the
    newest maximum. Ranks of a cluster have maxima of their own: each shifts its sum to the
    common one before they are added.
    """
    *terms, run = args
    if len(terms) == 2:
      tile = self.matmul(choice.axis, terms, Phase.LOOP)
    else:
      bound = set(choice.node.over)
      (x,) = (self.cast(i, DType.F32) for i in terms)
      axes = tuple(a for a in self.ops[x].axes if a not in bound)
      tile = self.value("sum", (x,), Phase.LOOP, axes=axes, reduced=tuple(sorted(bound)))
    old = self.value("prev", (run,), Phase.LOOP)
    factor = self.value("exp", (self.value("sub", (old, run), Phase.LOOP),), Phase.LOOP)
    total = self.value("acc_scaled", (tile, factor), Phase.POST)
    if not self.clusters:
      return total
    own = self.value("acc_max", self.ops[run].args, Phase.POST)
    common = self.value("red_max", (own,), Phase.POST)
    weight = self.value("exp", (self.value("sub", (own, common), Phase.POST),), Phase.POST)
    return self.value("red_sum", (self.value("mul", (total, weight), Phase.POST),), Phase.POST)

  def accumulate(self, i: int, op: str) -> int:
    kind = {SUM: "sum", MAXR: "max"}[op]
    i = self.value(f"acc_{kind}", (i,), Phase.POST)
    return self.value(f"red_{kind}", (i,), Phase.POST) if self.clusters else i

  def contract(self, choice: Choice, args: list[int]) -> int:
    phase = choice.needs[0][1]
    i = self.matmul(choice.axis, args, phase)
    over_loop = phase is Phase.LOOP and choice.axis == self.roles.loop
    return self.accumulate(i, SUM) if over_loop else i

  def matmul(self, axis: str, args: list[int], phase: Phase) -> int:
    half = {self.ops[a].dtype for a in args if self.ops[a].dtype.is_half}
    weights = {self.ops[a].dtype for a in args if self.ops[a].op == "load" and self.ops[a].dtype.is_half}
    types = weights or half or self._half_sources(args)
    if self.wide and (self.general or any(map(self._is_packed, args))):
      types = {DType.F32}
    if len(types) != 1:
      raise RejectionError("DTYPE", "a contraction needs operands of one 16-bit type")
    (dtype,) = types
    args = [self.cast(a, dtype) for a in args]
    axes = tuple(sorted({a for i in args for a in self.ops[i].axes if a != axis}))
    return self.value("matmul", tuple(args), phase, axes=axes, reduced=(axis,))

  def _half_sources(self, args: list[int]) -> set[DType]:
    """The 16-bit types of the loads that computed operands come from."""
    sources = (self.ops[i] for i in made_of(self.ops, args))
    return {op.dtype for op in sources if op.op == "load" and op.dtype.is_half}

  def _is_packed(self, index: int) -> bool:
    """Whether a value is made of weights of few bits."""
    sources = (self.ops[i] for i in made_of(self.ops, (index,)))
    return any(op.op == "load" and op.dtype.is_packed for op in sources)

  def scalar(self, choice: Choice, phase: Phase) -> int:
    node = choice.node
    if node.op == EXTENT:
      return self.value("extent", (), phase, reduced=node.attr)
    assert node.op == CONST
    return self.value("const", (), phase, value=node.attr)


def build_kernel(
  g: EGraph,
  name: str,
  targets: tuple[tuple[int, KTensor], ...],
  roles: KernelRoles,
  derivation: Derivation,
  tensors: Mapping[int, KTensor],
  *,
  clusters: bool,
  space: Space,
) -> tuple[Laid, Kernel, Mapping[int, Place]]:
  """The kernel that computes ``targets`` by ``derivation``; ``tensors`` maps leaf classes.

  Part axes of its targets are ``a/``: the kernel has no name in its program yet. With how it is laid
  out, and the places that its block values are of; a conversion is of none.

  Raises:
      RejectionError: DTYPE or LAYOUT, when no thread layout holds the values.
  """
  use_clusters = clusters and roles.loop is not None
  wide = not any(t.dtype.is_half for t in tensors.values())
  b = _Builder(g, roles, tensors, use_clusters, space.general, wide, [], {})
  at: dict[Place, int] = {}
  for place, choice in derivation.items():
    args = [at[p] for p in choice.needs]
    if choice.kind in ("load", "read"):
      at[place] = b.load(place[0], place[1])
    elif choice.kind == "scalar":
      at[place] = b.scalar(choice, place[1])
    elif choice.kind == "pure":
      at[place] = b.pure(choice, args, place[1])
    elif choice.kind == "contract":
      at[place] = b.contract(choice, args)
    elif choice.kind == "run":
      at[place] = b.run(choice, args[0])
    elif choice.kind == "rescale":
      at[place] = b.rescale(choice, args)
    else:
      at[place] = b.reduce(choice, args[0], place[1])
  saves = []
  for c, tensor in targets:
    i = b.cast(at[(g.find(c), Phase.POST)], tensor.dtype)
    if b.ops[i].op == "load":
      raise RejectionError("TOO_SMALL", f"{tensor.name} is a copy of an input")
    parted = {a: part_of(a) for a in roles.parts if part_of(a) in tensor.axes}
    omap = tuple(parted.get(a, a if a in tensor.axes else None) for a in roles.grid)
    saves.append(Save(tensor.name, i, omap))
  kernel = Kernel(
    name,
    roles.grid,
    roles.loop if use_clusters else None,
    roles.loop,
    tuple(b.ops),
    tuple(saves),
  )
  named = {t.name: t for t in (*tensors.values(), *(t for _, t in targets))}
  laid = lay_out(kernel, named, general=space.general)
  return laid, replace(kernel, ops=laid.ops), {i: place for place, i in at.items()}
