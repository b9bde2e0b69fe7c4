"""Steps of a thread graph as CUDA text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from mirage_onnx.codegen.elementwise import constant, evaluate, literal
from mirage_onnx.codegen.loads import TensorView, rounded, tag
from mirage_onnx.codegen.ring import subscript, total
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled import steps as do
from mirage_onnx.codegen.tiled.contract import contract
from mirage_onnx.codegen.tiled.copies import copy_tile
from mirage_onnx.codegen.tiled.forms import Form
from mirage_onnx.codegen.tiled.lower import ACCUMULATORS, Lowering, rule_of
from mirage_onnx.codegen.tiled.pieces import Piece, Pieces
from mirage_onnx.codegen.tiled.shared import SharedTile
from mirage_onnx.codegen.tiled.spot import Spot, owner, walk
from mirage_onnx.codegen.tiled.steps import Held, Step
from mirage_onnx.ir.ugraph import BlockOp, UGraph, is_part_axis

_LOWEST = "-3.4028235e38f"


def conditional(conditions: Sequence[str], text: str) -> str:
    """A statement under conditions, if there are any."""
    return f"if ({' && '.join(conditions)}) {text}" if conditions else text


@dataclass(slots=True)
class StepWriter:
    """Writes steps; ``names``: the variable of a held value, if it is not its own."""

    graph: UGraph
    lowering: Lowering
    pieces: Pieces
    writer: Writer
    names: dict[Held, str] = field(default_factory=dict)

    @property
    def ops(self) -> tuple[BlockOp, ...]:
        return self.lowering.assignment.kernel.ops

    def own(self, index: int) -> Mapping[str, Piece]:
        return self.pieces.of_value[index]

    def name(self, held: Held) -> str:
        """The register array of a value in a form."""
        if held not in self.names:
            home = self.lowering.forms.get(held.index)
            stem = f"{'p' if held.packed else 'v'}{held.index}"
            others = [h for h in self.names if h.index == held.index and h.packed == held.packed]
            plain = held.form == home or (home is None and not others)
            if plain and stem not in {self.names[h] for h in others}:
                self.names[held] = stem
            else:
                self.names[held] = f"{stem}{'bcdefghijklmnop'[len(others)]}"
        return self.names[held]

    def _walk(
        self, form: Form, *, packed: bool = False, rolled: Collection[str] = ()
    ) -> AbstractContextManager[Spot]:
        warps = self.lowering.warps
        return walk(self.writer, self.pieces, warps, form, packed=packed, rolled=rolled)

    def _shape(self, form: Form, packed: bool = False) -> str:
        shape = self.lowering.warps.shape(form)
        if packed and form.t and form.lanes.pack > 1:
            shape = shape[:-1]
        return subscript([str(n) for n in shape])

    def declare(self, held: Held, value: str | None = None) -> str:
        """Declares the registers of a value; every element ``value``, if given."""
        name, shape = self.name(held), self._shape(held.form, held.packed)
        kind = "unsigned" if held.packed else "float"
        if value is None:
            self.writer.line(f"{kind} {name}{shape};")
        elif not shape or value == "0.0f":
            self.writer.line(f"{kind} {name}{shape} = {value if not shape else '{}'};")
        else:
            self.writer.line(f"{kind} {name}{shape};")
            with self._walk(held.form, packed=held.packed) as spot:
                self.writer.line(f"{name}{spot.subscript(held.form)} = {value};")
        return name

    def element(self, index: int, spot: Spot) -> str:
        """Value ``index`` at an element of a form; one that is made in place, is made here."""
        number = constant(self.ops[index], self.lowering.extents)
        if number is not None:
            return literal(number)
        form = spot.form.of(self.own(index).values())
        if not self.lowering.in_place(index, form):
            return self.name(Held(index, form)) + spot.subscript(form)
        if index not in spot.made:
            op = self.ops[index]
            if op.op == "load":
                value = self._loaded(index, spot)
            else:
                value = self._value(op, [self.element(a, spot) for a in op.args])
            spot.made[index] = f"u{index}{spot.tag}"
            self.writer.line(f"const float {spot.made[index]} = {value};", index)
        return spot.made[index]

    def _loaded(self, index: int, spot: Spot) -> str:
        """An element of a loaded tile; 0 where there is none."""
        own = self.own(index)
        spot.declare(own.values())
        home = self.lowering.homes.get(index)
        if home is None:
            view = self._view(self.ops[index].tensor)
            value = view.load(self._global(view, own, spot))
            return _chosen(spot.exists(own.values()), value, "0.0f")
        return self._in_tile(self.lowering.tiles[home], own, spot)

    def _in_tile(self, tile: SharedTile, own: Mapping[str, Piece], spot: Spot) -> str:
        value = f"{tile.name}[{tile.offset(spot.known)}]"
        if tile.dtype.is_half:
            value = f"{tag(tile.dtype)}::widen({value})"
        return _chosen(spot.held(own.values()), value, "0.0f")

    def write(self, step: Step) -> None:
        """The text of one step."""
        if isinstance(step, do.Contract):
            contract(self, step)
            return
        kind = type(step).__name__.lower()
        method: Callable[[Step], None] = getattr(self, f"_{kind}")
        method(step)

    # ---- memory ----------------------------------------------------------------------------

    def _barrier(self, step: do.Barrier) -> None:
        if step.copies:
            self.writer.line("ptx::cp_async_wait_all();")
        self.writer.line("ptx::cluster_sync();" if step.cluster else "ptx::sync_block();")

    def _view(self, tensor: str) -> TensorView:
        return TensorView.of(self.graph.tensor(tensor), self.lowering.extents)

    def _global(self, view: TensorView, own: Mapping[str, Piece], spot: Spot) -> dict[str, str]:
        return {a: total(self.pieces.first(own[a]), spot.known[own[a]]) for a in view.tensor.axes}

    def _fetch(self, step: do.Fetch) -> None:
        held = step.to
        self.writer.comment(f"%{step.index}: {self.ops[step.index].tensor}, {held.form.text}.")
        name = self.declare(held)
        with self._walk(held.form) as spot:
            value = self._loaded(step.index, spot)
            self.writer.line(f"{name}{spot.subscript(held.form)} = {value};", step.index)

    def _pair_in_memory(self, view: TensorView, own: Mapping[str, Piece], form: Form) -> bool:
        """Whether the two elements of a pair are neighbours in memory that exist together."""
        if len(form.t) != 1 or not view.tensor.axes:
            return False
        (p,) = form.t
        last = view.tensor.axes[-1]
        whole = self.lowering.extents[last]
        even = p.length % 2 == 0 and p.aligned % 2 == 0 and whole % 2 == 0
        return own[last] == p and even

    def pair(self, index: int, form: Form, spot: Spot) -> str:
        """Two neighbours of the inner side, packed; what does not exist is zero."""
        op, own, lowering = self.ops[index], self.own(index), self.lowering
        home = lowering.homes.get(index)
        if home is None and op.op != "load" and lowering.forms[index] != form:
            home = lowering.spilled[index]
        if home is not None:
            return self._pair_in_tile(lowering.tiles[home], form, own, spot)
        halves = [spot.half(e) for e in (0, 1)]
        if op.op == "load" and lowering.in_place(index, form):
            return self._pair_in_tensor(self._view(op.tensor), form, own, halves)
        values = []
        for half in halves:
            value = self.element(index, half)
            conditions = []
            if self._cut_off(form):
                half.declare(form.t)
                conditions = half.exists(form.t)
            values.append(_chosen(conditions, value, "0.0f"))
        return f"{tag(op.dtype)}::pack({', '.join(values)})"

    def _pair_in_tensor(
        self, view: TensorView, form: Form, own: Mapping[str, Piece], halves: Sequence[Spot]
    ) -> str:
        bits = []
        together = self._pair_in_memory(view, own, form)
        for half in halves[:1] if together else halves:
            half.declare(own.values())
            index, conditions = self._global(view, own, half), half.exists(own.values())
            if together:
                kind = "ptx::ld_u32" if view.coherent else "ptx::ld_nc_u32"
                return _chosen(conditions, f"{kind}({view.address(index)})", "0u")
            bits.append(_chosen(conditions, f"unsigned{{{view.load_bits(index)}}}", "0u"))
        return f"({bits[0]}) | ({bits[1]}) << 16"

    def _pair_in_tile(
        self, tile: SharedTile, form: Form, own: Mapping[str, Piece], spot: Spot
    ) -> str:
        (deep,) = form.t
        bits = []
        together = tile.order[-1] == deep and deep.length % 2 == 0
        mask = not tile.zeroed and not deep.exact
        for half in [spot.half(e) for e in (0, 1)][: 1 if together and not mask else 2]:
            half.declare(own.values())
            conditions = half.held(own.values())
            if mask:
                conditions = list(dict.fromkeys([*conditions, *half.exists([deep])]))
            place = tile.offset(half.known)
            if together and not mask:
                value = f"*reinterpret_cast<const unsigned*>({total(tile.name, place)})"
                return _chosen(conditions, value, "0u")
            bits.append(_chosen(conditions, f"unsigned{{{tile.name}[{place}]}}", "0u"))
        return f"({bits[0]}) | ({bits[1]}) << 16"

    def _copy(self, step: do.Copy) -> None:
        tile, op = self.lowering.tiles[step.tile], self.ops[step.index]
        self.writer.comment(f"%{step.index}: {op.tensor} to shared memory.")
        view, own = self._view(op.tensor), self.own(step.index)
        firsts = {a: self.pieces.first(p) for a, p in own.items()}
        threads = 32 * self.lowering.warps.total
        copy_tile(self.writer, self.pieces, view, tile, own, firsts, tile.name, threads)

    def _read(self, step: do.Read) -> None:
        held, own, tile = step.to, self.own(step.index), self.lowering.tiles[step.tile]
        name = self.declare(held)
        with self._walk(held.form) as spot:
            spot.declare(own.values())
            value = self._in_tile(tile, own, spot)
            self.writer.line(f"{name}{spot.subscript(held.form)} = {value};", step.index)

    def _spill(self, step: do.Spill) -> None:
        tile, own = self.lowering.tiles[step.tile], self.own(step.index)
        with self._walk(step.held.form) as spot:
            spot.declare(own.values())
            value = self.element(step.index, spot)
            if tile.dtype.is_half:
                value = f"{tag(tile.dtype)}::narrow({value})"
            conditions = owner(step.held.form, self.lowering.warps) + spot.held(own.values())
            text = f"{tile.name}[{tile.offset(spot.known)}] = {value};"
            self.writer.line(conditional(conditions, text), step.index)

    def _store(self, step: do.Store) -> None:
        kernel, lowering = self.lowering.assignment.kernel, self.lowering
        save = kernel.saves[step.index]
        form = lowering.save_form(save.arg)
        own, view = self.own(save.arg), self._view(save.tensor)
        conditions = owner(form, lowering.warps)
        if lowering.ranks > 1:
            conditions.append("ptx::cluster_rank() == 0")
        grid = self.pieces.grid
        saved = tuple(a.partition("/")[0] for a in view.tensor.axes)
        conditions += [replica] if (replica := grid.replicas(saved)) else []
        self.writer.comment(f"%{save.arg} to {save.tensor}.")
        with self._walk(form) as spot:
            spot.declare(own.values())
            index = {}
            for axis in view.tensor.axes:
                if is_part_axis(axis) and axis in save.omap:
                    index[axis] = grid.block_index(save.omap.index(axis))
                else:
                    index[axis] = total(self.pieces.first(own[axis]), spot.known[own[axis]])
            text = view.store(index, self.element(save.arg, spot))
            self.writer.line(conditional(conditions + spot.exists(own.values()), text), save.arg)

    # ---- arithmetic ------------------------------------------------------------------------

    def _run(self, step: do.Run) -> None:
        for index in step.ops:
            self.declare(Held(index, step.form))
        with self._walk(step.form) as spot:
            for index in step.ops:
                op = self.ops[index]
                args = [self.element(a, spot) for a in op.args]
                value = args[0] if op.op.startswith("red_") else self._value(op, args)
                self.writer.line(f"{self.element(index, spot)} = {value};", index)

    def _value(self, op: BlockOp, args: list[str]) -> str:
        return evaluate(self.ops, op, args, self.lowering.extents)

    def _pack(self, step: do.Pack) -> None:
        held = step.to
        self.declare(held)
        with self._walk(held.form, packed=True) as spot:
            value = self.pair(step.index, held.form, spot)
            to = f"{self.name(held)}{spot.subscript(held.form, packed=True)}"
            self.writer.line(f"{to} = {value};", step.index)

    def _cut_off(self, form: Form) -> bool:
        """Whether lanes hold elements of the inner side that may not exist."""
        covered = self.lowering.warps.covers(form.t, form.lanes.inner)
        return not covered or any(not p.exact for p in form.t)

    def _multiply(self, step: do.Multiply) -> None:
        lowering, writer = self.lowering, self.writer
        op, product = self.ops[step.index], lowering.assignment.products[step.index]
        held = Held(step.index, product.c)
        name = self.declare(held, "0.0f")
        deep = product.depth
        with self._walk(product.c) as spot:
            spot.declare(p for a in op.args for p in self.own(a).values() if p != deep)
            sides = []
            for tile_name in step.tiles:
                tile = lowering.tiles[tile_name]
                text = f"{tile.name}[{tile.offset({**spot.known, deep: 'k'})}]"
                sides.append(f"{tag(tile.dtype)}::widen({text})" if tile.dtype.is_half else text)
            conditions = spot.held(p for a in op.args for p in self.own(a).values() if p != deep)
            with writer.scope(bool(conditions), f"if ({' && '.join(conditions)})"):
                to = f"{name}{spot.subscript(product.c)}"
                with writer.block(f"for (int k = 0; k < {self.pieces.size(deep)}; ++k)"):
                    writer.line(f"{to} += {sides[0]} * {sides[1]};", step.index)

    def _fold(self, step: do.Fold) -> None:
        op, rule = self.ops[step.index], rule_of(self.ops[step.index].op)
        held = Held(step.index, self.lowering.forms[step.index])
        neutral = f"{rule}::neutral()"
        name = self.declare(held, "0.0f" if rule == "Sum" else neutral)
        own = self.own(op.args[0])
        gone = [own[a] for a in op.reduced]
        rolled = self._rolled(op.args[0], step.source, set(gone))
        with self._walk(step.source, rolled=rolled) as spot:
            covered = all(
                self.lowering.warps.covers(s, tile)
                for s, tile in ((step.source.g, step.source.lanes.groups),
                                (step.source.t, step.source.lanes.inner))
                if set(s) & set(gone)
            )  # fmt: skip
            conditions = []
            if not covered or any(not p.exact for p in gone):
                spot.declare(gone)
                conditions = spot.exists(gone)
            value = self.element(op.args[0], spot)
            value = f"{' && '.join(conditions)} ? {value} : {neutral}" if conditions else value
            to = f"{name}{spot.subscript(held.form)}"
            self.writer.line(f"{to} = {rule}::combine({to}, {value});", step.index)

    def _rolled(self, index: int, form: Form, gone: set[Piece]) -> tuple[str, ...]:
        """The loop over the inner side, if nothing that is held along it is used."""
        along = bool(form.t) and set(form.t) <= gone
        return ("j",) if along and self.lowering.in_place(index, form) else ()

    def _total(self, step: do.Total) -> None:
        op, rule = self.ops[step.index], rule_of(self.ops[step.index].op)
        form = self.lowering.forms[step.index]
        name = self.declare(Held(step.index, form), f"{rule}::neutral()")
        tile, own = self.lowering.tiles[step.tile], self.own(op.args[0])
        gone = [own[a] for a in op.reduced]
        with self._walk(form) as spot:
            left = [p for p in own.values() if p not in gone]
            spot.declare(left)
            conditions = spot.held(left)
            known = {**spot.known, **{p: f"z_{p.name}" for p in gone}}
            value = f"{tile.name}[{tile.offset(known)}]"
            value = f"{tag(tile.dtype)}::widen({value})" if tile.dtype.is_half else value
            with self.writer.scope(bool(conditions), f"if ({' && '.join(conditions)})"):
                heads = [
                    f"for (int {known[p]} = 0; {known[p]} < {self.pieces.size(p)}; ++{known[p]})"
                    for p in gone
                ]
                self._nested(heads, f"{rule}::combine", f"{name}{spot.subscript(form)}", value,
                             step.index)  # fmt: skip

    def _nested(self, heads: list[str], call: str, to: str, value: str, index: int) -> None:
        if not heads:
            self.writer.line(f"{to} = {call}({to}, {value});", index)
            return
        with self.writer.block(heads[0]):
            self._nested(heads[1:], call, to, value, index)

    def _meet(self, step: do.Meet) -> None:
        rule = rule_of(self.ops[step.index].op)
        form = self.lowering.forms[step.index]
        name = self.name(Held(step.index, form))
        with self._walk(form) as spot:
            to = f"{name}{spot.subscript(form)}"
            for mask in step.masks:
                value = f"ptx::shfl_xor({to}, {mask})"
                self.writer.line(f"{to} = {rule}::combine({to}, {value});", step.index)

    def _slot(self, spot: Spot, form: Form) -> str:
        """The number of the register in a slot tile, of ``32 * warps`` threads each."""
        names = [f"q_{p.name}" for p in form.rest]
        names += ["i"] if form.g else []
        names += ["j"] if form.t else []
        names += ["e"] if form.t and form.lanes.pack > 1 else []
        text = "0"
        for name, count in zip(names, self.lowering.warps.shape(form), strict=True):
            before = "0" if text == "0" else f"({text}) * {count}"
            text = total(before, spot.at[name])
        return text

    def _publish(self, step: do.Publish) -> None:
        threads = 32 * self.lowering.warps.total
        index = step.index
        if self.ops[index].op in ("red_sum", "red_max"):
            index = self.ops[index].args[0]
        form = self.lowering.forms[step.index]
        tile = self.lowering.tiles[step.tile]
        with self._walk(form) as spot:
            at = total(_scaled(self._slot(spot, form), threads), "ptx::thread()")
            self.writer.line(f"{tile.name}[{at}] = {self.element(index, spot)};", index)

    def _gather(self, step: do.Gather) -> None:
        warps, rule = self.lowering.warps, rule_of(self.ops[step.index].op)
        form = self.lowering.forms[step.index]
        tile, name = self.lowering.tiles[step.tile], self.name(Held(step.index, form))
        stride, digit, count = 32, warps.digit(step.side), warps.count(step.side)
        for side, n in warps.digits:
            if side == step.side:
                break
            stride *= n
        with self._walk(form) as spot:
            to = f"{name}{spot.subscript(form)}"
            base = total(_scaled(self._slot(spot, form), 32 * warps.total), "ptx::thread()")
            first = f"{tile.name} + {base} - {digit} * {stride}"
            call = f"parts_reduce<{rule}, {count}, {stride}>"
            self.writer.line(f"{to} = {call}({first});", step.index)

    def _gatherranks(self, step: do.GatherRanks) -> None:
        lowering, rule = self.lowering, rule_of(self.ops[step.index].op)
        form = lowering.forms[step.index]
        tile, name = lowering.tiles[step.tile], self.declare(Held(step.index, form))
        threads = 32 * lowering.warps.total
        with self._walk(form) as spot:
            at = total(_scaled(self._slot(spot, form), threads), "ptx::thread()")
            call = f"cluster_reduce<{rule}, {lowering.ranks}>"
            self.writer.line(
                f"{name}{spot.subscript(form)} = {call}({tile.name} + {at});", step.index
            )

    # ---- what lives through the loop -------------------------------------------------------

    def state(self, index: int) -> None:
        """Accumulators and running maxima before the first iteration."""
        op = self.ops[index]
        held = Held(index, self.lowering.forms[index])
        start = {"acc_max": "Max::neutral()", "run_max": rounded(_LOWEST, op.dtype)}
        self.declare(held, start.get(op.op, "0.0f"))

    def _update(self, step: do.Update) -> None:
        op, form = self.ops[step.index], self.lowering.forms[step.index]
        name = self.name(Held(step.index, form))
        old = [
            Held(i, form)
            for i in sorted(self.lowering.assignment.needed)
            if self.ops[i].op == "prev" and self.ops[i].args[0] == step.index
        ]
        for held in old if op.op == "run_max" else []:
            self.declare(held)
        with self._walk(form) as spot:
            to = f"{name}{spot.subscript(form)}"
            if op.op == "acc_scaled":
                scaled = f"{to} * {self.element(op.args[1], spot)}"
                fused = self.lowering.fused.get(op.args[0]) == step.index
                value = scaled if fused else f"{scaled} + {self.element(op.args[0], spot)}"
            else:
                rule = ACCUMULATORS.get(op.op, "Max")
                if op.op == "run_max":
                    for held in old:
                        self.writer.line(f"{self.name(held)}{spot.subscript(form)} = {to};")
                value = f"{rule}::combine({to}, {self.element(op.args[0], spot)})"
            self.writer.line(f"{to} = {value};", step.index)


def _chosen(conditions: Sequence[str], value: str, otherwise: str) -> str:
    return f"{' && '.join(conditions)} ? {value} : {otherwise}" if conditions else value


def _scaled(text: str, factor: int) -> str:
    return "0" if text == "0" else f"({text}) * {factor}"
