"""How the warps of a block share out the sides of its values.

Objective: lane work, the registers that a lane computes summed over all values (and the
tensor-core steps of contractions), inside the loop as often as it runs; and what parts of a sum in
different warps cost, which meet through shared memory: a little behind the loop, much inside it.
All ways to write the number of warps as a product over sides are tried.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_onnx.ir.block_ops import ACCUMULATORS, REDUCTIONS
from mirage_onnx.ir.ugraph import KTensor, Phase
from mirage_onnx.lower.assign import Assignment, partial_folds, vector_frames
from mirage_onnx.lower.forms import MMA, Form, Side, Warps
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
  for frame in vector_frames(kernel, pieces, needed):
    framed = replace(assignment, frames=(frame,))
    forms = {i: frame.of(assignment.own(i).values()) for i in assignment.values()}
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
class _Work:
  """What of a value's cost does not depend on the split.

  ``forms``: numbers of the forms of which the one with fewest registers counts; ``often``: how often it is
  computed; ``depth``: of a contraction, ``steps``: whether it is one of tensor cores. ``gone``: pieces that
  a reduction sums over; ``waits``: its parts in other warps meet behind the loop.
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
  distinct = list(known)

  def cost(split: Warps) -> int:
    registers = [split.registers(f) for f in distinct]
    total = 0
    for w in works:
      work = min(registers[n] for n in w.forms)
      if w.depth:
        work *= _MMA_STEP * split.tiles(w.depth, 8) if w.steps else 1
        meets = split.count(w.depth) > 1
      else:
        meets = any(not w.gone.isdisjoint(side) for side, count in split.digits if count > 1)
      if meets:
        total += _MEET + (2 * registers[w.own] if w.waits else _MEET * w.often)
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
