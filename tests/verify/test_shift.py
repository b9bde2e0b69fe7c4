"""A shift that is not the maximum is refused, though the program is equal in exact arithmetic."""

import re

import pytest
from goldens import GOLDENS, edited, golden

from mirage_onnx.errors import Rejection
from mirage_onnx.verify.adversarial import CASES
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.shift import ShiftRecord, check_shift, exp_sites

each_golden = pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)


@each_golden
def test_goldens_are_shifted_by_their_maxima(given):
  record = check_shift(given.region, given.ugraph)
  assert isinstance(record, ShiftRecord), record
  assert set(record.largest) == set(exp_sites(given.ugraph))
  assert all(seen <= bound + 1e-3 for seen, bound in record.largest.values())


#: What is wrong -> golden, edits of its text. Each is equal to its region by algebra.
WRONG = {
  "the mask's maximum": ("attention_online", (
    ("%8 = rmax[a1] %7 : f32[a0,a3]", "%8 = rmax[a1] %3 : f32[a3]"),
    ("%9 = run_max %8 : f32[a0,a3]", "%9 = run_max %8 : f32[a3]"),
    ("%12 = prev %9 : f32[a0,a3]", "%12 = prev %9 : f32[a3]"),
    ("%13 = sub %12 %9 : f32[a0,a3]", "%13 = sub %12 %9 : f32[a3]"),
    ("%14 = exp %13 : f32[a0,a3]", "%14 = exp %13 : f32[a3]"),
  )),
  "the maximum before mask": ("attention_online", (("rmax[a1] %7", "rmax[a1] %6"),)),
  "the maximum before scale and mask": ("attention_online", (("rmax[a1] %7", "rmax[a1] %4"),)),
  "a sum of logits": ("softmax_late_scale", (
    ("rmax[a1]", "sum[a1]"), ("acc_max", "acc_sum"), ("red_max", "red_sum"),
  )),
  "the sum of the parts' maxima": ("mla", (("rmax[a2/k0] %0", "sum[a2/k0] %0"),)),
  "the sum of the ranks' maxima": ("attention_cluster", (
    ("%21 = red_max %20", "%21 = red_sum %20"),
  )),
  "no mask in the first pass": ("gqa_decode", (("rmax[a0] %6", "rmax[a0] %5"),)),
  "nothing": ("softmax_rows", (
    ("= exp %5", "= exp %2"), ("= exp %16", "= exp %15"), ("acc_scaled %10 %9", "acc_sum %10"),
  )),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_other_shifts_are_refused(what):
  name, changes = WRONG[what]
  given = golden(name)
  graph = edited(given.ugraph, *changes)
  assert isinstance(verify(given.region, graph), Proof)
  result = check_shift(given.region, graph)
  assert isinstance(result, Rejection) and result.code == "SHIFT_NOT_MAX", result
  assert re.search(r"exp %\d+ of kernel k\d", result.reason), result
  assert any(f"'{case}'" in result.reason for case in CASES)


def test_a_maximum_may_be_left_out_where_the_logits_are_bounded():
  """|q k| of normalised vectors: the bound is the interval analysis', not 0."""
  given = golden("qknorm_attention")
  record = check_shift(given.region, given.ugraph)
  assert isinstance(record, ShiftRecord)
  seen, bound = record.largest["%23 of kernel k0"]
  assert 0 < seen <= bound < 80


def test_a_wrong_program_without_exponentials_is_no_wrong_shift():
  given = golden("lora")
  graph = edited(given.ugraph, ("const[2]", "const[3]"))
  result = check_shift(given.region, graph)
  assert isinstance(result, Rejection) and result.code == "NOT_EQUIVALENT"
