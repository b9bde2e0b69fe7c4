"""Where, seen from a loop, the registers of its products come from."""

from collections.abc import Callable, Mapping
from enum import IntFlag

from mirage_onnx.compiler.machine.steps import MachineFlow, MachineLoop, MachineStep


class Origin(IntFlag):
  """Places where what a register holds may have been computed.

  ``OUTSIDE`` of the loop, ``HERE`` in the same iteration, ``EARLIER`` in one before; ``PLAIN``: a constant or
  what memory holds, which an assembler may get again wherever it likes.
  """

  OUTSIDE = 1
  HERE = 2
  EARLIER = 4
  PLAIN = 8


_IN_NONE = 2 * int(Origin.PLAIN)
_State = dict[str, int]


def origins(flow: MachineFlow, loop: MachineLoop) -> Mapping[int, tuple[Origin, Origin]]:
  """By the place of every product in the loop: origins of its operand A and of the sums that it adds to."""
  found = _walk(flow, loop.blocks, loop.head, lambda _: Origin.HERE, Origin.OUTSIDE)
  return {at: (Origin(a), Origin(sums)) for at, (a, sums) in found.items()}


def places(flow: MachineFlow) -> Mapping[int, tuple[int, int]]:
  """Of every product the same in the whole kernel: which loops compute them, the loops with products counted.

  ``Origin.PLAIN``, one bit more for what is in none of these loops, and further ones for each of them.
  """
  around = {n: flow.loops_of(n) for n, s in enumerate(flow.steps) if s.product is not None}
  heads = sorted({x.head for some in around.values() for x in some})
  numbers = {}
  for block in range(len(flow.blocks)):
    own = next((x.head for x in flow.loops_of(flow.blocks[block][0]) if x.head in heads), None)
    numbers[block] = _IN_NONE if own is None else _IN_NONE << 1 + heads.index(own)
  return _walk(flow, frozenset(flow.dominators), 0, lambda block: numbers[block], 0)


def _walk(
  flow: MachineFlow, blocks: frozenset[int], head: int, of: Callable[[int], int], before: int
) -> dict[int, tuple[int, int]]:
  """What reaches the operands of products in these blocks.

  ``of``: what a step of a block that computes something makes of its results; ``before``: what registers have
  that nothing has written.
  """
  of_interest = {n: _steps_of_interest(flow, n) for n in blocks}
  states: dict[int, _State] = {head: {}}
  todo = [head]
  while todo:
    n = min(todo)
    todo.remove(n)
    state = dict(states[n])
    for _, step in of_interest[n]:
      _apply(state, step, of(n), before)
    for t in flow.after[n]:
      if t not in blocks:
        continue
      passed = _next_iteration(state) if t == head else state
      known = states.get(t)
      merged = dict(passed) if known is None else _merged(known, passed, before)
      if merged != known:
        states[t] = merged
        if t not in todo:
          todo.append(t)
  found = {}
  for n, state in states.items():
    for at, step in of_interest[n]:
      if (p := step.product) is not None:
        found[at] = _of(state, p.a, before), _of(state, p.sums, before)
      _apply(state, step, of(n), before)
  return found


def _steps_of_interest(flow: MachineFlow, block: int) -> list[tuple[int, MachineStep]]:
  first, end = flow.blocks[block]
  wanted = flow.registers_of_products
  steps = ((at, flow.steps[at]) for at in range(first, end))
  return [(at, s) for at, s in steps if s.product is not None or not wanted.isdisjoint(s.writes)]


def _of(state: _State, registers: tuple[str, ...], before: int) -> int:
  every = 0
  for r in registers:
    every |= state.get(r, before)
  return every


def _apply(state: _State, step: MachineStep, computed: int, before: int) -> None:
  if step.source is not None:
    origin = state.get(step.source, before)
  else:
    origin = int(Origin.PLAIN) if step.plain else computed
  for r in step.writes:
    state[r] = origin | state.get(r, before) if step.may else origin


def _next_iteration(state: _State) -> _State:
  return {r: (o & ~Origin.HERE) | Origin.EARLIER if o & Origin.HERE else o for r, o in state.items()}


def _merged(a: _State, b: _State, before: int) -> _State:
  return {r: a.get(r, before) | b.get(r, before) for r in a.keys() | b.keys()}
