"""Mistakes with time: accumulators, the loop, running maxima, merges of partial results."""

from fractions import Fraction

from draft import ACCUMULATORS, LEAVES, Draft, each, users

from mirage_onnx.ir.functions import ELEMENTWISE
from mirage_onnx.ir.ugraph import Phase

UNARY = (*(name for name, e in ELEMENTWISE.items() if e.arity == 1), "powr")
BINARY = tuple(name for name, e in ELEMENTWISE.items() if e.arity == 2)
LOOP, POST = Phase.LOOP, Phase.POST


def _last(draft, value):
  """``value`` of the last iteration: an accumulator that forgets all before it."""
  return draft.put("acc_scaled", value, draft.const(0, LOOP), phase=POST)


def drop_accumulator(kernel):
  """Only the last iteration is seen, or nothing."""
  for i, op in each(kernel, *ACCUMULATORS):
    draft = Draft(kernel)
    yield draft.redirect(i, _last(draft, op.args[0])).done()
    yield Draft(kernel).then(i, "sub", i, i).done()


def duplicate_accumulator(kernel):
  """What was accumulated is accumulated or combined again."""
  for i, op in each(kernel, *ACCUMULATORS):
    again = "max" if op.op == "acc_max" else "add"
    yield Draft(kernel).then(i, again, i, i).done()
    draft = Draft(kernel)
    twice = draft.put(again, op.args[0], op.args[0])
    yield draft.set(i, args=(twice, *op.args[1:])).done()
    if kernel.cluster:
      draft = Draft(kernel)
      name = "red_max" if op.op == "acc_max" else "red_sum"
      yield draft.then(i, name, i).done()
  for i, op in each(kernel, "sum", "rmax"):
    if op.phase is POST:
      yield Draft(kernel).then(i, "max" if op.op == "rmax" else "add", i, i).done()


def loop_off_by_one(kernel):
  """The last iteration is missing or comes twice, for one accumulator."""
  for i, op in each(kernel, "acc_sum", "acc_scaled"):
    for name in ("sub", "add"):
      draft = Draft(kernel)
      last = _last(draft, op.args[0])
      yield draft.then(i, name, i, last).done()
  for i, op in each(kernel, "acc_max"):
    for name in ("prev", "run_max"):
      draft = Draft(kernel)
      running = value = draft.put("run_max", op.args[0])
      if name == "prev":
        value = draft.put("prev", running)
      yield draft.redirect(i, _last(draft, value)).done()


def missing_rescale(kernel):
  """The old sum is not brought to the new maximum, or by a wrong factor."""
  for i, op in each(kernel, "acc_scaled"):
    x, f = op.args
    yield Draft(kernel).set(i, op="acc_sum", args=(x,)).done()
    yield Draft(kernel).set(i, args=(x, kernel.ops[f].args[0])).done()
    for name in ("recip", "square", "sqrt", "neg", "exp"):
      draft = Draft(kernel)
      yield draft.set(i, args=(x, draft.put(name, f))).done()
    draft = Draft(kernel)
    scaled = draft.put("mul", x, f)
    yield draft.set(i, args=(scaled, f)).done()


def merge_unscaled(kernel):
  """Parts are added up without the factors that bring them to one maximum, or by wrong ones."""
  for i, op in each(kernel, "sum", "red_sum"):
    if op.phase is not POST:
      continue
    source = kernel.ops[op.args[0]]
    if source.op == "mul":
      for a in source.args:
        yield Draft(kernel).set(i, args=(a,)).done()
      for name in ("div", "add", "sub"):
        yield Draft(kernel).set(op.args[0], op=name).done()
      x, w = source.args
      if kernel.ops[w].op == "exp":
        for name in ("recip", "square", "sqrt"):
          draft = Draft(kernel)
          factor = draft.put(name, w)
          yield draft.set(op.args[0], args=(x, factor)).done()
        inner = kernel.ops[w].args[0]
        yield Draft(kernel).set(op.args[0], args=(x, inner)).done()


