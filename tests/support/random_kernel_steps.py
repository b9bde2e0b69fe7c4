"""Random steps on a block graph: elementwise chains, axes and extents, partners of a value."""

from fractions import Fraction
from math import prod
from typing import TypeVar

from random_kernel_block import BINARY, COMPARISONS, LEAVES, UNARY

from mirage_onnx.ir.dtype import DType

SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15)
MEDIUM = (16, 17, 19, 23, 24, 29, 31, 32, 33, 37, 40, 43, 47, 48, 53, 59, 61, 63, 64)
BIG = (65, 67, 79, 80, 96, 97, 100, 113, 127, 128, 129, 131, 160, 191, 192, 200, 251, 255, 256, 257)
#: Role of an axis -> how often it is small, medium, large.
ROLES = {
  "batch": (1.0, 0.0, 0.0), "row": (0.50, 0.38, 0.12), "column": (0.30, 0.48, 0.22),
  "depth": (0.20, 0.45, 0.35), "loop": (0.10, 0.45, 0.45),
}  # fmt: skip
#: Elementwise step -> how often.
STEPS = {"unary": 29, "power": 5, "const": 9, "extent": 6, "load": 22, "other": 18, "choice": 12}
EXPONENTS = [
  Fraction(n, d)
  for n, d in ((3, 1), (5, 1), (-2, 1), (1, 3), (-3, 2), (5, 2), (1, 2), (4, 1), (-1, 2), (-1, 1))
]
CONSTANTS = [Fraction(1, 3), Fraction(-2), Fraction(1, 100000), "pi"]
#: What coarse inputs are compared with.
COARSE = (Fraction(0), Fraction(1, 2), Fraction(-1), Fraction(1))
#: Bound on the product of the extents of a kernel's axes, and on how many are large.
MOST_ELEMENTS, MOST_BIG = 1 << 19, 2

T = TypeVar("T")


def pick(rng, weights):
  return rng.choices(list(weights), list(weights.values()))[0]


def often(rng, *shares):
  """0, 1, 2 ... with these shares."""
  return pick(rng, dict(enumerate(shares)))


def some(rng, axes, chance):
  return tuple(a for a in axes if rng.random() < chance)


def axis(b, role):
  room = MOST_ELEMENTS // prod(b.extents.values())
  large = sum(n > MEDIUM[-1] for n in b.extents.values())
  sizes = (SMALL, MEDIUM, BIG)[often(b.rng, *ROLES[role])]
  if sizes is BIG and large >= MOST_BIG:
    sizes = MEDIUM
  if role == "batch":
    sizes = SMALL[:7]
  fitting = [n for n in sizes if n <= room] or [n for n in SMALL if n <= room] or [1]
  b.extents[name := f"a{len(b.extents)}"] = b.rng.choice(fitting)
  return name


def grid(b, mostly, maybe=()):
  """Splits some of these axes, at most three, in any order; long ones rather than short ones."""
  chosen = [*some(b.rng, mostly, 0.85), *some(b.rng, maybe, 0.45)]
  b.rng.shuffle(chosen)
  chosen = sorted(chosen, key=lambda a: b.extents[a] <= MEDIUM[-1])[:3]
  b.grid = tuple(b.rng.sample(chosen, len(chosen)))


def chain(b, x, *shares, steps=0):
  """``steps`` elementwise operations of ``x``, and 0, 1, 2 ... more with these shares."""
  for _ in range(steps + (often(b.rng, *shares) if shares else 0)):
    x = step(b, x)
  return x


