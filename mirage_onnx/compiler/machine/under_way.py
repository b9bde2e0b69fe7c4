"""Registers of wgmma that run beside the threads: what touches them before they are waited for."""

from mirage_onnx.compiler.machine.steps import MachineFlow, MachineStep

#: Registers of operands A and of sums, by group: the open one first, then the newest.
_State = tuple[tuple[frozenset[str], frozenset[str]], ...]
#: Groups that are told apart, those before are one: a wait names at most 7 (PTX ISA, wgmma.wait_group).
MOST = 9
_NONE: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())


def touched(flow: MachineFlow) -> str | None:
  """A step that writes registers of a product under way, or computes with its sums, in words."""
  states: dict[int, _State] = {0: (_NONE,)}
  todo = [0]
  while todo:
    n = min(todo)
    todo.remove(n)
    state = states[n]
    first, end = flow.blocks[n]
    for step in flow.steps[first:end]:
      if wrong := _wrong(state, step):
        return wrong
      state = _after(state, step)
    for t in flow.after[n]:
      known = states.get(t)
      merged = state if known is None else _merged(known, state)
      if merged != known:
        states[t] = merged
        if t not in todo:
          todo.append(t)
  return None


def _wrong(state: _State, step: MachineStep) -> str | None:
  written = frozenset(step.writes)
  for operands, sums in state:
    busy = operands if step.product is not None else operands | sums
    if both := written & busy:
      return f"{min(both)} is written while a wgmma has it"
    if early := sums & frozenset(step.reads):
      return f"{min(early)} is read before the wgmma that adds to it has ended"
  return None


def _after(state: _State, step: MachineStep) -> _State:
  if (p := step.product) is not None:
    operands, sums = state[0]
    state = ((operands | frozenset(p.a), sums | frozenset(step.writes)), *state[1:])
  if step.commits:
    oldest = _merged(state[MOST - 1 : MOST], state[MOST:]) if len(state) > MOST else state[MOST - 1 :]
    state = (_NONE, *state[: MOST - 1], *oldest)
  return state if step.ends is None else state[: 1 + step.ends]


def _merged(a: _State, b: _State) -> _State:
  size = max(len(a), len(b))
  both = zip((*a, *[_NONE] * size)[:size], (*b, *[_NONE] * size)[:size], strict=True)
  return tuple((x[0] | y[0], x[1] | y[1]) for x, y in both)
