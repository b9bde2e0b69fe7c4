"""Iterations of a loop that change nothing, because a constant or a run says that nothing is seen in them.

A mask that no run can change (``KTensor.band``) hides all columns but a band of each row. A cache has room
for more than it holds: what is behind the end that a run says (``KTensor.limit``) is hidden by comparing its
place with that end. What is made of a hidden element is followed through the operations of the loop,
as the numbers between which it lies:

    mask = 0             ->  select(mask, 0, -65504) = -65504      ->  score + that <= HIDDEN
    largest of a tile    <=  HIDDEN, so the running maximum m stays, if it is at least ``floor``
    exp(hidden - m)      =   0, so every sum and product with it adds 0, and exp(m before - m) = 1

An iteration of which all elements are hidden then leaves every accumulator as it is, and need not be
done. The proof has one condition, which the kernel asks of its own values: each row's maximum, behind the
iterations in which something is seen, is at least ``floor``. Where one is not (a row that sees nothing is
the mean of everything with masks that add -65504), the block does all other iterations, too. Of a cache the
place before the end is seen by every row, so nobody asks where ``floor`` is below every number.

One thing is taken for granted of the numbers beside a constant mask: a score beside which -65504 or less is
added is finite, and not one of the four largest of f16 (from 65408 on). With one of those nothing would be
hidden. Behind the end of a cache memory may hold what is no number, of which nothing is taken for granted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isinf

import numpy as np

from mirage_onnx.ir.band import Band
from mirage_onnx.ir.block_ops import ACCUMULATORS, MAXIMA, Kind, kind_of
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor, Layout, Phase, UGraph
from mirage_onnx.lower.dataflow import behind_casts
from mirage_onnx.lower.sizes import is_runtime

#: Adding this or less hides a score, which is then at most ``HIDDEN``.
HIDES, HIDDEN = -65504.0, -128.0
#: exp of this or less is 0 beside 1, in whatever it is computed.
_NOTHING = -100.0
#: No number that is seen is as low.
_LEAST = -3e38
#: The comparisons of a place with an end, and how far behind the end the first place is that is not seen.
MORE = {"less": 0, "less_equal": 1}


@dataclass(frozen=True, slots=True)
class Unseen:
  """``band``: where something is seen; each row of the values ``running`` must be at least ``floor``."""

  band: Band
  running: tuple[int, ...]
  floor: float

  def ends(self, first: int, rows: int, columns: int) -> tuple[int, int]:
    """The columns from and before which rows ``first`` and on see something, at least one of them."""
    least, most = self.band.least, self.band.most
    begin = 0 if least is None else min(max(first + least, 0), columns - 1)
    end = columns if most is None else min(max(first + rows + most, 1), columns)
    return begin, max(begin + 1, end)

  def share(self, rows: int, columns: int, tile: int, step: int) -> float:
    """The part of the iterations that blocks of so many rows do, of steps of so many columns."""
    blocks = range(0, rows, tile)
    found = 0
    for first in blocks:
      begin, end = self.ends(first, min(tile, rows - first), columns)
      found += ceil(end / step) - begin // step
    return found / (len(blocks) * ceil(columns / step))


@dataclass(frozen=True, slots=True)
class _Value:
  """What a hidden element is: from ``least`` to ``most``, and less the running maximum ``below``.

  ``running``: it is that maximum itself, of the iteration or before it, which are the same.
  """

  least: float = -inf
  most: float = inf
  below: int | None = None
  running: int | None = None

  @property
  def plain(self) -> bool:
    return self.below is None and self.running is None

  @property
  def is_zero(self) -> bool:
    return self.plain and self.least == self.most == 0.0


_ANY, _TRUTH, _ZERO, _ONE = _Value(), _Value(0.0, 1.0), _Value(0.0, 0.0), _Value(1.0, 1.0)
_Args = Sequence[_Value]


def unseen(kernel: Kernel, tensors: Mapping[str, KTensor]) -> Unseen | None:
  """What a constant of the kernel says of iterations that change nothing; None if they all may."""
  if kernel.loop is None:
    return None
  for index, load in enumerate(kernel.ops):
    band = tensors[load.tensor].band if load.op == "load" else None
    if band is None or not load.fmap == band.columns == kernel.loop or band.rows not in kernel.grid:
      continue
    mask = _Value(0.0 if load.dtype is DType.BOOL else -inf, float(band.outside))
    if floors := _Hidden(kernel, {index: mask}).floors_of_no_change():
      return Unseen(band, tuple(sorted(floors)), max(floors.values()))
  return None


def computed_masks(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int]
) -> dict[int, Band]:
  """Loads of constants of which a band says everything: an element follows from its place."""
  found = {}
  for index, op in enumerate(kernel.ops):
    t = tensors[op.tensor] if op.op == "load" else None
    if t is None or t.band is None or not t.band.sharp or t.windows or t.limit:
      continue
    if not any(is_runtime(extents, a) for a in (t.band.rows, t.band.columns)):
      found[index] = t.band
  return found


def early_end(graph: UGraph, kernel: Kernel) -> str | None:
  """The tensor with a limit that says where the kernel's loop may end; None where it has to go on."""
  loaded = [graph.tensor(o.tensor) for o in kernel.loads]
  limited = [t for t in loaded if t.limit and t.limit[0] == kernel.loop]
  if len({t.limit for t in limited}) != 1 or not any(op.op in ACCUMULATORS for op in kernel.ops):
    return None
  (_, end, more) = limited[0].limit or ("", "", 0)
  if len({c[0] for k in graph.kernels for op in k.ops if (c := compared(k, op))[1:] == (end,)}) != 1:
    return None
  by_end = {index for index, op in enumerate(kernel.ops) if compared(kernel, op)[1:] == (end,)}
  behind = {index: _ZERO for index in by_end if MORE[kernel.ops[index].op] == more}
  loads = ((i, op, graph.tensor(op.tensor)) for i, op in enumerate(kernel.ops) if op.op == "load")
  behind |= {i: _ZERO for i, op, t in loads if t.limit == limited[0].limit and zeros_behind(op, t)}
  floors = _Hidden(kernel, behind, numbers=False).floors_of_no_change()
  return limited[0].name if floors is not None and max(floors.values(), default=-inf) < _LEAST else None


