"""Edits of a block graph by the keys of its values; numbers are given again at the end."""

from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

from mirage_onnx.ir import BlockOp, DType, Layout

ACCUMULATORS = ("acc_sum", "acc_max", "acc_scaled")
REDUCTIONS = ("matmul", "sum", "rmax")
LEAVES = ("load", "const", "extent")

T = TypeVar("T")


class Draft:
  """A kernel under edit. The keys of its values are their numbers; new values get new keys."""

  def __init__(self, kernel):
    self.kernel = kernel
    self.ops = dict(enumerate(kernel.ops))
    self.saves = list(kernel.saves)

  def set(self, key, **changes):
    self.ops[key] = replace(self.ops[key], **changes)
    return self

  def put(self, op, *args, phase=None, **fields):
    """A new fp32 value, in the phase of its first argument if not told otherwise."""
    key = len(self.ops)
    when = phase or self.ops[args[0]].phase
    self.ops[key] = BlockOp(op, args, (), DType.F32, when, Layout.SHARED, **fields)
    return key

  def copy(self, key, **changes):
    self.ops[len(self.ops)] = replace(self.ops[key], **changes)
    return len(self.ops) - 1

  def const(self, value, phase):
    exact = value if isinstance(value, str) else Fraction(value)
    return self.put("const", phase=phase, value=exact)

  def redirect(self, old, new, *keep):
    """Users of ``old`` take ``new``, but for ``keep``, ``new`` and the new values under it."""
    made_of = self._under(new)
    for key, op in self.ops.items():
      if key not in keep and key not in made_of:
        self.ops[key] = replace(op, args=tuple(new if a == old else a for a in op.args))
    self.saves = [replace(s, arg=new) if s.arg == old else s for s in self.saves]
    return self

  def then(self, key, op, *args, **fields):
    return self.redirect(key, self.put(op, *args, **fields))

  def argument(self, key, at, new):
    return self.set(key, args=replaced(self.ops[key].args, at, new))

  def _under(self, key):
    found, todo = set[int](), [key]
    while todo:
      k = todo.pop()
      if k not in found:
        found.add(k)
        todo += [a for a in self.ops[k].args if a >= len(self.kernel.ops)]
    return found

  def done(self):
    """Without what nobody reads, every value after its arguments, over the axes it has now."""
    live = {}

    def visit(key, path=()):
      if key in path:
        raise ValueError(f"value {key} depends on itself")
      if key not in live:
        for a in self.ops[key].args:
          visit(a, (*path, key))
        live[key] = None

    for s in self.saves:
      visit(s.arg)
    wanted, live = sorted(live), {}
    for key in wanted:
      visit(key)
    number = {key: n for n, key in enumerate(live)}
    ops = tuple(replace(self.ops[key], args=tuple(number[a] for a in self.ops[key].args)) for key in live)
    saves = tuple(replace(s, arg=number[s.arg]) for s in self.saves)
    return retyped(replace(self.kernel, ops=ops, saves=saves))


def retyped(kernel):
  """Axes as the operations say, so that a mutant is judged by what it computes."""
  ops = []
  for op in kernel.ops:
    if op.args and all(a < len(ops) for a in op.args):
      read = op.args[:1] if op.op in ACCUMULATORS else op.args
      axes = {x for a in read for x in ops[a].axes}
      axes -= set(op.reduced) if op.op in REDUCTIONS else set()
      op = replace(op, axes=tuple(sorted(axes)))
    elif op.op in LEAVES[1:]:
      op = replace(op, axes=())
    ops.append(op)
  return replace(kernel, ops=tuple(ops))


def each(kernel, *names):
  for i, op in enumerate(kernel.ops):
    if op.op in names:
      yield i, op


def depends(kernel, key, on):
  return key == on or any(depends(kernel, a, on) for a in kernel.ops[key].args)


def users(kernel, key):
  for i, op in enumerate(kernel.ops):
    for at, a in enumerate(op.args):
      if a == key:
        yield i, at


def replaced(items, at, item):
  return (*items[:at], item, *items[at + 1 :])
