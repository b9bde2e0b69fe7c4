"""Wrong graphs with a name: each is a right example with one mistake that somebody could make."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

from saved_examples import EXAMPLES
from saved_mutants import blocks, name_of, operators, renamed
from saved_writer import Json, MisfitError, begun, recorded, squares

Edit = Callable[[list[Json]], None]


@dataclass(frozen=True)
class Wrong:
  name: str
  example: str
  index: int
  edit: Edit

  def graph(self):
    changed = copy.deepcopy(EXAMPLES[self.example].graphs()[self.index])
    self.edit(changed)
    try:
      return recorded(changed)
    except MisfitError:
      return changed


def op(graph, name, nth=0):
  return [o for o in operators(graph) if name_of(o) == name][nth]


def exchanged(first, second):
  def edit(g):
    a, b = op(g, first), op(g, second)
    renamed(a, second)
    renamed(b, first)

  return edit


def without(name, nth=0, operand=0):
  def edit(g):
    gone = op(g, name, nth)
    instead = gone["input_tensors"][operand]["guid"]
    for ops in (g, *(b["operators"] for b in blocks(g))):
      ops[:] = [o for o in ops if o is not gone]
    for o in operators(g):
      for t in o["input_tensors"]:
        if t["guid"] == gone["output_tensors"][0]["guid"]:
          t["guid"] = instead

  return edit


def load_field(nth, **fields):
  """Fields of the nth block input; ``imap`` is a triple."""

  def edit(g):
    load = next(o for i, o in enumerate(_loads(g)) if i == nth)
    for key, value in fields.items():
      if key == "imap":
        load["input_map"] = dict(zip("xyz", value, strict=True))
      else:
        load[key] = value

  return edit


def _loads(g):
  return [o for o in operators(g) if o["op_type"] == "tb_input_op"]


def store_map(nth, *omap):
  return lambda g: op(
    [o for o in g if "bgraph" in o], "output", nth
  )["output_map"].update(zip("xyz", omap, strict=True))  # fmt: skip


def exchanged_tensors(a, b):
  def edit(g):
    x, y = (_loads(g)[n]["dtensor"] for n in (a, b))
    x["guid"], y["guid"] = y["guid"], x["guid"]

  return edit


def both(*edits):
  def edit(g):
    for e in edits:
      e(g)

  return edit


def dangling_operand(g):
  op(g, "matmul")["output_tensors"][0]["guid"] += 10_000


#: ``saved_mutants`` has those that are one small edit of an operator, a map or a number.
WRONG = (
  Wrong("the weight is cut along its rows", "norm_linear", 4, load_field(1, imap=(0, -1, -1),
        forloop_dim=1)),
  Wrong("the weight is not cut by the loop", "norm_linear", 0, load_field(1, forloop_dim=-1)),
  Wrong("every iteration reads everything", "norm_linear", 0, both(
    load_field(0, forloop_dim=-1), load_field(1, forloop_dim=-1))),
  Wrong("a block normalises half a row", "norm_linear", 2, both(
    load_field(0, imap=(1, -1, -1)), store_map(0, 1, -1, -1))),
  Wrong("the gate is on the other branch", "gated", 0, exchanged_tensors(1, 2)),
  Wrong("a partial product is not accumulated", "gated", 0, without("accum_nored", 1)),
  Wrong("the detour is not cut by the loop", "low_rank", 1, both(
    load_field(0, forloop_dim=-1), load_field(2, forloop_dim=-1),
    load_field(1, forloop_dim=-1))),
  Wrong("the exponential comes after the sum", "attention", 2, exchanged(
    "exp", "accum_nored")),
  Wrong("values are read from the wrong split", "attention", 0, load_field(2, imap=(0, -1, 1))),
  Wrong("every split reads all values", "attention", 0, load_field(2, imap=(0, -1, -1))),
  Wrong("splits and queries are exchanged", "attention", 3, store_map(1, 0, 1, 2)),
  Wrong("the last norm is by columns", "residual_norm", 0, both(
    *(load_field(n, imap=(1, -1, -1)) for n in range(3)), store_map(0, 1, -1, -1))),
  Wrong("an operand does not exist", "gated", 0, dangling_operand),
)  # fmt: skip


def diagonal_of_a_loop():
  """sum_i x_i y_i where sum_i x_i sum_j y_j is wanted: one loop runs along i and j at once."""
  g, x, y = squares(2)
  k = g.kernel((8, 1, 1), 4)
  a, b = k.load(x, (0, -1, -1), loop_dim=1), k.load(y, (0, -1, -1), loop_dim=1)
  g.output(k.store(k.op("accum_red_ld_sum", k.op("mul", a, b)), (0, -1, -1)))
  return g.saved()


def diagonal_of_a_product():
  """sum_i x_i y_i where sum_ij x_i y_j is wanted."""
  g, x, y = begun((8, 1), (1, 8))
  g.output(g.op("matmul", y, x))
  return g.saved()
