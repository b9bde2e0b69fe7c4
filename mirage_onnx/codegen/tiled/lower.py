"""From a block graph with forms to the steps of its threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from mirage_onnx.codegen.elementwise import constant, is_elementwise
from mirage_onnx.codegen.tiled import steps as do
from mirage_onnx.codegen.tiled.assign import Assignment, folded
from mirage_onnx.codegen.tiled.forms import Form, Side, Warps
from mirage_onnx.codegen.tiled.pieces import STEP, Piece
from mirage_onnx.codegen.tiled.shared import SharedTile
from mirage_onnx.codegen.tiled.steps import Held, Step, ThreadGraph
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.ugraph import KTensor, Layout, Phase

#: Registers of a lane beyond which a loaded tile is read where it is used, up to which a packed
#: operand stays through the loop, and beyond which a computed value is made where it is used.
MOST_FETCHED, MOST_RESIDENT, LEAST_IN_PLACE = 64, 64, 8
#: Bytes of such a tile up to which it goes to shared memory instead.
MOST_COPIED = 64 * 1024
ACCUMULATORS = {"acc_sum": "Sum", "acc_max": "Max", "acc_scaled": "Sum"}
REDUCTIONS = {"sum": "Sum", "rmax": "Max", "red_sum": "Sum", "red_max": "Max", "matmul": "Sum"}


def rule_of(op: str) -> str:
    """How parts of a value combine."""
    return ACCUMULATORS.get(op) or REDUCTIONS[op]


def lane_bits(form: Form, sides: Sequence[Side]) -> tuple[int, ...]:
    """The bits of the lane number in which lanes with other elements of these sides differ."""
    found: list[int] = []
    bit = 1
    for side, lanes in ((form.t, form.lanes.lanes), (form.g, form.lanes.groups)):
        while lanes > 1:
            found += [bit] if side and side in sides else []
            bit, lanes = bit * 2, lanes // 2
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Parts:
    """Who has other parts of a value: lanes that differ in these bits, warps of these sides."""

    masks: tuple[int, ...] = ()
    sides: tuple[Side, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.masks or self.sides)


@dataclass(slots=True)
class Lowering:
    """Steps in the making. ``made``: registers that there are, with the run that declares them."""

    assignment: Assignment
    forms: dict[int, Form]
    warps: Warps
    extents: Mapping[str, int]
    tensors: Mapping[str, KTensor]
    stages: int
    ranks: int
    before: list[Step] = field(default_factory=list)
    body: list[Step] = field(default_factory=list)
    after: list[Step] = field(default_factory=list)
    made: dict[Held, str] = field(default_factory=dict)
    tiles: dict[str, SharedTile] = field(default_factory=dict)
    homes: dict[int, str] = field(default_factory=dict)
    spilled: dict[int, str] = field(default_factory=dict)
    parts: dict[int, Parts] = field(default_factory=dict)
    fused: dict[int, int] = field(default_factory=dict)
    ring: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    varies: list[bool] = field(default_factory=list)
    known: dict[tuple[int, Form], bool] = field(default_factory=dict)

    # ---- runs of steps ---------------------------------------------------------------------

    def _varies(self) -> list[bool]:
        found: list[bool] = []
        for op in self.assignment.kernel.ops:
            own = op.op in ("run_max", "prev") or op.fmap is not None
            found.append(op.phase is Phase.LOOP and (own or any(found[a] for a in op.args)))
        return found

    def run_of(self, index: int) -> str:
        """The run that value ``index`` is made in."""
        if self.varies[index]:
            return "body"
        loop = self.assignment.kernel.ops[index].phase is Phase.LOOP
        return "before" if loop and self.assignment.kernel.loop is not None else "after"

    def steps(self, run: str) -> list[Step]:
        """The run of that name."""
        return {"before": self.before, "body": self.body, "after": self.after}[run]

    def lower(self) -> ThreadGraph:
        """The steps, without barriers.

        Raises:
            RejectionError: EMIT_UNSUPPORTED, an operation that there is no rule for.
        """
        self.varies = self._varies()
        self._fuse()
        for index in sorted(self.assignment.needed):
            self._value(index)
        for number, save in enumerate(self.assignment.kernel.saves):
            touched = self.need(save.arg, self.save_form(save.arg), "after")
            self.after.append(do.Store(number, touched=touched))
        body = [do.Advance(-1), *self.body] if self.ring else self.body
        return ThreadGraph(tuple(self.before), tuple(body), tuple(self.after))

    def save_form(self, index: int) -> Form:
        if index in self.forms:
            return self.forms[index]
        return self.form_of_load(index)

    def form_of_load(self, index: int) -> Form:
        """A form for a loaded value (or constant) that nothing says how to read."""
        own = self.assignment.own(index).values()
        found = [f.of(own) for f in self.assignment.frames]
        return min(found, key=self.warps.registers)

    def _fuse(self) -> None:
        """Contractions that nothing but one accumulator takes add to its registers."""
        ops = self.assignment.kernel.ops
        for i in self.assignment.products:
            users = [u for u in self.assignment.needed if i in ops[u].args]
            alone = len(users) == 1 and ops[users[0]].op in ("acc_sum", "acc_scaled")
            saved = any(s.arg == i for s in self.assignment.kernel.saves)
            if alone and not saved and self._on_tensor_cores(i) and ops[users[0]].args[0] == i:
                self.fused[i] = users[0]

    def _on_tensor_cores(self, index: int) -> bool:
        ops = self.assignment.kernel.ops
        return ops[ops[index].args[0]].dtype.is_half

    # ---- values as they are needed ---------------------------------------------------------

    def in_place(self, index: int, form: Form) -> bool:
        """Whether a value is made where it is used, from shared memory or a large tensor tile.

        What a lane would hold many elements of only to use each once or twice: operands of
        contractions, and what is reduced. It may depend on nothing that is held along the inner
        side, so that a loop over that need not be unrolled.
        """
        key = index, form
        if key not in self.known:
            self.known[key] = self._in_place(index, form)
        return self.known[key]

    def _in_place(self, index: int, form: Form) -> bool:
        op = self.assignment.kernel.ops[index]
        if op.op == "load":
            return index in self.homes or self.warps.registers(form) > MOST_FETCHED
        if not is_elementwise(op.op) or self.forms.get(index) != form:
            return False
        if self.warps.registers(form) <= LEAST_IN_PLACE:
            return False
        some = False
        for a in op.args:
            if constant(self.assignment.kernel.ops[a], self.extents) is not None:
                continue
            own = form.of(self.assignment.own(a).values())
            if self.in_place(a, own):
                some = True
            elif own.t:
                return False
        return some

    def need(self, index: int, form: Form, run: str) -> tuple[str, ...]:
        """Value ``index`` in this form for a step of this run; the tiles that the step reads."""
        op = self.assignment.kernel.ops[index]
        if constant(op, self.extents) is not None:
            return ()
        if self.in_place(index, form):
            if op.op == "load":
                return (self.homes[index],) if index in self.homes else ()
            touched = [
                t
                for a in op.args
                for t in self.need(a, form.of(self.assignment.own(a).values()), run)
            ]
            return tuple(dict.fromkeys(touched))
        held = Held(index, form)
        if self.made.get(held) in (run, "before"):
            return ()
        own_run = self.run_of(index)
        if op.op == "load":
            self.steps(own_run).append(do.Fetch(index, held))
        else:
            tile = self.spill(index, run)
            self.steps(own_run).append(do.Read(index, held, tile))
        self.made[held] = own_run
        return ()

    def operand(self, index: int, form: Form, run: str) -> tuple[str, ...]:
        """Value ``index`` as an operand of a contraction.

        One that the loop does not change is packed before it, if that takes few registers.
        """
        held = Held(index, form, packed=True)
        if self.made.get(held) in (run, "before"):
            return ()
        own_run = self.run_of(index)
        small = self.warps.registers(form) // 2 <= MOST_RESIDENT
        if own_run == "before" and run == "body" and small:
            touched = self._operand(index, form, own_run)
            self.before.append(do.Pack(index, held, touched=touched))
            self.made[held] = own_run
            return ()
        return self._operand(index, form, run)

    def _operand(self, index: int, form: Form, run: str) -> tuple[str, ...]:
        op = self.assignment.kernel.ops[index]
        if op.op == "load" or self.forms[index] == form:
            return self.need(index, form, run)
        return (self.spill(index, run),)

    def spill(self, index: int, run: str) -> str:
        """The shared tile that holds value ``index``."""
        if index in self.homes:
            return self.homes[index]
        if index not in self.spilled:
            op = self.assignment.kernel.ops[index]
            form = self.forms[index] if index in self.forms else self.form_of_load(index)
            touched = self.need(index, form, run)
            name = self.spilled[index] = f"s{index}"
            dtype = op.dtype if op.dtype.is_half else DType.F32
            self.tiles[name] = SharedTile(name, dtype, form.rest + form.g + form.t)
            own = self.run_of(index)
            self.steps(own).append(do.Spill(index, Held(index, form), name, touched=touched))
        return self.spilled[index]

    # ---- one value -------------------------------------------------------------------------

    def _value(self, index: int) -> None:
        op = self.assignment.kernel.ops[index]
        if constant(op, self.extents) is not None:
            return
        if op.op == "load":
            self._load(index)
        elif op.op == "matmul":
            if index not in self.fused:
                self._contract(index, index, self.run_of(index))
        elif op.op in ("sum", "rmax"):
            self._reduce(index)
        elif op.op in ACCUMULATORS:
            self._accumulate(index)
        elif op.op == "run_max":
            self._running(index)
        elif op.op == "prev":
            pass  # the running maximum keeps it
        elif op.op in ("red_sum", "red_max"):
            self._over_ranks(index)
        elif is_elementwise(op.op):
            self._elementwise(index)
        else:
            raise RejectionError("EMIT_UNSUPPORTED", f"no rule for the operation {op.op!r}")

    def _load(self, index: int) -> None:
        op = self.assignment.kernel.ops[index]
        if op.layout is not Layout.SHARED and not self._too_wide(index):
            return
        own = self.assignment.own(index)
        axes = self.tensors[op.tensor].axes
        order = tuple(own[a] for a in axes)
        moves = any(p.levels.endswith(STEP) for p in order)
        name = self.homes[index] = f"s{index}"
        copies = self.stages if moves else 1
        self.tiles[name] = SharedTile(name, op.dtype, order, copies, zeroed=True)
        if moves:
            self.ring.append(index)
        else:
            # First of all: copies are on their way while anything else is done.
            steps = self.steps(self.run_of(index))
            steps.insert(sum(isinstance(s, do.Copy) for s in steps), do.Copy(index, name))

    def _too_wide(self, index: int) -> bool:
        """Whether a tile that was meant for registers is too wide for them, and fits elsewhere."""
        op, own = self.assignment.kernel.ops[index], self.assignment.own(index).values()
        wide = min(self.warps.registers(f.of(own)) for f in self.assignment.frames)
        size_bytes = op.dtype.size_bytes * prod(p.length for p in own)
        return wide > MOST_FETCHED and size_bytes <= MOST_COPIED

    def _elementwise(self, index: int) -> None:
        op, form, run = self.assignment.kernel.ops[index], self.forms[index], self.run_of(index)
        if self.in_place(index, form):
            return
        found = [self.need(a, form.of(self.assignment.own(a).values()), run) for a in op.args]
        touched = tuple(dict.fromkeys(t for tiles in found for t in tiles))
        steps = self.steps(run)
        last = steps[-1] if steps else None
        if isinstance(last, do.Run) and last.form == form:
            touched = tuple(dict.fromkeys((*last.touched, *touched)))
            steps[-1] = do.Run(index, (*last.ops, index), form, touched=touched)
        else:
            steps.append(do.Run(index, (index,), form, touched=touched))
        self.made[Held(index, form)] = run

    def _contract(self, index: int, into: int, run: str) -> None:
        op, product = self.assignment.kernel.ops[index], self.assignment.products[index]
        if self._on_tensor_cores(index):
            found = [
                self.operand(a, form, run)
                for a, form in zip(op.args, (product.a, product.b), strict=True)
            ]
            self.steps(run).append(do.Contract(index, into, touched=found[0] + found[1]))
            if self.warps.count((product.depth,)) > 1:
                self.parts[index] = Parts(sides=((product.depth,),))
        else:
            first, second = (self.spill(a, run) for a in op.args)
            self.steps(run).append(do.Multiply(index, (first, second)))
        if into == index:
            self.made[Held(index, product.c)] = run
            self._settle(index, run)

    def _reduce(self, index: int) -> None:
        op, form, run = self.assignment.kernel.ops[index], self.forms[index], self.run_of(index)
        (arg,) = op.args
        own = self.assignment.own(arg)
        gone = {own[a] for a in op.reduced}
        source = self._source(arg, gone, form)
        if source is None:
            self.steps(run).append(do.Total(index, self.spill(arg, run)))
        else:
            touched = self.need(arg, source, run)
            self.steps(run).append(do.Fold(index, source, touched=touched))
            over = [s for s in (source.g, source.t) if set(s) & gone]
            self.parts[index] = Parts(
                lane_bits(source, over), tuple(s for s in over if self.warps.count(s) > 1)
            )
        self.made[Held(index, form)] = run
        self._settle(index, run)

    def _source(self, arg: int, gone: set[Piece], form: Form) -> Form | None:
        """A form of the argument whose reduction over ``gone`` lies as ``form``."""
        own = self.assignment.own(arg).values()
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
        ops = self.assignment.kernel.ops
        users = [ops[u] for u in self.assignment.needed if index in ops[u].args]
        rule = rule_of(ops[index].op)
        saved = any(s.arg == index for s in self.assignment.kernel.saves)
        waits = all(
            u.op in ACCUMULATORS and u.args[0] == index and ACCUMULATORS[u.op] == rule
            and index not in u.args[1:]
            for u in users
        )  # fmt: skip
        if not (users and waits) or saved:
            self._complete(index, run)

    def _complete(self, index: int, run: str) -> None:
        parts = self.parts.pop(index, Parts())
        if parts.masks:
            self.steps(run).append(do.Meet(index, parts.masks))
        for number, side in enumerate(parts.sides):
            name = f"m{index}_{number}"
            self.exchange(name, self.forms[index])
            self.steps(run).append(do.Publish(index, name))
            self.steps(run).append(do.Gather(index, name, side))

    def exchange(self, name: str, form: Form) -> None:
        """A tile with a slot per register of a form and thread."""
        slots = prod(self.warps.shape(form)) * 32 * self.warps.total
        self.tiles[name] = SharedTile(name, DType.F32, (), slots=slots)

    def _accumulate(self, index: int) -> None:
        op, form = self.assignment.kernel.ops[index], self.forms[index]
        (arg, *factor) = op.args
        self.states.append(index)
        touched: tuple[str, ...] = ()
        for f in factor:
            touched += self.need(f, form.of(self.assignment.own(f).values()), "body")
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
        op, form = self.assignment.kernel.ops[index], self.forms[index]
        self.states.append(index)
        touched = self.need(op.args[0], form, "body")
        self.body.append(do.Update(index, touched=touched))
        self.made[Held(index, form)] = "body"
        for i in self.assignment.needed:
            other = self.assignment.kernel.ops[i]
            if other.op == "prev" and other.args[0] == index:
                self.made[Held(i, form)] = "body"

    def _over_ranks(self, index: int) -> None:
        op, form = self.assignment.kernel.ops[index], self.forms[index]
        touched = self.need(op.args[0], form, "after")
        if self.ranks == 1:
            self.after.append(do.Run(index, (index,), form, touched=touched))
        else:
            name = f"r{index}"
            self.exchange(name, form)
            self.after.append(do.Publish(index, name, touched=touched))
            self.after.append(do.GatherRanks(index, name))
        self.made[Held(index, form)] = "after"
