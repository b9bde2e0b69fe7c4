"""Which axes of a value lie over the lanes of a warp, chosen so that few values have to move.

mma.m16n8k16 holds a matrix with one side over the eight *groups* of a warp (g = lane / 4) and the
other inside the *quads* (t = lane % 4):

    operand A   rows over the groups,    depth inside the quads
    operand B   columns over the groups, depth inside the quads
    result C    rows over the groups,    columns inside the quads

So a result is, where it lies, an operand of a next contraction over its columns, as A or as B
(kind "free": two 16x8 results are one 16x16 operand). A next contraction over its rows wants it
transposed ("movmatrix", some instructions inside the warp; a vector is shuffled). Everything else
goes through shared memory ("shared").

The choices are which operand of each contraction is A, and how every computed value lies. Loaded
values are read as they are needed. The objective is the sum of ``WEIGHTS`` over all uses of values,
those inside the loop ``LOOP_WEIGHT`` times; then as few axes as possible outside the lanes; then
operand A of weights, if only one operand is; then the order of the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mirage_onnx.ir.block_ops import REDUCTIONS
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor, Phase
from mirage_onnx.lower.dataflow import users_of
from mirage_onnx.lower.min_sum import MinSum, minimise

WEIGHTS = {"free": 0, "movmatrix": 1, "shared": 4}
LOOP_WEIGHT = 8
#: A conversion outweighs any number of axes outside the lanes, and those any preference. What a
#: reduction leaves lies as its argument did.
_FIXED, _MOVE, _OUTSIDE = 1_000_000_000, 10_000, 100


@dataclass(frozen=True, slots=True)
class Lanes:
  """The axes over the groups and inside the quads, sorted; several axes of one side lie flat."""

  g: tuple[str, ...] = ()
  t: tuple[str, ...] = ()

  def of(self, axes: tuple[str, ...]) -> Lanes:
    """How a value over ``axes`` lies beside a value with these lanes."""
    return _lanes_of(self.g, self.t, axes)

  @property
  def transposed(self) -> Lanes:
    """Groups and quads swapped."""
    return Lanes(self.t, self.g)

  def move(self, wanted: Lanes) -> str:
    """The kind of the conversion to ``wanted``."""
    if self == wanted:
      return "free"
    return "movmatrix" if self == wanted.transposed else "shared"


@lru_cache(maxsize=4096)
def _lanes_of(g: tuple[str, ...], t: tuple[str, ...], axes: tuple[str, ...]) -> Lanes:
  return Lanes(tuple(a for a in g if a in axes), tuple(a for a in t if a in axes))


@dataclass(frozen=True, slots=True)
class Contraction:
  """The sides of a ``matmul``: axes of only its first argument, of only its second, summed."""

  first: tuple[str, ...]
  second: tuple[str, ...]
  depth: tuple[str, ...]

  @classmethod
  def of(cls, kernel: Kernel, op: BlockOp) -> Contraction:
    """The sides of this ``matmul`` of the kernel."""
    a, b = (set(kernel.ops[i].axes) for i in op.args)
    depth = set(op.reduced)
    first, second = a - b - depth, b - a - depth
    return cls(tuple(sorted(first)), tuple(sorted(second)), tuple(sorted(depth)))

  @property
  def operands(self) -> tuple[Lanes, Lanes]:
    """How the two arguments have to lie, whichever of them is operand A."""
    return Lanes(self.first, self.depth), Lanes(self.second, self.depth)

  @property
  def results(self) -> tuple[Lanes, Lanes]:
    """How the result lies: with the first argument as operand A, with the second."""
    result = Lanes(self.first, self.second)
    return result, result.transposed


@dataclass(frozen=True, slots=True)
class Use:
  """Value ``user`` takes value ``value`` with lanes ``wanted``."""

  value: int
  user: int
  wanted: Lanes


def is_free_to_read(op: BlockOp) -> bool:
  """Whether the value is there however it is needed: it is loaded, or a scalar."""
  return op.op == "load" or (not op.axes and op.op != "matmul")


def choose_lanes(
  kernel: Kernel, tensors: Mapping[str, KTensor] | None = None
) -> tuple[tuple[Lanes, ...], tuple[Use, ...]]:
  """The lanes of every value, and every use of one; of a loaded value, how it is first used.

  Without ``tensors`` nothing is known to be a weight: right for a kernel whose contractions have
  their arguments in order already.
  """
  problem, domains, place = lane_problem(kernel, tensors)
  chosen = minimise(problem)
  lanes = [Lanes()] * len(kernel.ops)
  for i, v in place.items():
    lanes[i] = domains[v][chosen[v]].of(kernel.ops[i].axes)
  uses: list[Use] = []
  for user, op in enumerate(kernel.ops):
    wanted = Contraction.of(kernel, op).operands if op.op == "matmul" else (lanes[user],) * 2
    for arg, want in zip(op.args, wanted, strict=False):
      uses.append(Use(arg, user, _wanted(want, kernel.ops[arg], lanes[arg], op)))
  for use in reversed(uses):
    if kernel.ops[use.value].op == "load":
      lanes[use.value] = use.wanted
  return tuple(lanes), tuple(uses)


def _wanted(want: Lanes, arg: BlockOp, have: Lanes, user: BlockOp) -> Lanes:
  """What ``user`` wants of an argument; the axes that it reduces are where the argument has them.

  A reduced axis of a loaded argument is wanted inside the quads, if nothing else is there.
  """
  want = want.of(arg.axes)
  if user.op not in REDUCTIONS:
    return want
  if arg.op != "load":
    return have
  return want if want.t else Lanes(want.g, tuple(sorted(set(user.reduced) & set(arg.axes))))


def lane_problem(
  kernel: Kernel, tensors: Mapping[str, KTensor] | None
) -> tuple[MinSum, list[tuple[Lanes, ...]], dict[int, int]]:
  """The choice of lanes as a ``MinSum``, the choices of its variables, and value -> variable."""
  ops = kernel.ops
  contractions = {i: Contraction.of(kernel, op) for i, op in enumerate(ops) if op.op == "matmul"}
  frames = tuple(dict.fromkeys(f for c in contractions.values() for f in (*c.results, *c.operands)))
  streamed = streamed_of_values(kernel, tensors or {})
  joined = _joined(kernel)
  place: dict[int, int] = {}
  domains: list[tuple[Lanes, ...]] = []
  single: list[tuple[int, ...]] = []
  for i, op in enumerate(ops):
    if not is_free_to_read(op) and i not in joined:
      place[i] = len(domains)
      if i in contractions:
        first, second = contractions[i].results
        weights = [streamed[a] for a in op.args]
        wrong = second if weights[0] >= weights[1] else first
        domains.append(tuple(sorted({first, second}, key=lambda c: (c.g, c.t))))
        single.append(tuple(int(c == wrong) for c in domains[-1]))
      else:
        domains.append(_choices(frames, op.axes))
        inside = [a for a in op.axes if a not in kernel.grid]
        single.append(tuple(_OUTSIDE * sum(a not in c.g + c.t for a in inside) for c in domains[-1]))
  for i in sorted(joined, reverse=True):
    place[i] = place[joined[i]]
  tables: list[tuple[int, int, tuple[tuple[int, ...], ...]]] = []
  for i, op in enumerate(ops):
    operands = contractions[i].operands if i in contractions else None
    for n, arg in enumerate(op.args):
      if arg not in place or i not in place or place[arg] == place[i]:
        continue
      u, v = place[arg], place[i]
      weight = _MOVE * (LOOP_WEIGHT if ops[arg].phase is Phase.LOOP else 1)
      if op.op in REDUCTIONS:
        weight = _FIXED
      shared = tuple(a for a in ops[arg].axes if operands or a in op.axes)
      want = (operands[n],) * len(domains[v]) if operands else domains[v]
      tables.append((u, v, _move_weights(domains[u], want, shared, weight)))
  return MinSum.of(tuple(single), tables), domains, place


@lru_cache(maxsize=4096)
def _move_weights(
  have: tuple[Lanes, ...], want: tuple[Lanes, ...], axes: tuple[str, ...], weight: int
) -> tuple[tuple[int, ...], ...]:
  """What it weighs to move a value over ``axes`` from each of ``have`` to each of ``want``."""
  wanted = [w.of(axes) for w in want]
  return tuple(tuple(weight * WEIGHTS[h.of(axes).move(w)] for w in wanted) for h in have)


@lru_cache(maxsize=4096)
def _choices(frames: tuple[Lanes, ...], axes: tuple[str, ...]) -> tuple[Lanes, ...]:
  """The ways that a value can lie beside a contraction; over groups and quads, if any does."""
  found = tuple(dict.fromkeys(f.of(axes) for f in frames))
  sides = max(bool(f.g) + bool(f.t) for f in found)
  found = tuple(f for f in found if bool(f.g) + bool(f.t) == sides)
  most = [c for c in found if not any(set(c.g) <= set(d.g) and set(c.t) <= set(d.t) for d in found if d != c)]
  # The first of equals is taken, whatever the order of the arguments is: that with more rows.
  return tuple(sorted(most, key=lambda c: (-len(c.g), c.g, c.t)))


def _joined(kernel: Kernel) -> dict[int, int]:
  """Values that lie as their only user does, because it costs as much to move what they take."""
  ops = kernel.ops
  users = users_of(kernel)
  found: dict[int, int] = {}
  for i, op in enumerate(ops):
    taken = [a for a in op.args if not is_free_to_read(ops[a])]
    fixed = op.op == "matmul" or op.op in REDUCTIONS
    if not fixed and len(users[i]) == 1 and len(taken) <= 1:
      (user,) = users[i]
      same_phase = all(ops[a].phase is op.phase for a in taken)
      together = ops[user].op != "matmul" and ops[user].axes == op.axes
      if together and same_phase and not is_free_to_read(op):
        found[i] = user
  return found


def streamed_of_values(kernel: Kernel, tensors: Mapping[str, KTensor]) -> list[int]:
  """For each value the least ``KTensor.streamed`` of what it is computed from."""
  found: list[int] = []
  for op in kernel.ops:
    own = 2
    if op.op == "load":
      own = tensors[op.tensor].streamed if op.tensor in tensors else 0
    found.append(min([own, *(found[a] for a in op.args)]))
  return found
