"""The forms of values: the cheapest of all combinations."""

from itertools import product as combinations
from math import prod

import pytest
from golden_texts import PROGRAMS
from tiled_kernels import ATTENTION, CENTRED, NORM_LINEAR, case, product

from mirage_onnx.lower import assign
from mirage_onnx.lower.assign import MOVE, Assignment, folded
from mirage_onnx.lower.dataflow import needed_values
from mirage_onnx.lower.forms import MMA, Form, Warps, vector
from mirage_onnx.lower.pieces import Piece

#: The rows of a product are the depth of the next.
TWISTED = PROGRAMS["twisted"]


def _assignment(c):
  kernel = c.graph.kernels[0]
  return Assignment.of(kernel, c.plan().pieces, needed_values(kernel))


def _cost(assignment, forms):
  plain, ops = Warps((), 1, assignment.even), assignment.kernel.ops
  total = sum(min(plain.registers(f), MOVE - 1) for f in forms.values())
  for i, form in forms.items():
    for n, arg in enumerate(ops[i].args):
      if arg in forms:
        total += assignment._uses(i, n, (forms[arg],), (form,))[0][0]
  return total


KERNELS = {
  "norm": case(NORM_LINEAR, 16, 8, a0=8, a1=32, a2=16),
  "one product": case(product(), 16, 16, loop_tile=16, a0=16, a1=64, a2=16),
  "twisted": case(TWISTED, 16, a0=16, a1=32, a2=16, a3=24),
}


@pytest.mark.parametrize("name", KERNELS)
def test_no_combination_is_cheaper(name):
  assignment = _assignment(KERNELS[name])
  found = assignment.forms()
  domains = [assignment._domain(i) for i in found]
  assert 2 <= prod(map(len, domains)) <= 100_000 or name == "one product"
  every = (_cost(assignment, dict(zip(found, forms, strict=True))) for forms in combinations(*domains))
  assert _cost(assignment, found) == min(every)


def test_a_result_is_an_operand_of_the_next():
  """Between two chained contractions nothing moves."""
  assignment = _assignment(case(ATTENTION, 16, 1, loop_tile=32, a0=1, a1=64, a2=16, a3=16, a4=16))
  forms = assignment.forms()
  assert _cost(assignment, forms) < MOVE
  first, second = assignment.products.values()
  assert forms[19] == second.a == first.c


def test_a_value_that_has_to_move():
  assignment = _assignment(KERNELS["twisted"])
  assert MOVE <= _cost(assignment, assignment.forms()) < 2 * MOVE


def test_frames_without_contractions():
  plan = case(CENTRED, 3, warps=2, a0=4, a1=64).plan()
  assert {i: f.text for i, f in plan.lowering.forms.items()} == {
    1: "v1 g(a0_b)", 2: "v1 g(a0_b) t(a1)"
  }  # fmt: skip


@pytest.mark.parametrize(
  ("tile", "warps", "extent", "lie"),
  [(4, 2, 64, "v8 g(a0_b)"), (4, 2, 20, "v2 g(a0_b)"), (2, 4, 64, ""), (8, 1, 1000, "")],
)
def test_rows_that_share_warps(tile, warps, extent, lie):
  """Threads have vectors of a row, if warps share the rows out and lanes have not too much of one."""
  lowering = case(CENTRED, tile, warps=warps, a0=32, a1=extent).plan().lowering
  form = lowering.forms[2]
  assert lowering.warps.in_rows == bool(lie)
  if lie:
    assert form.text == f"{lie} t(a1)"
    assert form.lanes.groups * form.lanes.lanes == 32 and lowering.warps.count(form.g) == warps


def test_one_row_is_shared_by_all_warps():
  lowering = case(CENTRED, 1, warps=4, a0=32, a1=4096).plan().lowering
  assert lowering.forms[2].text == "v8 t(a1) rest(a0_b)"
  assert lowering.warps.count(lowering.forms[2].t) == 4


def test_folds():
  a, b, c = (Piece(f"a{n}", "", 8, True, 1) for n in range(3))
  form = Form(MMA, (a, b), (c,), ())
  assert folded(form, {c}) == Form(MMA, (a, b), (), ())
  assert folded(form, {a}) is None
  assert folded(Form(vector(1), (), (a,), (b,)), {a}) == Form(MMA, (), (), (b,))


def test_moves_inside_a_loop_cost_more():
  assignment = _assignment(KERNELS["one product"])
  c = assignment.products[2].c
  wrong = Form(c.lanes, c.t, c.g, ())
  assert assignment._uses(3, 0, (c,), (c,)) == [[0]]
  assert assignment._uses(3, 0, (c,), (wrong,))[0][0] >= assign._NEVER
