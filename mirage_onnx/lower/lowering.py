"""From a block graph with forms to the steps of its threads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import DType, Layout
from mirage_onnx.ir.block_ops import ACCUMULATORS, OPERATORS, SUM, Kind, kind_of, merge_of, of_kinds
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.ir.rows import covered
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.assign import folded
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.demand import Demand
from mirage_onnx.lower.forms import Form, Parts
from mirage_onnx.lower.lowered import MOST_FETCHED
from mirage_onnx.lower.pieces import STEP, Piece
from mirage_onnx.lower.shared import STORED, SharedTile, in_chunks
from mirage_onnx.lower.sizes import is_runtime
from mirage_onnx.lower.steps import Held, ThreadSteps
from mirage_onnx.lower.tensor_view import TensorView
from mirage_onnx.lower.warpgroup import is_operand, is_swizzled

#: Bytes of a tile that is too large for registers up to which it goes to shared memory instead.
MOST_COPIED = 64 * 1024
#: Registers of a lane from which on a loaded operand A stays in shared memory, so that more warpgroups fit.
FEW_NAMED = 32
#: What a contraction can add to directly.
_ADDS = of_kinds(Kind.ACCUMULATOR, Kind.RESCALED, merges=(SUM,))
_RESCALED = of_kinds(Kind.RESCALED, merges=(SUM,))


@dataclass(slots=True)
class Lowering(Demand):
  """A rule for every operation; ``parts``: values that are not whole yet."""

  parts: dict[int, Parts] = field(default_factory=dict)

  def _late(self, inside: Sequence[int]) -> int | None:
    """The second of two contractions by wgmma, if it can wait for the next iteration's first one.

    Its operand A is fragments of what the first one leaves, its operand B a tile of the ring, and its
    results nothing takes but an accumulator that is scaled. A loop has steps, and the ring a tile to spare.
    """
    if len(inside) != 2 or not set(inside) <= self.warpgroup or inside[0] in self.fused:
      return None
    late = inside[1]
    product, (first, second) = self.assignment.products[late], self.ops[late].args
    scaled = late in self.fused and self.ops[self.fused[late]].op in _RESCALED
    fragments = self.ops[first].op != "load" and self.forms[first] == product.a and self.varies[first]
    whole = self.warps.count((product.depth,)) == 1 and second in self.ring
    counted = is_runtime(self.extents, self.kernel.loop or "") or self.ranks > 1
    return late if scaled and fragments and whole and not counted and self.stages > 2 else None

  def lower(self) -> ThreadSteps:
    """The steps, without barriers.

    Raises:
        RejectionError: EMIT_UNSUPPORTED, an operation that there is no rule for, or a type
            that shared memory does not hold.
    """
    self._fuse()
    for index in sorted(self.assignment.needed):
      self._value(index)
    for number, save in enumerate(self.kernel.saves):
      touched = self.need(save.arg, self.save_form(save.arg), "after")
      self.after.append(do.Store(number, touched=touched))
    if self.warps.in_rows:
      order = {do.Fetch: 0, do.Store: 2}
      self.after.sort(key=lambda s: (order.get(type(s), 1), s.index))
    if update := self.assignment.update:
      first = [s for s in self.after if s.index in update.early and not isinstance(s, do.Store)]
      self.before, self.after = first, [s for s in self.after if s not in first]
    if self.warps.in_rows:
      self.before, self.after = self._together(self.before), self._together(self.after)
    inside = [s.index for s in self.body if isinstance(s, do.Contract)]
    self.inside, self.under_way, self.late = frozenset(inside), self._under_way(inside), self._late(inside)
    body = [do.Advance(-1), *self.body] if self.ring else self.body
    return ThreadSteps(tuple(self.before), tuple(body), tuple(self.after))

  def _together(self, steps: Sequence[do.ThreadStep]) -> list[do.ThreadStep]:
    """Neighbouring elementwise steps as one, where a lane has as many elements of each: its part of a row."""
    found: list[do.ThreadStep] = []
    for step in steps:
      last = found[-1] if found else None
      if isinstance(step, do.ThreadRun) and isinstance(last, do.ThreadRun) and step.form.t == last.form.t:
        ops = last.ops + step.ops
        form = self.assignment.frames[0].of(p for i in ops for p in self.own(i).values())
        found[-1] = do.ThreadRun(step.index, ops, form)
      else:
        found.append(step)
    return found

  def _under_way(self, inside: Sequence[int]) -> frozenset[int]:
    """The contractions of the loop, if they are all by wgmma, and it need not wait for them.

    That is, if nothing in it takes their results, or writes what they read.
    """
    plain = all(
      i in self.warpgroup
      and i in self.fused
      and not self.ops[self.fused[i]].args[1:]
      and all(a in self.homes and a not in self.widened for a in self.ops[i].args)
      for i in inside
    )
    ring = bool(self.ring) and (self.stages > 2 or self.assignment.pieces.most_steps <= self.stages)
    return frozenset(inside) if plain and ring else frozenset()

  def _fuse(self) -> None:
    """Contractions that nothing but one accumulator takes add to its registers."""
    for i in self.assignment.products:
      users = [u for u in self.assignment.needed if i in self.ops[u].args]
      alone = len(users) == 1 and self.ops[users[0]].op in _ADDS
      saved = any(s.arg == i for s in self.kernel.saves)
      if alone and not saved and self.on_tensor_cores(i) and self.ops[users[0]].args[0] == i:
        self.fused[i] = users[0]

  def _value(self, index: int) -> None:
    op = self.ops[index]
    if constant(op, self.extents) is not None:
      return
    if is_elementwise(op.op):
      self._elementwise(index)
    elif op.op in OPERATORS:
      _RULES[OPERATORS[op.op].kind](self, index)
    else:
      raise RejectionError("EMIT_UNSUPPORTED", f"no rule for the operation {op.op!r}")

  def _product(self, index: int) -> None:
    if index not in self.fused:
      self._contract(index, index, self.run_of(index))

  def _kept(self, index: int) -> None:
    """Constants stand where they are used; the running value keeps what it was."""

  def _load(self, index: int) -> None:
    if index in self.computed or self.warps.in_rows:
      return
    op = self.ops[index]
    scattered = op.dtype is DType.BOOL  # a byte at a time, which no copy is faster at
    operand, mask = is_operand(self.assignment, self.warpgroup, index), self._is_mask(index)
    if not (operand or mask) and (op.layout is not Layout.SHARED or scattered) and not self._too_wide(index):
      return
    stored = self.widened[index].integers.dtype if index in self.widened else op.dtype
    if stored not in STORED and not (mask or index in self.widened):
      reason = f"{op.tensor}: shared memory holds no elements of type {op.dtype}"
      raise RejectionError("EMIT_UNSUPPORTED", reason)
    own = self.own(index)
    axes = self.tensors[op.tensor].axes
    order = tuple(own[a] for a in axes)
    moves = any(p.levels.endswith(STEP) for p in order)
    name = self.homes[index] = f"s{index}"
    copies = self.stages if moves else 1
    swizzled = operand and is_swizzled(self.assignment, self.warpgroup, index, order)
    swizzled = swizzled and index not in self.widened
    self.tiles[name] = SharedTile(name, stored, order, copies, zeroed=True, swizzled=swizzled)
    if moves:
      self.ring.append(index)
    else:
      # First of all: copies are on their way while anything else is done.
      steps = self.steps(self.run_of(index))
      steps.insert(sum(isinstance(s, do.Copy) for s in steps), do.Copy(index, name))

  def _is_mask(self, index: int) -> bool:
    """Whether a tile of truth values goes through the ring beside products by wgmma, by 16 bytes.

    Fragments of it as registers would be single bytes of eight rows in every load.
    """
    op, own = self.ops[index], self.own(index)
    order = tuple(own[a] for a in self.tensors[op.tensor].axes)
    two = sum(p.length > 1 for p in order) > 1
    if op.dtype is not DType.BOOL or not self.warpgroup or not two or not order[-1].levels.endswith(STEP):
      return False
    return in_chunks(TensorView.of(self.tensors[op.tensor], self.extents), SharedTile("", op.dtype, order))

  def _too_wide(self, index: int) -> bool:
    """Whether a tile that was meant for registers is too wide for them, and fits elsewhere."""
    op, own = self.ops[index], self.own(index).values()
    if op.dtype not in STORED or self.most_fetched > MOST_FETCHED:
      return False
    wide = min(self.warps.registers(f.of(own)) for f in self.assignment.frames)
    return wide > MOST_FETCHED and op.dtype.size_bytes * prod(p.length for p in own) <= MOST_COPIED

  def _elementwise(self, index: int) -> None:
    op, form, run = self.ops[index], self.forms[index], self.run_of(index)
    if self.in_place(index, form):
      return
    found = [self.need(a, form.of(self.own(a).values()), run) for a in op.args]
    touched = tuple(dict.fromkeys(t for tiles in found for t in tiles))
    self.steps(run).append(do.ThreadRun(index, (index,), form, touched=touched))
    self.made[Held(index, form)] = run

  def _contract(self, index: int, into: int, run: str) -> None:
    op, product = self.ops[index], self.assignment.products[index]
    if self.on_tensor_cores(index):
      # Of wgmma operand B stays where a descriptor can name it.
      taken = self.need if index in self.warpgroup else self.operand
      first = self.need if self._is_named(index) else self.operand
      found = [first(op.args[0], product.a, run), taken(op.args[1], product.b, run)]
      self.steps(run).append(do.Contract(index, into, touched=found[0] + found[1]))
      if self.warps.count((product.depth,)) > 1:
        self.parts[index] = Parts(sides=((product.depth,),))
    else:
      left, right = (self.spill(a, run) for a in op.args)
      self.steps(run).append(do.Multiply(index, (left, right)))
    if into == index:
      self.made[Held(index, product.c)] = run
      self._settle(index, run)

  def _is_named(self, index: int) -> bool:
    """Whether operand A of a contraction is a tile that a descriptor names, though the loop keeps it."""
    operand, form = self.ops[index].args[0], self.assignment.products[index].a
    home = self.homes.get(operand)
    plain = index in self.warpgroup and home is not None and self.tiles[home].swizzled
    return plain and operand not in self.widened and self.warps.registers(form) // 2 >= FEW_NAMED

  def _reduce(self, index: int) -> None:
    op, form, run = self.ops[index], self.forms[index], self.run_of(index)
    (arg,) = op.args
    own = self.own(arg)
    gone = {own[a] for a in op.reduced}
    source = self._source(arg, gone, form)
    if source is None:
      self.steps(run).append(do.Total(index, self.spill(arg, run)))
    else:
      touched = self.need(arg, source, run)
      self.steps(run).append(do.Fold(index, source, touched=touched))
      over = [s for s in (source.g, source.t) if set(s) & gone]
      self.parts[index] = Parts(source.lane_bits(over), tuple(s for s in over if self.warps.count(s) > 1))
    self.made[Held(index, form)] = run
    self._settle(index, run)

  def _source(self, arg: int, gone: set[Piece], form: Form) -> Form | None:
    """A form of the argument whose reduction over ``gone`` lies as ``form``."""
    own = self.own(arg).values()
    have = [self.forms[arg]] if arg in self.forms else []
    if not have:
      have = sorted(
        dict.fromkeys(f.of(own) for f in self.assignment.frames),
        key=lambda f: (self.warps.registers(f), f.text),
      )
    return next((f for f in have if folded(f, gone) == form), None)

  def _settle(self, index: int, run: str) -> None:
    """Parts of a value become the whole, unless an accumulator takes them as they are."""
    parts = self.parts.get(index)
    if not parts:
      return
    users = [self.ops[u] for u in self.assignment.needed if index in self.ops[u].args]
    rule = merge_of(self.ops[index].op)
    saved = any(s.arg == index for s in self.kernel.saves)
    waits = all(
      u.op in ACCUMULATORS and u.args[0] == index and merge_of(u.op) == rule
      and index not in u.args[1:]
      for u in users
    )  # fmt: skip
    if not (users and waits) or saved:
      self._complete(index, run)

  def _complete(self, index: int, run: str) -> None:
    parts = self.parts.pop(index, Parts())
    if parts.masks:
      masks = parts.masks[::-1] if self.warps.in_rows else parts.masks
      self.steps(run).append(do.Meet(index, masks))
    for number, side in enumerate(parts.sides):
      name = f"m{index}_{number}"
      self.exchange(name, self.forms[index])
      self.steps(run).append(do.Publish(index, name))
      self.steps(run).append(do.Gather(index, name, side))

  def _accumulate(self, index: int) -> None:
    op, form = self.ops[index], self.forms[index]
    (arg, *factor) = op.args
    self.states.append(index)
    touched: tuple[str, ...] = ()
    for f in factor:
      touched += self.need(f, form.of(self.own(f).values()), "body")
    if self.fused.get(arg) == index:
      if factor:
        self.body.append(do.Update(index, touched=touched))
      self._contract(arg, index, "body")
    else:
      touched += self.need(arg, form, "body")
      self.body.append(do.Update(index, touched=touched))
    if parts := self.parts.get(arg):
      self.parts[index] = parts
    self.made[Held(index, form)] = "after"
    self._complete(index, "after")

  def _running(self, index: int) -> None:
    op, form = self.ops[index], self.forms[index]
    self.states.append(index)
    touched = self.need(op.args[0], form, "body")
    self.body.append(do.Update(index, touched=touched))
    self.made[Held(index, form)] = "body"
    for i in self.assignment.needed:
      other = self.ops[i]
      if kind_of(other.op) is Kind.PREVIOUS and other.args[0] == index:
        self.made[Held(i, form)] = "body"

  def _over_ranks(self, index: int) -> None:
    op, form = self.ops[index], self.forms[index]
    touched = self.need(op.args[0], form, "after")
    if self.ranks == 1:
      self.after.append(do.ThreadRun(index, (index,), form, touched=touched))
    else:
      name = f"r{index}"
      self.exchange(name, form)
      self.after.append(do.Publish(index, name, touched=touched))
      self.after.append(do.GatherRanks(index, name))
    self.made[Held(index, form)] = "after"


#: What a kind of operator becomes; elementwise functions and casts are ``_elementwise``.
_RULES: Mapping[Kind, Callable[[Lowering, int], None]] = covered("lower/lowering.py", {
  Kind.LOAD: Lowering._load,
  Kind.CONSTANT: Lowering._kept,
  Kind.POINTWISE: Lowering._elementwise,
  Kind.CONTRACTION: Lowering._product,
  Kind.REDUCTION: Lowering._reduce,
  Kind.ACCUMULATOR: Lowering._accumulate,
  Kind.RESCALED: Lowering._accumulate,
  Kind.RUNNING: Lowering._running,
  Kind.PREVIOUS: Lowering._kept,
  Kind.CLUSTER: Lowering._over_ranks,
}, Kind)  # fmt: skip
