"""Loops that may end where a run says that their tensors end: what follows adds nothing to what they keep.

A cache has room for more than it holds: ``select(place <= length, score, least)``, of which the exponential
is 0 and the maximum no more than that of others. What a value is in an iteration behind the end follows
from what it is made of; the loop may stop there if all that it accumulates stays as it is.
At least the last place before the end is seen, so a maximum is one of a score.
"""

from collections.abc import Sequence
from enum import Enum

from mirage_onnx.ir.ugraph import BlockOp, Kernel, UGraph

#: Below it a constant is the least of fp32, to which nothing that is seen is equal.
_LEAST = -3e38
_MORE = {"less": 0, "less_equal": 1}
#: What is accumulated, and what of it changes nothing.
_KEPT = frozenset({"acc_sum", "acc_scaled", "acc_max"})


class _Behind(Enum):
  """What a value is behind the end: anything, false, the least, far below a maximum, 0, minus a maximum."""

  ANY, FALSE, LEAST, LOW, ZERO, SHIFT = range(6)


def early_end(graph: UGraph, kernel: Kernel) -> str | None:
  """The tensor with a limit that says where the kernel's loop may end; None where it has to go on."""
  loop = kernel.loop
  loaded = [graph.tensor(o.tensor) for o in kernel.loads]
  limited = [t for t in loaded if t.limit and t.limit[0] == loop]
  if not limited or len({t.limit for t in limited}) != 1:
    return None
  if any(loop in graph.tensor(s.tensor).axes for s in kernel.saves):
    return None
  (_, by, more) = limited[0].limit or ("", "", 0)
  if len({c for k in graph.kernels for c in _compared(k, by)}) != 1:
    return None
  found = list[_Behind]()
  for op in kernel.ops:
    found.append(_behind(kernel, op, found, by, more))
  kept = [op for op in kernel.ops if op.op.startswith("acc_")]
  neutral = {"acc_max": _Behind.LEAST}
  fits = (op.op in _KEPT and found[op.args[0]] is neutral.get(op.op, _Behind.ZERO) for op in kept)
  return limited[0].name if kept and all(fits) else None


def _compared(kernel: Kernel, by: str) -> list[str]:
  """The tensors with which a kernel compares ``by``."""
  pairs = (_sides(kernel, op) for op in kernel.ops if op.op in _MORE)
  return [a for a, b in pairs if b == by]


def _sides(kernel: Kernel, op: BlockOp) -> tuple[str, str]:
  """The tensors that two operands are, behind casts."""
  names = []
  for i in op.args:
    while kernel.ops[i].op == "cast":
      (i,) = kernel.ops[i].args
    names.append(kernel.ops[i].tensor if kernel.ops[i].op == "load" else "")
  return names[0], names[1]


def _number(op: BlockOp) -> float:
  return float(op.value) if op.value is not None else 1.0


def _behind(kernel: Kernel, op: BlockOp, found: Sequence[_Behind], by: str, more: int) -> _Behind:
  own = [found[i] for i in op.args]
  if op.op in _MORE and _sides(kernel, op)[1] == by and _MORE[op.op] == more:
    return _Behind.FALSE
  if op.op == "const":
    value = _number(op)
    return _Behind.LEAST if value < _LEAST else _Behind.ZERO if value == 0 else _Behind.ANY
  if op.op == "select" and own[0] is _Behind.FALSE:
    return own[2]
  if op.op in ("cast", "sum", "rmax"):
    return own[0] if own[0] in (_Behind.LEAST, _Behind.ZERO) else _Behind.ANY
  if op.op == "mul":
    constants = [_number(o) for o in (kernel.ops[i] for i in op.args) if o.op == "const"]
    if constants == [-1.0] and any(kernel.ops[i].op == "run_max" for i in op.args):
      return _Behind.SHIFT
  if op.op == "add" and {*own} == {_Behind.SHIFT, _Behind.LEAST}:
    return _Behind.LOW
  if op.op == "sub" and own[0] is _Behind.LEAST and kernel.ops[op.args[1]].op == "run_max":
    return _Behind.LOW
  if op.op == "exp" and own[0] in (_Behind.LOW, _Behind.LEAST):
    return _Behind.ZERO
  if op.op in ("mul", "matmul") and {*own} == {_Behind.ZERO}:
    return _Behind.ZERO
  return _Behind.ANY
