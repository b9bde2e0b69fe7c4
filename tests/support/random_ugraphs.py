"""Random well-formed µGraphs with numbers: every operation, every cut, every kind of save."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.ugraph import (
    BlockOp,
    Kernel,
    KernelParams,
    KTensor,
    Layout,
    Phase,
    Save,
    UGraph,
    part_axis,
)

EXTENTS = {"a": (1, 4, 5), "b": (3, 7, 9), "c": (2, 5), "d": (1, 3)}
UNARY = ("neg", "tanh", "abs", "square", "relu", "sigmoid")
BINARY = ("add", "sub", "mul", "max", "min")


@dataclass(frozen=True)
class RandomProgram:
    graph: UGraph
    params: tuple[KernelParams, ...]
    extents: Mapping[str, int]


@dataclass
class _Block:
    """A kernel that grows by one random operation at a time.

    ``ranked``: per value, may it differ between the ranks? ``by``: per value, axis -> its cuts.
    """

    rng: random.Random
    name: str
    tensors: tuple[KTensor, ...]
    grid: tuple[str, ...]
    cluster: str | None
    loop: str | None
    ops: list[BlockOp] = field(default_factory=list)
    by: list[dict[str, frozenset[str]]] = field(default_factory=list)
    ranked: list[bool] = field(default_factory=list)

    def add(self, op, args, phase, *, ranked=False, **more):
        cuts = {}
        for a in args:
            cuts |= self.by[a]
        gone = more.get("reduced", ())
        cuts = {a: c for a, c in cuts.items() if a not in gone}
        self.by.append(cuts)
        self.ranked.append(ranked or any(self.ranked[a] for a in args))
        more.setdefault("dtype", DType.F32)
        self.ops.append(
            BlockOp(op, args, tuple(sorted(cuts)), phase=phase, layout=Layout.SHARED, **more)
        )
        return len(self.ops) - 1

    def load(self, tensor, phase, *, whole=False):
        """Mostly cut by everything, so that values meet; ``whole``: by the grid only."""
        grid, cluster, loop = self.grid, self.cluster, self.loop
        if not whole and self.rng.random() < 0.15:
            grid, cluster, loop = (), None, None
        imap = tuple(g if g in tensor.axes and g in grid else None for g in self.grid)
        fmap = loop if phase is Phase.LOOP and loop in tensor.axes else None
        cmap = cluster if cluster in tensor.axes and not whole else None
        if cmap is None and cluster == loop:
            fmap = None
        index = self.add("load", (), phase, ranked=cmap is not None, dtype=tensor.dtype,
                         tensor=tensor.name, imap=imap, cmap=cmap, fmap=fmap)  # fmt: skip
        levels = ((cmap, "cluster"), (fmap, "loop"), *((g, "grid") for g in imap))
        self.by[index] = {a: frozenset(n for m, n in levels if m == a) for a in tensor.axes}
        self.ops[index] = replace(self.ops[index], axes=tensor.axes)
        return index

    def values(self, phase):
        return [i for i, op in enumerate(self.ops) if op.phase is phase]

    def meets(self, x, y):
        return all(self.by[y].get(a, c) == c for a, c in self.by[x].items())

    def step(self, phase):
        rng = self.rng
        x = rng.choice(self.values(phase))
        partners = [y for y in self.values(phase) if self.meets(x, y)]
        y = rng.choice(partners)
        shared = sorted(set(self.by[x]) & set(self.by[y]))
        match rng.randrange(7):
            case 0:
                self.add(rng.choice(UNARY), (x,), phase)
            case 1 | 2:
                self.add(rng.choice(BINARY), (x, y), phase)
            case 3 if shared:
                self.add("matmul", (x, y), phase, reduced=(rng.choice(shared),))
            case 4 if self.by[x]:
                gone = tuple(rng.sample(sorted(self.by[x]), rng.randint(1, len(self.by[x]))))
                self.add(rng.choice(("sum", "rmax")), (x,), phase, reduced=gone)
            case 5:
                value = rng.choice((Fraction(1, 3), Fraction(-2), "pi"))
                self.add("mul", (x, self.add("const", (), phase, value=value)), phase)
            case _:
                axis = rng.choice([a for a in EXTENTS if any(a in t.axes for t in self.tensors)])
                self.add("mul", (x, self.add("extent", (), phase, reduced=(axis,))), phase)

    def still(self, x):
        """``x``, or its sum over the axis that the loop cuts."""
        moving = tuple(a for a, c in self.by[x].items() if "loop" in c)
        if moving:
            return self.add(self.rng.choice(("sum", "rmax")), (x,), Phase.LOOP, reduced=moving)
        return x

    def run(self):
        """A running maximum and what is scaled by it."""
        x = self.still(self.rng.choice(self.values(Phase.LOOP)))
        top = self.add("run_max", (x,), Phase.LOOP)
        before = self.add("prev", (top,), Phase.LOOP)
        change = self.add("sub", (before, top), Phase.LOOP)
        factor = self.add("exp", (change,), Phase.LOOP)
        shifted = self.add("exp", (self.add("sub", (x, top), Phase.LOOP),), Phase.LOOP)
        ranked = self.cluster is not None
        self.add("acc_scaled", (shifted, factor), Phase.POST, ranked=ranked)

    def accumulate(self):
        x = self.still(self.rng.choice(self.values(Phase.LOOP)))
        ranked = self.cluster is not None
        self.add(self.rng.choice(("acc_sum", "acc_max")), (x,), Phase.POST, ranked=ranked)

    def agree(self, x):
        """A value that all ranks have and no cluster cuts, made of ``x``."""
        shares = tuple(a for a, c in self.by[x].items() if "cluster" in c)
        if shares:
            x = self.add(self.rng.choice(("sum", "rmax")), (x,), Phase.POST, reduced=shares)
        if self.ranked[x]:
            x = self.add(self.rng.choice(("red_sum", "red_max")), (x,), Phase.POST)
            self.ranked[x] = False
        return x

    def save(self, name, x, carrier, role):
        """Saves ``x``: a part, or plus ``carrier``, where it does not vary over a grid axis."""
        missing = [a for a in self.grid if a not in self.by[x]]
        parts = {a for a in missing if role == "temp" and self.rng.random() < 0.7}
        if set(missing) - parts:
            # The carrier is over every grid axis, so it makes up for all or none of them.
            y = self.load(carrier, Phase.POST, whole=True)
            if parts or not self.meets(x, y):
                return None
            x = self.add("add", (x, y), Phase.POST)
        wanted = {a: frozenset({"grid"} if a in self.grid else ()) for a in self.by[x]}
        if self.by[x] != wanted or (role == "output" and any("/" in a for a in self.by[x])):
            return None
        omap = tuple(part_axis(a, self.name) if a in parts else a for a in self.grid)
        axes = list(dict.fromkeys((*self.by[x], *omap)))
        self.rng.shuffle(axes)
        return Save(name, x, omap), KTensor(name, DType.F32, tuple(axes), role)


def _kernel(rng, name, tensors, carrier, role):
    axes = sorted({a for t in tensors for a in t.axes})
    grid = tuple(rng.sample([a for a in axes if a in carrier.axes], rng.randint(0, 2)))
    cluster, loop = rng.choice([None, *axes]), rng.choice([None, *axes])
    block = _Block(rng, name, tensors, grid, cluster, loop)
    for t in tensors:
        block.load(t, Phase.LOOP)
    for _ in range(rng.randint(2, 6)):
        block.step(Phase.LOOP)
    for _ in range(rng.randint(1, 3)):
        block.accumulate()
    if rng.random() < 0.6:
        block.run()
    if rng.random() < 0.5:
        block.load(rng.choice(tensors), Phase.POST)
    for _ in range(rng.randint(0, 4)):
        block.step(Phase.POST)
    saves = []
    made = []
    for x in rng.sample(block.values(Phase.POST), len(block.values(Phase.POST))):
        saved = block.save(f"{name}s{len(saves)}", block.agree(x), carrier, role)
        if saved is not None and len(saves) < 2:
            saves.append(saved[0])
            made.append(saved[1])
    used = {("cluster", o.cmap) for o in block.ops} | {("loop", o.fmap) for o in block.ops}
    if not saves or not {("cluster", cluster), ("loop", loop)} <= used:
        return None
    return Kernel(name, grid, cluster, loop, tuple(block.ops), tuple(saves)), made


def _numbers(rng, kernel, extents):
    def size(axis):
        return rng.randint(1, extents.get(axis or "", 4) + 1)

    return KernelParams(
        tile=tuple(map(size, kernel.grid)),
        cluster=rng.randint(1, 4) if kernel.cluster else 1,
        loop_tile=size(kernel.loop) if kernel.loop else 0,
    )


def random_program(rng):
    """One or two kernels; the second reads what the first saves."""
    extents = {a: rng.choice(sizes) for a, sizes in EXTENTS.items()}
    carrier = KTensor("i0", DType.F32, ("a", "b", "c"), "input")
    while True:
        count = rng.randint(1, 2)
        some = (tuple(rng.sample(sorted(EXTENTS), rng.randint(0, 3))) for _ in range(count))
        more = (KTensor(f"i{n}", DType.F32, axes, "input") for n, axes in enumerate(some, 1))
        inputs = (carrier, *more)
        two = rng.random() < 0.5
        first = _kernel(rng, "k0", inputs, carrier, "temp" if two else "output")
        if first is None:
            continue
        kernels, tensors = [first[0]], [*inputs, *first[1]]
        if two:
            second = _kernel(rng, "k1", (*first[1], *inputs[:2]), carrier, "output")
            if second is None:
                continue
            kernels.append(second[0])
            tensors += second[1]
        graph = UGraph(tuple(tensors), tuple(kernels))
        params = tuple(_numbers(rng, k, extents) for k in kernels)
        return RandomProgram(graph, params, extents)
