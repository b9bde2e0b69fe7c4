"""The moves by which a random program grows from one activation.

Every move reads a value that is there (mostly the newest), so programs are connected. Where a
function has a domain, a move first makes an argument inside it.
"""

from dataclasses import dataclass, field
from random import Random

from program_net import ProgramNet

MOST_INPUTS = 4

Shape = tuple[int, ...]
MATRICES = ((1, 4, 8, 16, 64, 256, 1024, 4096), (64, 128, 256, 512, 1024, 2048, 4096))
BATCHES = ((2, 8, 16, 32), (1, 5, 16, 64, 1024), (32, 64, 128))
COLUMNS = (16, 64, 128, 256, 1024, 4096)
NUMBERS = (0.5, 2.0, -1.5, 3.0, 0.1)


@dataclass(eq=False)
class Value:
  """A tensor of the program. ``positive``: everywhere; ``tame``: of magnitude 1, without exp."""

  name: str
  shape: Shape
  positive: bool = False
  tame: bool = True
  uses: int = 0


@dataclass(eq=False)
class Growing:
  """A program under construction. ``operations`` leaves casts and layout out."""

  pick: Random
  net: ProgramNet = field(default_factory=ProgramNet)
  values: list[Value] = field(default_factory=list)
  operations: int = 0

  def start(self):
    sizes = self.pick.choice((MATRICES, MATRICES, BATCHES))
    shape = tuple(self.pick.choice(s) for s in sizes)
    self.values.append(Value(self.net.input(*shape), shape))

  def operand(self):
    """Mostly the newest value, else preferably one that nobody has read."""
    if self.pick.random() < 0.6:
      return self.values[-1]
    unread = [v for v in self.values if not v.uses]
    return self.pick.choice(unread if unread and self.pick.random() < 0.5 else self.values)

  def can_read(self):
    return len(self.net.inputs) < MOST_INPUTS

  def new(self, *shape):
    """An activation, or a weight, which more programs read."""
    make = self.pick.choice((self.net.input, self.net.weight, self.net.weight))
    return Value(make(*shape), shape)

  def apply(self, op, shape, *args, **facts):
    for a in args:
      if isinstance(a, Value):
        a.uses += 1
    names = [a.name if isinstance(a, Value) else a for a in args]
    made = Value(getattr(self.net, op)(*names), shape, **facts)
    self.operations += 1
    self.values.append(made)
    return made


# -- moves: they return False where they do not apply


def contract(g):
  """x W; a weight of its own for every batch, or one for all."""
  x = g.operand()
  if not g.can_read() or x.shape[-1] == 1:
    return False
  columns = g.pick.choice(COLUMNS if len(x.shape) == 2 else COLUMNS[:4])
  batch = x.shape[:-2] if g.pick.random() < 0.5 else ()
  w = g.new(*batch, x.shape[-1], columns)
  g.apply("MatMul", (*x.shape[:-1], columns), x, w, tame=x.tame)
  return True


def compare(g):
  """x y^T with other rows, as queries and keys."""
  x = g.operand()
  if not g.can_read() or x.shape[-1] == 1:
    return False
  rows = g.pick.choice(COLUMNS)
  y = g.new(*x.shape[:-2], rows, x.shape[-1])
  turned = Value(g.net.transposed(y.name, len(x.shape)), (*x.shape[:-2], x.shape[-1], rows))
  s = g.apply("MatMul", (*x.shape[:-1], rows), x, turned, tame=x.tame)
  g.apply("Mul", s.shape, s, 0.125, tame=x.tame)
  return True


def reduce(g):
  """The sum, mean or maximum over one or two dimensions, with 16 or 32 bits."""
  x = g.operand()
  long = [i for i, n in enumerate(x.shape) if n > 1]
  if not long:
    return False
  axes = sorted(g.pick.sample(long, min(len(long), g.pick.choice((1, 1, 1, 2)))))
  shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
  if max(shape) == 1:
    return False
  op = g.pick.choice(("ReduceMean", "ReduceMean", "ReduceSum", "ReduceMax"))
  x.uses += 1
  wide = Value(g.net.wide(x.name), x.shape) if g.pick.random() < 0.5 else x
  y = g.apply(op, shape, wide, axes, positive=x.positive, tame=x.tame and op != "ReduceSum")
  if wide is not x:
    y.name = g.net.half(y.name)
  return True