def zeros_behind(load: BlockOp, tensor: KTensor) -> bool:
  """Whether a load of a tensor with a limit is a copy to shared memory, which has zeros behind the end."""
  plain = tensor.dtype.is_half and load.layout is Layout.SHARED
  return plain and tensor.limit is not None and tensor.axes[-1] != tensor.limit[0]


def compared(kernel: Kernel, op: BlockOp) -> tuple[str, ...]:
  """The tensors of which a comparison with an end compares elements, behind casts; () for others."""
  names = []
  for i in op.args if op.op in MORE else ():
    source = kernel.ops[behind_casts(kernel.ops, i)]
    names.append(source.tensor if source.op == "load" else "")
  return tuple(names)


class _Hidden:
  """The values of a kernel where ``hidden`` says what some are; ``numbers``: all that is loaded is finite."""

  def __init__(self, kernel: Kernel, hidden: Mapping[int, _Value], numbers: bool = True) -> None:
    self.kernel, self.hidden, self.numbers = kernel, hidden, numbers
    self.floors: dict[int, float] = {}

  def floors_of_no_change(self) -> Mapping[int, float] | None:
    """How high each maximum has to be that nothing changes; None if something may whatever they are."""
    found: list[_Value] = []
    for index, op in enumerate(self.kernel.ops):
      value = self.hidden.get(index) or self._value(index, op, [found[a] for a in op.args])
      if value is None:
        return None
      found.append(value)
    if any(self.kernel.ops[s.arg].phase is Phase.LOOP for s in self.kernel.saves):
      return None
    return self.floors

  def _value(self, index: int, op: BlockOp, args: _Args) -> _Value | None:
    """What an operation makes; None where something that lives through the loop may change."""
    match kind_of(op.op):
      case None:
        if op.op == "exp":
          return self._exponential(args[0])
        made = _FUNCTIONS[op.op](args) if op.op in _FUNCTIONS else _ANY
        return made if self.numbers or not made.least == -inf < made.most else _ANY
      case Kind.LOAD:
        return _TRUTH if op.dtype is DType.BOOL else _ANY
      case Kind.CONSTANT:
        return _constant(op)
      case Kind.POINTWISE:
        return args[0] if op.op == "cast" else _ANY
      case Kind.CONTRACTION:
        return _ZERO if (any if self.numbers else all)(a.is_zero for a in args) else _ANY
      case Kind.REDUCTION:
        return args[0] if args[0].plain and (op.op in MAXIMA or args[0].is_zero) else _ANY
      case Kind.ACCUMULATOR | Kind.RESCALED:
        if op.op in MAXIMA:  # as a running maximum of the same, of which its row is asked
          kept = any(self.kernel.ops[i].args == op.args for i in self.floors)
          kept |= not self.numbers and args[0].plain and args[0].most < _LEAST
        else:
          kept = args[0].is_zero and all(f == _ONE for f in args[1:])
        return _ANY if kept else None
      case Kind.RUNNING:
        if op.op not in MAXIMA or not args[0].plain or args[0].most > HIDDEN:
          return None
        self.floors[index] = _floor(args[0].most)
        return _Value(0.0, 0.0, running=index)
      case Kind.PREVIOUS:
        return args[0]
      case Kind.CLUSTER:
        return _ANY

  def _exponential(self, x: _Value) -> _Value:
    """Of what is less than a maximum it is nothing if that is high enough."""
    if x.below is None:
      return _ONE if x.is_zero else _ZERO if x.plain and x.most <= HIDES else _ANY
    if x.most > HIDDEN:
      return _ANY
    self.floors[x.below] = max(self.floors[x.below], _floor(x.most))
    return _ZERO