def stale_value(kernel):
  """One use of a running maximum takes the value of the previous iteration, or the reverse."""
  for i, op in each(kernel, "run_max", "prev"):
    for user, at in users(kernel, i):
      if op.op == "run_max" and kernel.ops[user].op == "prev":
        continue
      draft = Draft(kernel)
      fresh = op.args[0] if op.op == "prev" else draft.put("prev", i)
      yield draft.argument(user, at, fresh).done()
      # Two iterations back: the maximum of what was the maximum before.
      draft = Draft(kernel)
      older = draft.put("prev", i) if op.op == "run_max" else i
      again = draft.put("run_max", older)
      yield draft.argument(user, at, draft.put("prev", again)).done()
  for i, op in each(kernel, "acc_max"):
    draft = Draft(kernel)
    running = draft.put("run_max", op.args[0])
    yield draft.set(i, args=(draft.put("prev", running),)).done()


def wrong_maximum(kernel):
  """A maximum is over this tile only, of another value, or missing."""
  for i, op in each(kernel, "run_max", "acc_max", "red_max", "rmax"):
    for user, at in users(kernel, i):
      for other in _instead_of_maximum(kernel, i, op, user):
        yield Draft(kernel).argument(user, at, other).done()
      for number in (0, 100):
        draft = Draft(kernel)
        yield draft.argument(user, at, draft.const(number, op.phase)).done()
    source = kernel.ops[op.args[0]]
    for b in range(i):
      other_op = kernel.ops[b]
      same = other_op.phase is source.phase and set(other_op.axes) == set(source.axes)
      if same and b != op.args[0]:
        yield Draft(kernel).set(i, args=(b,)).done()


def _instead_of_maximum(kernel, i, op, user):
  yield op.args[0]
  for j, other in each(kernel, "rmax", "run_max", "acc_max", "red_max"):
    if j not in (i, op.args[0]) and j < user and other.phase is op.phase:
      yield j


def into_the_loop(kernel):
  """f(acc(x)) becomes acc(f(x)): what belongs behind the loop is done to partial values."""
  for j, op in enumerate(kernel.ops):
    if op.phase is not POST or op.op in (*ACCUMULATORS, *LEAVES):
      continue
    draft = Draft(kernel)
    copies = {}
    inner = _looped(kernel, draft, j, copies)
    found = [a for a in copies if kernel.ops[a].op in ACCUMULATORS]
    if not found:
      continue
    acc = kernel.ops[found[0]]
    yield draft.set(j, **_fields(acc), args=(inner, *acc.args[1:])).done()


def _fields(op):
  return {"op": op.op, "phase": op.phase, "reduced": (), "value": None, "dtype": op.dtype}


def _looped(kernel, draft, key, copies):
  """A value after the loop, as it would be inside: from this iteration's values."""
  op = kernel.ops[key]
  if op.phase is LOOP:
    return key
  if key not in copies:
    args = [_looped(kernel, draft, a, copies) for a in op.args]
    if op.op in (*ACCUMULATORS, "red_sum", "red_max"):
      copies[key] = args[0]
    else:
      copies[key] = draft.copy(key, args=tuple(args), phase=LOOP)
  return copies[key]


def accumulate_first(kernel):
  """acc(f(x)) becomes f(acc(x)): accumulated before an operation instead of after it."""
  for i, acc in each(kernel, *ACCUMULATORS):
    inner = kernel.ops[acc.args[0]]
    if inner.op in LEAVES or inner.op in ("run_max", "prev"):
      continue
    draft = Draft(kernel)
    args = [
      draft.copy(a, phase=POST)
      if kernel.ops[a].op in LEAVES[1:]
      else draft.put(acc.op, a, *acc.args[1:], phase=POST)
      for a in inner.args
    ]
    yield draft.redirect(i, draft.copy(acc.args[0], args=tuple(args), phase=POST)).done()


def offset_every_tile(kernel):
  """A constant that belongs behind the loop is added in every iteration."""
  for i, op in each(kernel, "acc_sum", "acc_scaled"):
    for number in (Fraction(1), Fraction(1, 1000)):
      draft = Draft(kernel)
      shifted = draft.put("add", op.args[0], draft.const(number, LOOP))
      yield draft.set(i, args=(shifted, *op.args[1:])).done()