def step(b, x):
  kind, phase, choose = pick(b.rng, STEPS), b.ops[x].phase, b.rng.choice
  if b.wished and b.rng.random() < 0.7:
    return _wished(b, b.wished, x)
  if kind == "unary":
    return b.unary(choose(UNARY), x)
  if kind == "power":
    return b.power(choose(EXPONENTS), x)
  if kind == "extent":
    reduced = (choose([a for a in b.extents if "/" not in a]),)
    n = b.value("extent", phase=phase, reduced=reduced)
    return b.value(choose(("div", "mul")), x if b.rms(x) > 16 else b.tame(x, 2.0), n)
  if kind == "choice":
    return choice(b, x)
  if kind == "const":
    return both(b, x, b.const(choose(CONSTANTS), phase))
  return both(b, x, beside(b, x) if kind == "load" else partner(b, x))


def _wished(b, name, x):
  if name in UNARY:
    return b.unary(name, x)
  if name == "powr":
    return b.power(b.rng.choice(EXPONENTS), x)
  if name == "cast":
    return b.cast(b.cast(x, b.half), DType.F32)
  if name == "load":
    return both(b, x, beside(b, x))
  if name in BINARY:
    return both(b, x, beside(b, x) if b.rng.random() < 0.6 else partner(b, x), name)
  return choice(b, x, name)


def both(b, x, y, name=""):
  name = name or b.rng.choice(BINARY if x != y else ("add", "mul"))
  x, y = b.tame(x), b.tame(y)
  if name in ("max", "min"):  # of a much larger one, it is always the same one
    x, y = b.tame(x, 2 * b.rms(y) + 0.2), b.tame(y, 2 * b.rms(x) + 0.2)
  return b.binary(name, x, y) if name == "div" or b.rng.random() < 0.7 else b.binary(name, y, x)


def choice(b, x, name=""):
  """``x`` or another value, or only where a condition on inputs (``name``, if given) holds."""
  rng, phase = b.rng, b.ops[x].phase
  condition = beside(b, x, "coarse")
  if name in COMPARISONS or rng.random() < 0.8:
    other = beside(b, x, "coarse") if rng.random() < 0.5 else b.const(rng.choice(COARSE), phase)
    compare = name if name in COMPARISONS else rng.choice(COMPARISONS)
    condition = b.value(compare, condition, other, dtype=b.own_type())
  if name != "select" and rng.random() < 0.3:
    return b.binary(rng.choice(("mul", "add", "max")), x, condition)
  y = partner(b, x) if rng.random() < 0.5 else b.const(rng.choice(CONSTANTS), phase)
  return b.value("select", condition, *rng.sample((x, y), 2), dtype=b.own_type())


def beside(b, x, kind="normal", axes=None):
  """A load over some of the axes of ``x``, cut as ``x`` is."""
  own = b.ops[x].axes
  if axes is None:
    axes = some(b.rng, own, b.rng.choice((0.3, 0.6, 1.0))) or own
  whole = tuple(a for a in axes if not b.by[x][a])
  y = b.load(tuple(b.rng.sample(axes, len(axes))), b.ops[x].phase, kind, whole)
  return y if b.meets(x, y) else b.const(Fraction(3, 4), b.ops[x].phase)


def partner(b, x):
  """An earlier value that ``x`` can be combined with, or ``x``; seldom over more axes."""
  own = set(b.ops[x].axes)
  found = []
  for y, op in enumerate(b.ops):
    size = prod(b.extents[a] for a in own | set(op.axes))
    special = op.op in ("const", "extent") or b.kinds.get(op.tensor, "").startswith("mask")
    if b.meets(x, y) and not special and (size <= 1 << 14 or set(op.axes) <= own):
      found.append(y)
  inner = [y for y in found if set(b.ops[y].axes) <= own]
  return b.rng.choice(inner if inner and b.rng.random() < 0.8 else found or [x])


def whole_axes(b, x):
  """The axes that a block has all of, for this value."""
  return tuple(a for a, c in b.by[x].items() if not c)


def computed(b, phase):
  """What is no load; where there is nothing else, the loads."""
  found = [i for i, op in enumerate(b.ops) if op.phase is phase]
  return [i for i in found if b.ops[i].op not in LEAVES] or found
