"""How the warps of a block share out the sides of its values.

Objective: lane work, the registers that a lane computes summed over all values (and the
tensor-core steps of contractions), inside the loop as often as it runs; and what parts of a sum in
different warps cost, which meet through shared memory: a little behind the loop, much inside it.
All ways to write the number of warps as a product over sides are tried.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage_onnx.ir.block_ops import ACCUMULATORS, REDUCTIONS
from mirage_onnx.ir.ugraph import KTensor, Phase
from mirage_onnx.lower.assign import Assignment, partial_folds, row_frame, vector_frames
from mirage_onnx.lower.forms import MMA, Form, Side, Warps, length
from mirage_onnx.lower.grid import whole_in
from mirage_onnx.lower.in_place import update_in
from mirage_onnx.lower.pieces import Piece

#: Lane operations that a meeting of warps costs, that one value through shared memory costs, and
#: that a load costs whose neighbours in memory are not in neighbouring lanes.
_MEET, _SHARED, _SCATTERED = 60, 400, 40
_MMA_STEP = 4


def splits(assignment: Assignment, forms: Mapping[int, Form], warps: int) -> list[tuple[int, Warps]]:
  """All splits and what they cost, best first; the first in canonical order of those that cost the same."""
  cost = split_costs(assignment, forms)
  found = [Warps(digits, warps, assignment.even) for digits in _digits(_sides(assignment, forms), warps)]
  return sorted(((cost(split), split) for split in found), key=lambda each: each[0])


#: A way to lay a kernel out: its cost, its frames, forms and split of the warps.
Way = tuple[int, Assignment, dict[int, Form], Warps]


def ways(assignment: Assignment, warps: int, tensors: Mapping[str, KTensor]) -> list[Way]:
  """The ways to lay a kernel out, best first."""
  if not assignment.products:
    return _vector_ways(assignment, warps, tensors)
  forms = assignment.forms()
  return [(cost, assignment, forms, split) for cost, split in splits(assignment, forms, warps)]


def _vector_ways(assignment: Assignment, warps: int, tensors: Mapping[str, KTensor]) -> list[Way]:
  """Of a kernel without contractions: every frame with its best split."""
  kernel, pieces, needed = assignment.kernel, assignment.pieces, assignment.needed
  found: list[Way] = []
  row = None if whole_in(tensors, kernel) else row_frame(kernel, pieces, needed, warps)
  if row:
    framed = replace(assignment, frames=(row,), update=update_in(tensors, kernel))
    forms = {i: row.of(assignment.own(i).values()) for i in assignment.values()}
    return [(0, framed, forms, Warps(((row.g or row.t, warps),) if warps > 1 else (), warps, in_rows=True))]
  number: dict[tuple[Piece, ...], int] = {}  # values over the same pieces lie alike
  over = {i: number.setdefault(tuple(assignment.own(i).values()), len(number)) for i in assignment.values()}
  for frame in vector_frames(kernel, pieces, needed):
    framed = replace(assignment, frames=(frame,))
    lie = [frame.of(own) for own in number]
    forms = {i: lie[n] for i, n in over.items()}
    cost, split = splits(framed, forms, warps)[0]
    cost += _SHARED * partial_folds(kernel, pieces, forms, frame, needed)
    cost += _SCATTERED * _scattered(assignment, frame, tensors)
    found.append((cost, framed, forms, split))
  return sorted(found, key=lambda way: way[0])


def _scattered(assignment: Assignment, frame: Form, tensors: Mapping[str, KTensor]) -> int:
  """Loads and saves whose last axis is not along the lanes."""
  along = {p.axis for p in frame.t}
  names = [o.tensor for o in assignment.kernel.loads]
  names += [s.tensor for s in assignment.kernel.saves]
  return sum(bool(tensors[n].axes) and tensors[n].axes[-1] not in along for n in names)


def _sides(assignment: Assignment, forms: Mapping[int, Form]) -> list[Side]:
  found: dict[Side, None] = {}
  for i in sorted(assignment.products):
    p = assignment.products[i]
    found.update(dict.fromkeys((p.c.g, p.c.t, (p.depth,))))
  for form in forms.values():
    found.update(dict.fromkeys((form.g, form.t)))
  wide = [s for s in found if s and Warps((), 1, assignment.even).tiles(s, 8) > 1]
  return wide[:6]


def _digits(sides: Sequence[Side], warps: int) -> Iterator[tuple[tuple[Side, int], ...]]:
  """Every way to give sides a number of parts whose product divides the warps."""
  if not sides:
    yield ()
    return
  for count in (n for n in range(1, warps + 1) if warps % n == 0):
    for rest in _digits(sides[1:], warps // count):
      yield (*(((sides[0], count),) if count > 1 else ()), *rest)


@dataclass(frozen=True, slots=True)
class _Tiling:
  """A side by its number: elements, those of a tile, and whether warps have an even number of tiles of it."""

  side: int
  length: int
  tile: int
  even: bool

  def tiles(self, counts: Sequence[int]) -> int:
    """As ``Warps.tiles``, where warps cut the sides into so many parts."""
    each = -(-self.length // (self.tile * counts[self.side]))
    return each + each % 2 if self.even else each


class _Sides:
  """The sides of a kernel's forms, numbered: a split is looked at thousands of times."""

  def __init__(self, even: frozenset[Side]) -> None:
    self._even = even
    self._numbers: dict[Side, int] = {}

  def tiling(self, side: Side, tile: int) -> _Tiling:
    number = self._numbers.setdefault(side, len(self._numbers))
    elements = length(side)
    return _Tiling(number, elements, tile, side in self._even and tile == 8 and elements > 8)

  def registers(self, form: Form) -> tuple[int, tuple[_Tiling, ...]]:
    """What a lane holds of a form, without the sides' tiles, and these."""
    lanes, sides = form.lanes, list[_Tiling]()
    if form.g:
      sides.append(self.tiling(form.g, lanes.groups))
    if form.t:
      sides.append(self.tiling(form.t, lanes.inner))
    return length(form.rest) * (lanes.pack if form.t else 1), tuple(sides)

  def with_any(self, pieces: frozenset[Piece]) -> tuple[int, ...]:
    """The sides that have one of ``pieces``."""
    return tuple(n for side, n in self._numbers.items() if not pieces.isdisjoint(side))

  def counts(self, split: Warps) -> list[int]:
    """Into how many parts the warps cut each."""
    counts = [1] * len(self._numbers)
    for side, count in split.digits:
      counts[self._numbers[side]] = count
    return counts


