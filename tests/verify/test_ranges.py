"""Infinities are followed as IEEE arithmetic does: some vanish, some become NaN."""

import pytest
from golden_texts import PROGRAMS

from mirage_onnx.ir import DType, parse_ugraph
from mirage_onnx.ir import interval as iv
from mirage_onnx.ir.interval import Interval
from mirage_onnx.verify.program_lines import ugraph_lines
from mirage_onnx.verify.ranges import follow, largest
from mirage_onnx.verify.term_bounds import Bounds, Fact

HEAD = """ugraph 1
tensor i0 f32[a0] input
tensor i1 f32[a0] input
tensor o0 {dtype}[a0] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f32[a0] post vector
  %1 = load i1 imap=a0 cmap=- fmap=- : f32[a0] post vector
"""


def reach(body, dtype="f32", x=200.0, y=200.0, **how):
  """What o0 can be for |i0| <= x and |i1| <= y; ``body``: op %a ..., the last is saved."""
  lines = [f"  %{n} = {op} : {dtype}[a0] post vector" for n, op in enumerate(body.split("; "), 2)]
  save = f"  save o0 = %{len(lines) + 1} omap=a0\n"
  head = HEAD if dtype == "f32" else HEAD.replace("f32", dtype)
  graph = parse_ugraph(head.format(dtype=dtype) + "\n".join(lines) + "\n" + save)
  facts = {"i0": Fact(iv.symmetric(x)), "i1": Fact(iv.symmetric(y))}
  return follow(ugraph_lines(graph), Bounds({"a0": 8}, facts), **how)["o0"]


@pytest.mark.parametrize(
  "body",
  [
    "exp %0; const[1]; add %2 %3; recip %4",  # 1 / inf = 0
    "exp %0; tanh %2",  # tanh(inf) = 1
    "exp %0; sigmoid %2",
    "exp %0; div %1 %2; min %1 %0",
    "exp %0; max %0 %2; neg %3; exp %4",  # exp(-inf) = 0
    "exp %0; min %0 %2; abs %3",
    "square %0; square %2; square %3; mul %4 %1",  # 6.6e20
    "square %0; rsqrt %2; mul %3 %0",  # of a number that is not 0
  ],
)
def test_harmless_infinities(body):
  found = reach(body)
  assert found.finite, found


@pytest.mark.parametrize(
  ("body", "origin"),
  [
    ("exp %0; sub %2 %2", "%2"),  # inf - inf
    ("exp %0; mul %2 %1", "%2"),  # inf * 0
    ("exp %0; exp %1; div %2 %3", "%2"),  # inf / inf
    ("exp %0; add %2 %1", "%2"),
    ("exp %0; neg %2; add %2 %3", "%2"),
    ("exp %0; sin %2", "%2"),
    ("exp %0; neg %2; log %3", "%2"),
    ("square %0; square %2; exp %3; recip %4; div %0 %5", "%4"),
    ("sub %0 %1; recip %2", "%3"),  # a divisor of either sign
    ("exp %0; rsqrt %2", "%2"),  # 1 / sqrt(1e39) is not 0
    ("exp %0; log %2", "%2"),
    ("exp %0; recip %2; recip %3", "%2"),
    ("neg %0; exp %2; recip %3", "%3"),  # 1 / exp(-200) overflows
  ],
)
def test_infinities_that_stay(body, origin):
  found = reach(body)
  assert not found.finite
  assert found.origin == f"{origin} of kernel k0"


def test_types_have_their_largest_numbers():
  assert largest(DType.F16) == 65504 and largest(DType.BF16) > 3e38
  assert not reach("mul %0 %1; mul %2 %0", "f16").finite
  assert reach("mul %0 %1; mul %2 %0", "bf16").finite
  assert reach("mul %0 %1; mul %2 %0", "f16", 20, 20).finite
  # 1 / 65504 is not 0.
  assert not reach("mul %0 %1; square %2; rsqrt %3", "f16").finite
  assert reach("mul %0 %1", "f16", 2, 3).interval == Interval(-6.0, 6.0)


def test_sums_and_products_of_infinities():
  text = PROGRAMS["sums_of_infinities"]
  lines = ugraph_lines(parse_ugraph(text))
  for magnitude, finite in ((60.0, True), (200.0, False)):
    facts = {"i0": Fact(iv.symmetric(magnitude)), "i1": Fact(iv.SIGNED_UNIT)}
    found = follow(lines, Bounds({"a0": 4, "a1": 8, "a2": 4}, facts))
    assert found["o0"].finite == found["o1"].finite == finite
    # All summands are positive: their sum is infinite, but no NaN.
    assert found["o0"].lost == (not finite) and not found["o1"].lost


@pytest.mark.parametrize(
  ("body", "hidden"),
  [
    ("mul %0 %0; const[1]; add %2 %3; sqrt %4; div %1 %5", True),  # y / inf = 0
    ("square %0; const[1]; add %2 %3; rsqrt %4; mul %5 %1", True),
    ("square %0; const[2]; const[1]; div %2 %3; add %5 %4; recip %6", True),
    ("square %0; mul %2 %1", False),  # inf where y > 0, NaN where it is 0
    ("square %0; square %1; const[1]; add %3 %4; div %2 %5", False),  # inf / inf
    ("square %0; neg %2; exp %3", False),  # exact or 0 as well, but not followed
    ("mul %0 %1; const[1]; add %2 %3; div %0 %4", False),  # -inf as well as inf
  ],
)
def test_an_overflow_of_fp16_may_be_hidden(body, hidden):
  """What an original makes of it is wrong, but a number."""
  assert not reach(body, "f16", 1000.0, 1000.0).finite
  found = reach(body, "f16", 1000.0, 1000.0, hides=True)
  assert found.finite == hidden, found