def bounded(g):
  x = g.operand()
  op = g.pick.choice(("Tanh", "Sigmoid", "Erf"))
  g.apply(op, x.shape, x, positive=op == "Sigmoid", tame=True)
  return True


def piecewise(g):
  x, op = g.operand(), g.pick.choice(("Relu", "Abs", "Neg"))
  g.apply(op, x.shape, x, tame=x.tame)
  return True


def exponential(g):
  """exp of a value of magnitude 1, or of any value less its maximum."""
  x = g.operand()
  if x.shape[-1] > 1 and g.pick.random() < 0.5:
    largest = g.apply("ReduceMax", (*x.shape[:-1], 1), x, [-1], tame=x.tame)
    x = g.apply("Sub", x.shape, x, largest, tame=x.tame)
  elif not x.tame:
    return False
  g.apply("Exp", x.shape, x, positive=True, tame=False)
  return True


def root(g):
  x = g.operand()
  if not x.tame:
    return False
  square = g.apply("Mul", x.shape, x, x, tame=True)
  if x.shape[-1] > 1 and g.pick.random() < 0.5:
    square = g.apply("ReduceMean", (*x.shape[:-1], 1), square, [-1], tame=True)
  y = g.apply("Add", square.shape, square, 0.25, positive=True, tame=True)
  g.apply("Sqrt", y.shape, y, positive=True, tame=True)
  return True


def logarithm(g):
  found = [v for v in g.values if v.positive]
  if not found:
    return False
  x = g.pick.choice(found)
  g.apply("Log", x.shape, g.apply("Add", x.shape, x, 1.0, positive=True), tame=True)
  return True


def divide(g):
  """By a positive value that is there, or by |y| + 1/2."""
  x = g.operand()
  found = [v for v in g.values if v.positive and v is not x and _fits(v, x)]
  if found:
    y = g.pick.choice(found)
  elif g.pick.random() < 0.5:
    return False
  else:
    y = g.pick.choice([v for v in g.values if _fits(v, x)])
    y = g.apply("Add", y.shape, g.apply("Abs", y.shape, y), 0.5, positive=True)
  g.apply("Div", _broadcast(x, y), x, y, tame=False)
  return True


def combine(g):
  """With another value, and preferably with one that nobody has read."""
  x = g.operand()
  found = [v for v in g.values if v is not x and _fits(v, x)]
  found = [v for v in found if not v.uses] or found
  if not found:
    return False
  y, op = g.pick.choice(found), g.pick.choice(("Add", "Add", "Mul", "Sub", "Max"))
  x, y = (x, y) if g.pick.random() < 0.5 else (y, x)
  g.apply(op, _broadcast(x, y), x, y, tame=x.tame and y.tame)
  return True


def scale(g):
  """With a vector along a dimension, another tensor, or a number."""
  x, op = g.operand(), g.pick.choice(("Add", "Mul", "Sub"))
  if g.can_read() and g.pick.random() < 0.7:
    kept = g.pick.choice([i for i in range(len(x.shape)) if x.shape[i] > 1] or [0])
    vector = tuple(n if i == kept else 1 for i, n in enumerate(x.shape))
    g.apply(op, x.shape, x, g.new(*g.pick.choice((vector, vector, x.shape))), tame=x.tame)
  else:
    g.apply(op, x.shape, x, g.pick.choice(NUMBERS), tame=x.tame)
  return True


def _fits(v, x):
  return all(m == n or 1 in (m, n) for m, n in zip(v.shape, x.shape, strict=True))


def _broadcast(x, y):
  return tuple(map(max, x.shape, y.shape))


MOVES = (
  contract, contract, contract, compare, reduce, reduce, reduce, bounded, piecewise, exponential,
  root, logarithm, divide, divide, combine, combine, combine, scale, scale,
)  # fmt: skip
