"""A block graph that grows by one operation at a time and stays well-formed and tame.

Of every value is known how its axes are cut, whether the ranks of a cluster differ in it, and a
sample of its numbers: arguments of functions are brought into their domain, operands into fp16.
"""

import random
from dataclasses import dataclass, field
from fractions import Fraction
from math import log2, prod, sqrt

import numpy as np

from mirage_onnx.ir import BlockOp, DType, KTensor, Layout, Phase, Save, part_axis
from mirage_onnx.ir.functions import ELEMENTWISE, IRRATIONAL

Axes = tuple[str, ...]
LOOP, POST = Phase.LOOP, Phase.POST
LEAVES = ("load", "const", "extent")
#: A rounding error may turn these round, so they only get what has none.
COMPARISONS = ("less", "less_equal", "equal")
UNARY = tuple(name for name, e in ELEMENTWISE.items() if e.arity == 1)
BINARY = tuple(n for n, e in ELEMENTWISE.items() if e.arity == 2 and n not in COMPARISONS)
#: Functions of positive numbers only.
OF_POSITIVE = ("sqrt", "rsqrt", "recip", "log")
#: The largest root mean square that values may have, and arguments of some functions.
LARGE, ARGUMENT = 24.0, {"exp": 1.2, "square": 4.0, "sin": 4.0, "cos": 4.0}
SAMPLE = 256


