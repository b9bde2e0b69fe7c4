"""Block operators: one table with all that any stage knows of one.

An operator of a block graph is of a ``Kind``, which says what it does with tiles, iterations and
ranks, and what it reduces it puts together by a ``Merge``. Stages do not ask for names: they ask
for the kind and the merge, so another operator of a known kind is a row here. A stage that has a
rule for each kind has it in a table, which is complete or cannot be imported (``ir/rows.py``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mirage_onnx.ir import term as t
from mirage_onnx.ir.ugraph import Phase


class Kind(Enum):
  """What an operator does; what is not said varies as its arguments do."""

  LOAD = "the tile of a tensor, cut by its maps"
  CONSTANT = "a scalar: an attribute, or a number of elements"
  POINTWISE = "element by element, with an attribute; other such operators are elementwise functions"
  CONTRACTION = "over one axis of a tile, of a product of two tiles"
  REDUCTION = "over axes of a tile"
  ACCUMULATOR = "over the iterations of the loop; the value exists after it"
  RESCALED = "an accumulator that is multiplied by the second argument before the first is added"
  RUNNING = "over the iterations until now; the value exists in the loop"
  PREVIOUS = "the value of a running operator before this iteration"
  CLUSTER = "over the ranks of the cluster, after the loop; every rank has the value"


#: Kinds of which a value exists in one phase only.
PHASES = {
  Kind.ACCUMULATOR: Phase.POST, Kind.RESCALED: Phase.POST, Kind.CLUSTER: Phase.POST,
  Kind.RUNNING: Phase.LOOP, Kind.PREVIOUS: Phase.LOOP,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Merge:
  """How two parts of a value become one, in any order; of no parts ``neutral`` is left.

  ``function``: of ``ir/functions.py``. ``reduction``: its head in terms. ``cuda``: the class of
  ``codegen/device/numeric.cuh`` with ``neutral`` and ``combine``. ``rounds``: two parts do not add up
  exactly, so what is merged is kept in fp32.
  """

  name: str
  function: str
  reduction: str
  neutral: float
  cuda: str
  rounds: bool


SUM = Merge("sum", "add", t.SUM, 0.0, "Sum", rounds=True)
MAX = Merge("max", "max", t.MAXR, -float("inf"), "Max", rounds=False)
MERGES = (SUM, MAX)


@dataclass(frozen=True, slots=True)
class BlockOperator:
  """``arity`` arguments; ``merge``: of all kinds that go over something."""

  kind: Kind
  arity: int
  merge: Merge | None = None


OPERATORS: dict[str, BlockOperator] = {
  # name                       kind              arity  merge
  "load":       BlockOperator(Kind.LOAD,         0),
  "const":      BlockOperator(Kind.CONSTANT,     0),
  "extent":     BlockOperator(Kind.CONSTANT,     0),
  "cast":       BlockOperator(Kind.POINTWISE,    1),
  "powr":       BlockOperator(Kind.POINTWISE,    1),
  "matmul":     BlockOperator(Kind.CONTRACTION,  2,     SUM),
  "sum":        BlockOperator(Kind.REDUCTION,    1,     SUM),
  "rmax":       BlockOperator(Kind.REDUCTION,    1,     MAX),
  "acc_sum":    BlockOperator(Kind.ACCUMULATOR,  1,     SUM),
  "acc_max":    BlockOperator(Kind.ACCUMULATOR,  1,     MAX),
  "acc_scaled": BlockOperator(Kind.RESCALED,     2,     SUM),
  "run_max":    BlockOperator(Kind.RUNNING,      1,     MAX),
  "prev":       BlockOperator(Kind.PREVIOUS,     1),
  "red_sum":    BlockOperator(Kind.CLUSTER,      1,     SUM),
  "red_max":    BlockOperator(Kind.CLUSTER,      1,     MAX),
}  # fmt: skip


def of_kinds(*kinds: Kind, merges: Iterable[Merge | None] = (None, *MERGES)) -> frozenset[str]:
  """The operators of these kinds with these merges."""
  return frozenset(op for op, row in OPERATORS.items() if row.kind in kinds and row.merge in merges)


#: Kinds that go over iterations, and all that go over something.
OVER_LOOP = (Kind.ACCUMULATOR, Kind.RESCALED, Kind.RUNNING)
OVER = (*OVER_LOOP, Kind.CONTRACTION, Kind.REDUCTION, Kind.CLUSTER)

LEAVES = of_kinds(Kind.LOAD, Kind.CONSTANT)
REDUCTIONS = of_kinds(Kind.REDUCTION)
#: What goes over axes of a tile.
OVER_AXES = of_kinds(Kind.REDUCTION, Kind.CONTRACTION)
#: What goes over the iterations of the loop and is there after it.
ACCUMULATORS = of_kinds(Kind.ACCUMULATOR, Kind.RESCALED)
#: What has another value in every iteration, whatever its arguments are.
RUNNING = of_kinds(Kind.RUNNING, Kind.PREVIOUS)
CLUSTER = of_kinds(Kind.CLUSTER)
#: What adds up parts of its argument as they are.
SUMS = of_kinds(Kind.REDUCTION, Kind.ACCUMULATOR, Kind.RUNNING, Kind.CLUSTER, merges=(SUM,))
MAXIMA = of_kinds(*Kind, merges=(MAX,))


def kind_of(op: str) -> Kind | None:
  """The kind of an operator; None for an elementwise function."""
  row = OPERATORS.get(op)
  return None if row is None else row.kind


def merge_of(op: str) -> Merge:
  """How an operator that goes over something puts it together."""
  merge = OPERATORS[op].merge
  assert merge is not None, op
  return merge