def _floor(most: float) -> float:
  """The least maximum, in f32, beside which an exponential of ``most`` is nothing: above it in any case."""
  lowest = np.float32(max(most, -float(np.finfo(np.float32).max)))
  return float(max(np.float32(most - _NOTHING), np.nextafter(lowest, np.float32(inf))))


def _constant(op: BlockOp) -> _Value:
  if op.op != "const" or op.value is None:
    return _ANY
  try:
    number = float(op.value)
  except (ValueError, OverflowError):
    return _ANY
  return _Value(number, number)


def _sum(args: _Args) -> _Value:
  x, y = sorted(args, key=lambda a: a.plain)
  if not y.plain or x.running is not None:
    return _ANY
  if x.plain and min(x.most, y.most) <= HIDES and max(x.most, y.most) == inf:
    return _Value(-inf, HIDDEN)
  if max(x.most, y.most) == inf:
    return _ANY
  return _Value(x.least + y.least, x.most + y.most, x.below)


def _difference(args: _Args) -> _Value:
  x, y = args
  if y.running is None:
    return _ANY
  if x.running == y.running:
    return _ZERO
  return _Value(x.least, x.most, y.running) if x.plain else _ANY


def _product(args: _Args) -> _Value:
  x, y = sorted(args, key=lambda a: a.plain)
  if x.running is not None and y == _Value(-1.0, -1.0):
    return _Value(0.0, 0.0, x.running)
  if not x.plain or any(isinf(end) for end in (x.least, x.most, y.least, y.most)):
    return _ANY
  ends = sorted(a * b for a in (x.least, x.most) for b in (y.least, y.most))
  return _Value(ends[0], ends[-1])


def _choice(args: _Args) -> _Value:
  c, x, y = args
  if c.is_zero:
    return y
  if c == _ONE:
    return x
  return _Value(min(x.least, y.least), max(x.most, y.most)) if x.plain and y.plain else _ANY


def _largest(args: _Args) -> _Value:
  x, y = args
  return _Value(max(x.least, y.least), max(x.most, y.most)) if x.plain and y.plain else _ANY


#: What elementwise functions make; others may make anything.
_FUNCTIONS: Mapping[str, Callable[[_Args], _Value]] = {
  "add": _sum,
  "sub": _difference,
  "mul": _product,
  "select": _choice,
  "max": _largest,
}
