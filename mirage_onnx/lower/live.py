"""How many elements of values a lane holds at once: an estimate of what ptxas will find.

A value is held from the op that makes it to the last that uses it, or in whose place it is made;
what lives through the loop, or is made before it and used by what is made anew each time, through
all of the loop. The elements of an elementwise operation take the places of those that it uses for
the last time, and what only a reduction uses is added up as it is made.
"""

from mirage_onnx.ir.block_ops import ACCUMULATORS, REDUCTIONS
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.lower.lowered import Lowered


def most_live(lowering: Lowered) -> int:
  """Registers of a lane at the worst place of a kernel that has been lowered."""
  kernel, needed = lowering.kernel, lowering.assignment.needed
  ops, end = kernel.ops, len(kernel.ops)
  last, users = [-1] * end, [set[str]() for _ in ops]
  for save in kernel.saves:
    last[save.arg] = end
    users[save.arg].add("save")
  passing, turning = set[int](), set[int]()
  for i in sorted(needed, reverse=True):
    form = lowering.forms.get(i)
    if is_elementwise(ops[i].op) and users[i] <= REDUCTIONS:
      passing.add(i)
    placed = i in passing or (form is not None and lowering.in_place(i, form))
    anew = ops[i].phase is Phase.LOOP and (lowering.varies[i] or (placed and i in turning))
    if anew or ops[i].op in ACCUMULATORS:
      turning.update(ops[i].args)
    for a in ops[i].args:
      last[a] = max(last[a], last[i] if placed else i)
      users[a].add(ops[i].op)
  body = max((i for i in needed if ops[i].phase is Phase.LOOP), default=-1)
  carried = {*lowering.states, *lowering.fused.values()}
  change = [0] * (end + 3)
  for held in lowering.made:
    i, size = held.index, lowering.warps.registers(held.form)
    if i in passing:
      continue
    until = last[i]
    if ops[i].phase is Phase.LOOP and i in turning and not lowering.varies[i]:
      until = max(until, body)
    size = -(-size // 2) if held.packed else size
    same = until < end and lowering.forms.get(until) == held.form
    change[0 if i in carried else i + 1] += size
    change[until + 2 - (same and is_elementwise(ops[until].op))] -= size
  most = now = 0
  for step in change:
    now += step
    most = max(most, now)
  return most
