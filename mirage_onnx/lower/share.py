"""How the warps of a block share out the sides of its values.

Objective: lane work, the registers that a lane computes summed over all values (and the
tensor-core steps of contractions), inside the loop as often as it runs; and what parts of a sum in
different warps cost, which meet through shared memory: a little behind the loop, much inside it.
All ways to write the number of warps as a product over sides are tried.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mirage_onnx.ir.block_ops import ACCUMULATORS, REDUCTIONS
from mirage_onnx.ir.ugraph import KTensor, Phase
from mirage_onnx.lower.assign import Assignment, partial_folds, vector_frames
from mirage_onnx.lower.forms import MMA, Form, Side, Warps

#: Lane operations that a meeting of warps costs, that one value through shared memory costs, and
#: that a load costs whose neighbours in memory are not in neighbouring lanes.
_MEET, _SHARED, _SCATTERED = 60, 400, 40
_MMA_STEP = 4


def splits(assignment: Assignment, forms: Mapping[int, Form], warps: int) -> list[Warps]:
  """All splits, best first; the first in canonical order of those that cost the same."""
  found = [Warps(digits, warps, assignment.even) for digits in _digits(_sides(assignment, forms), warps)]
  return sorted(found, key=lambda split: split_cost(assignment, forms, split))


def share_out(assignment: Assignment, forms: Mapping[int, Form], warps: int) -> tuple[int, Warps]:
  """The cost of the best split, and the split."""
  best = splits(assignment, forms, warps)[0]
  return split_cost(assignment, forms, best), best


#: A way to lay a kernel out: its cost, its frames, forms and split of the warps.
Way = tuple[int, Assignment, dict[int, Form], Warps]


def ways(assignment: Assignment, warps: int, tensors: Mapping[str, KTensor]) -> list[Way]:
  """The ways to lay a kernel out, best first."""
  if not assignment.products:
    return _vector_ways(assignment, warps, tensors)
  forms = assignment.forms()
  found = splits(assignment, forms, warps)
  return [(split_cost(assignment, forms, s), assignment, forms, s) for s in found]


def _vector_ways(assignment: Assignment, warps: int, tensors: Mapping[str, KTensor]) -> list[Way]:
  """Of a kernel without contractions: every frame with its best split."""
  kernel, pieces, needed = assignment.kernel, assignment.pieces, assignment.needed
  found: list[Way] = []
  for frame in vector_frames(kernel, pieces, needed):
    framed = replace(assignment, frames=(frame,))
    forms = {i: frame.of(assignment.own(i).values()) for i in assignment.values()}
    cost, split = share_out(framed, forms, warps)
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


def split_cost(assignment: Assignment, forms: Mapping[int, Form], split: Warps) -> int:
  """The objective."""
  kernel = assignment.kernel
  times = min(assignment.pieces.most_steps, 64)
  total = 0
  users: list[list[str]] = [[] for _ in kernel.ops]
  for i, op in enumerate(kernel.ops):
    for a in op.args:
      if i in assignment.needed:
        users[a].append(op.op)
  for i, form in forms.items():
    op = kernel.ops[i]
    often = times if op.phase is Phase.LOOP else 1
    work, meets = split.registers(form), False
    if i in assignment.products:
      p = assignment.products[i]
      depth = split.tiles((p.depth,), 8)
      work *= _MMA_STEP * depth if form.lanes == MMA else 1
      meets = split.count((p.depth,)) > 1
    elif op.op in REDUCTIONS:
      gone = {assignment.own(op.args[0])[a] for a in op.reduced}
      meets = any(set(s) & gone for s, count in split.digits if count > 1)
      own = assignment.own(op.args[0]).values()
      have = [forms[op.args[0]]] if op.args[0] in forms else assignment.frames
      work = min(split.registers(f.of(own)) for f in have)
    if meets:
      waits = users[i] and all(u in ACCUMULATORS for u in users[i])
      total += _MEET + (2 * split.registers(form) if waits else _MEET * often)
    total += often * work
  return total