@dataclass
class Block:
  """A kernel under construction; ``half`` is the type of its matrices (F32: it has no other).

  ``narrow``: how often an elementwise function or a maximum is rounded to ``half`` itself.
  ``wished``: an operation that most steps should be.
  ``kinds``: input tensor -> how its numbers are drawn: ``normal``, ``coarse`` (few different
  ones), or ``mask:a3`` (0 and -inf, along a3 not all).
  """

  rng: random.Random
  name: str
  extents: dict[str, int]
  half: DType
  tensors: list[KTensor]
  kinds: dict[str, str]
  narrow: float = 0.0
  wished: str = ""
  grid: Axes = ()
  cluster: str | None = None
  loop: str | None = None
  ops: list[BlockOp] = field(default_factory=list)
  by: list[dict[str, frozenset[str]]] = field(default_factory=list)
  ranked: list[bool] = field(default_factory=list)
  sample: list[np.ndarray] = field(default_factory=list)
  saves: list[Save] = field(default_factory=list)

  def __post_init__(self):
    self.noise = np.random.default_rng(self.rng.getrandbits(32))

  @property
  def body(self):
    return LOOP if self.loop else POST

  def value(self, name, *args, phase=None, dtype=DType.F32, value=None, reduced=(), ranked=False):
    cuts = {a: c for x in args for a, c in self.by[x].items() if a not in reduced}
    phase = phase or self.ops[args[0]].phase
    op = BlockOp(name, args, tuple(sorted(cuts)), dtype, phase, Layout.ELEMENT, value=value, reduced=reduced)  # fmt: skip # noqa: E501
    self.ops.append(op)
    self.by.append(cuts)
    self.ranked.append(ranked or any(self.ranked[a] for a in args))
    with np.errstate(all="ignore"):
      self.sample.append(self._sampled(op))
    return len(self.ops) - 1

  def _sampled(self, op):
    x = [self.sample[a] for a in op.args]
    n = prod(self.extents[a] for a in op.reduced)
    match op.op:
      case "const":
        number = IRRATIONAL[op.value] if isinstance(op.value, str) else float(op.value or 0)
        return np.full(SAMPLE, number)
      case "extent":
        return np.full(SAMPLE, float(n))
      case "powr":
        return np.asarray(x[0] ** float(Fraction(op.value or 0)))
      case "rmax":
        return np.asarray(np.max([self.noise.permutation(x[0]) for _ in range(min(n, 9))], 0))
      case "sum" | "matmul":
        y = x[0] * self.noise.permutation(x[1]) if len(x) > 1 else x[0]
        spread = sqrt(n) * y.std() * self.noise.standard_normal(SAMPLE)
        return np.asarray(n * y.mean() + spread)
    return ELEMENTWISE[op.op].reals(*x) if op.op in ELEMENTWISE else x[0]

  def rms(self, x):
    return float(np.sqrt(np.square(self.sample[x]).mean()))

  def load(self, axes, phase=None, kind="normal", whole=()):
    """A load, cut by everything that cuts its axes (but ``whole``) at this phase.

    Of a new tensor, or of one that has these axes already.
    """
    rng, phase = self.rng, phase or self.body
    known = [t for t in self.tensors if set(t.axes) == set(axes)]
    known = [t for t in known if self.kinds.get(t.name) == kind]
    if known and rng.random() < 0.2:
      return self.read(rng.choice(known), phase, whole)
    order = rng.sample(axes, len(axes)) if rng.random() < 0.3 else axes
    narrow = len(axes) > 1 or rng.random() < 0.6
    role = "weight" if kind == "normal" and rng.random() < 0.4 else "input"
    dtype = self.half if narrow else DType.F32
    self.tensors.append(KTensor(f"i{len(self.kinds)}", dtype, tuple(order), role))
    self.kinds[self.tensors[-1].name] = kind
    return self.read(self.tensors[-1], phase, whole)

  def read(self, tensor, phase, whole=()):
    cut = set(tensor.axes) - set(whole)
    looped = self.loop if phase is LOOP and self.loop in cut else None
    ranked = self.cluster if self.cluster in cut else None
    if phase is POST and self.cluster == self.loop:
      ranked = None
    imap = tuple(a if a in cut else None for a in self.grid)
    levels = ((looped, "loop"), (ranked, "cluster"), *((a, "grid") for a in imap))
    self.by.append({a: frozenset(n for m, n in levels if m == a) for a in tensor.axes})
    self.ops.append(BlockOp("load", (), tensor.axes, tensor.dtype, phase, Layout.ELEMENT,
                            tensor.name, None, (), imap, ranked, looped))  # fmt: skip
    self.ranked.append(ranked is not None)
    self.sample.append(self.noise.standard_normal(SAMPLE))
    return len(self.ops) - 1

  # ---- elementwise

  def const(self, value, phase):
    return self.value("const", phase=phase, value=value)

  def tame(self, x, rms=LARGE):
    """``x``, or a part of it that is no larger than this."""
    if (size := self.rms(x)) <= rms:
      return x
    bits = min(max(1, round(log2(size / min(rms, 2.0)))), 60)
    return self.value("mul", x, self.const(Fraction(1, 1 << bits), self.ops[x].phase))

  def cast(self, x, dtype):
    if self.ops[x].dtype is dtype:
      return x
    return self.value("cast", self.tame(x) if dtype.is_half else x, dtype=dtype)

  def own_type(self):
    return self.half if self.rng.random() < self.narrow else DType.F32

  def positive(self, x):
    if self.sample[x].min() >= 0.05:
      return x
    x = self.tame(x, 4.0)
    if self.sample[x].min() < 0:
      x = self.unary(self.rng.choice(("square", "abs", "sigmoid")), x)
    c = self.rng.choice((Fraction(1, 4), Fraction(1), Fraction(3, 2)))
    return self.value("add", x, self.const(c, self.ops[x].phase))

  def unary(self, name, x):
    x = self.positive(x) if name in OF_POSITIVE else self.tame(x, ARGUMENT.get(name, LARGE))
    return self.value(name, x, dtype=self.own_type())

  def power(self, e, x):
    x = self.tame(x, 2.0)
    if e.denominator > 1 or e < 0:
      x = self.positive(x)
    return self.value("powr", x, dtype=self.own_type(), value=e)

  def binary(self, name, x, y):
    y = self.positive(y) if name == "div" else y
    return self.value(name, x, y, dtype=self.own_type())

  # ---- reductions

  def matmul(self, x, y, axis):
    x, y = (self.cast(self.tame(v), self.half) for v in (x, y))
    return self.value("matmul", *self.rng.sample((x, y), 2), reduced=(axis,))

  def reduce(self, name, x, axes):
    dtype = self.own_type() if name == "rmax" else DType.F32
    return self.value(name, self.tame(x), reduced=axes, dtype=dtype)

  def total(self, x, kind, *factor):
    """In all iterations and ranks: ``sum`` or ``max``; ``scaled`` sums are of one rank."""
    if self.ops[x].phase is LOOP:
      dtype = self.own_type() if kind == "max" else DType.F32
      loops = self.cluster is not None and self.cluster == self.loop
      x = self.value(f"acc_{kind}", x, *factor, phase=POST, ranked=loops, dtype=dtype)
    return x if kind == "scaled" else self.agree(x, kind)

  def agree(self, x, kind):
    """``x`` combined over the ranks, where they have different ones."""
    if not self.ranked[x] or any("cluster" in c for c in self.by[x].values()):
      return x
    x = self.value(f"red_{kind}", x, dtype=self.own_type() if kind == "max" else DType.F32)
    self.ranked[x] = False
    return x

  # ---- what fits together

  def meets(self, x, y):
    same = all(self.by[y].get(a, c) == c for a, c in self.by[x].items())
    return same and self.ops[x].phase is self.ops[y].phase

  def can_save(self, x):
    """Whether ``x`` is the same in all ranks, and no tile of it is missing."""
    fits = all(c == ({"grid"} if a in self.grid else set()) for a, c in self.by[x].items())
    return self.ops[x].phase is POST and fits and not self.ranked[x]

  def save(self, x):
    """Saves ``x``; where it does not vary over an axis of the grid, as a partial result."""
    rng = self.rng
    missing = [a for a in self.grid if a not in self.by[x]]
    omap = tuple(part_axis(a, self.name) if a in missing else a for a in self.grid)
    axes = list(dict.fromkeys((*self.by[x], *omap)))
    if rng.random() < 0.4:
      rng.shuffle(axes)
    dtype = self.half if rng.random() < 0.7 and not missing else DType.F32
    x = self.cast(x, dtype) if rng.random() < 0.9 else self.tame(x)
    role = "temp" if missing else "output"
    name = f"{role[0]}{sum(t.role == role for t in self.tensors)}"
    self.tensors.append(KTensor(name, dtype, tuple(axes), role))
    self.saves.append(Save(name, x, omap))