@dataclass(frozen=True, slots=True)
class _Work:
  """What of a value's cost does not depend on the split.

  ``own``, ``forms``: numbers of its form, and of those of which the one with fewest registers counts;
  ``often``: how often it is computed; ``depth``: of a contraction, ``steps``: whether it is one of tensor
  cores. ``gone``: pieces that a reduction sums over; ``waits``: its parts in warps meet behind the loop.
  """

  own: int
  forms: tuple[int, ...]
  often: int
  depth: Side
  steps: bool
  gone: frozenset[Piece]
  waits: bool


def split_costs(assignment: Assignment, forms: Mapping[int, Form]) -> Callable[[Warps], int]:
  """The objective, of any split."""
  known: dict[Form, int] = {}
  readers: dict[int, list[str]] = {i: [] for i in forms}
  for i, op in enumerate(assignment.kernel.ops):
    for a in op.args if i in assignment.needed else ():
      readers.setdefault(a, []).append(op.op)
  works = [_work(assignment, forms, i, readers[i], known) for i in forms]
  sides = _Sides(assignment.even)
  held = [sides.registers(form) for form in known]
  deep = [sides.tiling(w.depth, 8) if w.depth else None for w in works]
  meeting = [(d.side,) if d else sides.with_any(w.gone) for w, d in zip(works, deep, strict=True)]

  def cost(split: Warps) -> int:
    counts = sides.counts(split)
    registers = [prod([t.tiles(counts) for t in tilings], start=rest) for rest, tilings in held]
    total = 0
    for w, depth, meets in zip(works, deep, meeting, strict=True):
      work = registers[w.forms[0]] if len(w.forms) == 1 else min([registers[n] for n in w.forms])
      if depth and w.steps:
        work *= _MMA_STEP * depth.tiles(counts)
      for side in meets:
        if counts[side] > 1:
          total += _MEET + (2 * registers[w.own] if w.waits else _MEET * w.often)
          break
      total += w.often * work
    return total

  return cost


def _work(
  assignment: Assignment, forms: Mapping[int, Form], i: int, readers: Sequence[str], known: dict[Form, int]
) -> _Work:
  """Of value ``i``, whose ``readers`` are these operations; ``known`` numbers forms."""
  op, form = assignment.kernel.ops[i], forms[i]
  depth: Side = ()
  gone, counted = frozenset[Piece](), [form]
  if i in assignment.products:
    depth = (assignment.products[i].depth,)
  elif op.op in REDUCTIONS:
    reads = assignment.own(op.args[0])
    gone = frozenset(reads[a] for a in op.reduced)
    have = [forms[op.args[0]]] if op.args[0] in forms else assignment.frames
    counted = [f.of(reads.values()) for f in have]
  own, *numbers = (known.setdefault(f, len(known)) for f in (form, *counted))
  often = min(assignment.pieces.most_steps, 64) if op.phase is Phase.LOOP else 1
  waits = bool(readers) and all(r in ACCUMULATORS for r in readers)
  return _Work(own, tuple(numbers), often, depth, form.lanes == MMA, gone, waits)
