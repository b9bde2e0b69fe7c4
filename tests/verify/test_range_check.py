"""Overflow where the region has none is refused; maxima may go where logits are bounded."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from goldens import GOLDENS, edited, golden, model_region
from small_models import Net

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import DType
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.range_check import (
  RangeCheck,
  RangeRecord,
  proven_exponents,
  softmax_maxima,
)
from mirage_onnx.verify.ranges import largest
from mirage_onnx.verify.region_ugraph import region_graph
from mirage_onnx.verify.rescale import rescaled


def gamma(region, value):
  scale = next(i for i in region.inputs if i.is_weight and len(i.axes) == 1)
  return {scale.tensor.name: np.full(region.extents[scale.axes[0]], value, np.float16)}


@pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)
def test_goldens_are_safe_where_their_regions_are(given):
  check = RangeCheck(given.region)
  record = check.check(given.ugraph)
  assert isinstance(record, RangeRecord), record
  assert record.magnitude is not None and 2.0**-8 <= record.magnitude <= largest(DType.F16)
  for place, interval in record.halves.items():
    assert interval.magnitude <= largest(given.region.outputs[0].dtype), place


def test_an_unnormalised_product_in_16_bits_is_refused():
  given = golden("norm_linear")
  lines = print_ugraph(given.ugraph).splitlines()
  product = next(line for line in lines if "= acc_sum" in line and "C_frag" in line)
  result = RangeCheck(given.region).check(_narrowed(given.ugraph, product))
  assert isinstance(result, Rejection) and result.code == "RANGE"
  assert "of kernel k0 (" in result.reason and "in [-" in result.reason
  assert "6.55e+04" in result.reason


def _narrowed(graph, line):
  text = print_ugraph(graph)
  index = int(line.split("%")[1].split(" ")[0])
  axes, layout = line.split("f32")[1].split(" ")[0], line.split(" ")[-1]
  lines = []
  for old in text.splitlines():
    words = old.split(" ")
    moved = [f"%{int(w[1:]) + 1}" if w.startswith("%") and int(w[1:]) >= index else w for w in words]
    if old == line:
      lines += [old, f"  %{index + 1} = cast %{index} : f16{axes} post {layout}"]
    else:
      lines.append(" ".join(moved))
  return parse_ugraph("\n".join(lines) + "\n")


def test_exponentials_without_a_maximum_are_refused():
  given = golden("softmax_rows")
  graph = edited(
    given.ugraph, ("= exp %5", "= exp %2"), ("= exp %16", "= exp %15"),
    ("acc_scaled %10 %9", "acc_sum %10"),
  )  # fmt: skip
  result = RangeCheck(given.region).check(graph)
  assert isinstance(result, Rejection) and result.code == "RANGE"
  assert "(exp of %15 of kernel k0 in [-3.28e+04, 3.28e+04]) can exceed" in result.reason


def test_an_exponential_that_overflows_harmlessly_is_not():
  """1 / (1 + exp(-x)) is 0 where exp(-x) is infinite."""
  given = golden("gated_mlp")
  record = RangeCheck(given.region).check(given.ugraph)
  assert isinstance(record, RangeRecord)
  assert record.exponents["%8 of kernel k0"].hi > 100


def test_the_scale_of_normalised_logits_decides():
  """|s| <= 8 gamma for a head of 64: exp(8) fits 16 bits, exp(16) does not, exp(400) not fp32."""
  given = golden("qknorm_attention")
  for value, droppable, fits in ((1.0, True, True), (2.0, True, False), (50.0, False, False)):
    check = RangeCheck(given.region, gamma(given.region, value))
    (maximum,) = softmax_maxima(check)
    assert maximum.logits.magnitude == pytest.approx(8 * value, rel=1e-3)
    assert (maximum.droppable, maximum.fits_half) == (droppable, fits)
    assert ("may be dropped" in maximum.reason) == droppable
    result = check.check(given.ugraph)
    assert isinstance(result, Rejection) == (not fits), result
    if isinstance(result, Rejection):
      assert result.code == "RANGE" and "cast of" in result.reason


def test_the_documented_verdict():
  given = golden("qknorm_attention")
  (maximum,) = softmax_maxima(RangeCheck(given.region, gamma(given.region, 1.0)))
  page = Path(__file__).parents[2] / "docs" / "verification.md"
  assert maximum.reason in page.read_text(encoding="utf-8")


def test_the_maximum_of_plain_attention_is_needed():
  for name in ("attention_online", "mla", "gqa_decode", "softmax_rows"):
    (maximum,) = softmax_maxima(RangeCheck(golden(name).region))
    assert not maximum.droppable and maximum.reason.startswith("the maximum is needed")


def test_soft_capped_logits_need_no_maximum(net):
  capped = net.Mul(net.Tanh(net.Mul(net.input(8, 64), 0.1)), 30.0)
  region = model_region(net.model(net.Softmax(capped, axis=-1)))
  (maximum,) = softmax_maxima(RangeCheck(region))
  assert maximum.droppable and not maximum.fits_half
  assert maximum.logits.hi == pytest.approx(30)


def test_an_overflow_that_the_region_has_is_no_fault(net):
  """x^2 in 16 bits overflows in the model itself: inputs are taken as small as it needs."""
  x = net.input(8, 64)
  region = model_region(net.model(net.Mul(net.Mul(x, x), net.Mul(x, x))))
  check = RangeCheck(region)
  assert check.magnitude == 8.0


def test_a_region_that_is_never_safe_is_no_measure(net):
  x = net.input(8, 64)
  region = model_region(net.model(net.Div(x, net.Sub(x, 1e-3))))
  assert RangeCheck(region).magnitude is None


def test_real_weights_are_measured():
  """x * gamma in 16 bits before the norm: the norm of any x is finite, that product if |gamma| <= 1."""
  given = golden("norm_linear")
  small, large = (RangeCheck(given.region, gamma(given.region, g)) for g in (1, 1.01))
  assert isinstance(small.check(given.ugraph), RangeRecord)
  result = large.check(given.ugraph)
  assert isinstance(result, Rejection) and result.code == "RANGE"
  assert "on inputs up to 65504" in result.reason


def test_every_input_is_bounded_by_itself(net):
  """exp(x) ends at 11 in 16 bits, and y at its type's end: y / 4 may be there, 4 y not."""
  x, y = net.input(8, 64), net.input(8, 64)
  region = model_region(net.model(net.Add(net.Exp(x), net.Mul(y, 0.25))))
  check = RangeCheck(region)
  assert check.magnitude == 8.0
  assert [tuple(b.values()) for b in check.boxes] == [(8.0, 8.0), (8.0, 65504.0)]
  wide = model_region(net.model(net.Add(net.Exp(x), net.Mul(y, 4.0))))
  result = check.check(region_graph(wide).ugraph)
  assert isinstance(result, Rejection) and result.code == "RANGE"
  assert "65504 (i1)" in result.reason


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 2.0**63), (ml_dtypes.bfloat16, 2.0**63)])
def test_other_types_reach_further(dtype, most):
  """A square of fp32 or bfloat16 is finite up to the root of the type's end."""
  net = Net(dtype)
  x = net.input(8, 64)
  assert RangeCheck(model_region(net.model(net.Mul(net.Mul(x, x), 0.5)))).magnitude == most


def test_exponents_are_proven_only_with_their_marks():
  given = golden("attention_online")
  check = RangeCheck(given.region)
  facts = check.any_inputs().facts
  proven = proven_exponents(given.ugraph, given.region.extents, facts)
  assert set(proven.values()) == {0.0} and len(proven) == 2
  stale = edited(given.ugraph, ("%10 = sub %7 %9", "%10 = sub %7 %8"))
  assert set(proven_exponents(stale, given.region.extents, facts).values()) == {0.0}
  other = edited(given.ugraph, ("%10 = sub %7 %9", "%10 = sub %4 %9"))
  assert float("inf") in proven_exponents(other, given.region.extents, facts).values()


#: The division behind the product: x g is rounded to fp16 before it.
LATE_DIVISION = """ugraph 1
tensor i0 f16[a1,a0] input
tensor i1 f16[a0] weight
tensor i2 f16[a2,a0] weight
tensor o0 f16[a1,a2] output
kernel k0 grid=a2 cluster=- loop=a0
  %0 = const[1049/1048576] : f32[] post uniform
  %1 = extent[a0] : f32[] post uniform
  %2 = recip %1 : f32[] post uniform
  %3 = load i0 imap=- cmap=- fmap=a0 : f16[a1,a0] loop B_frag
  %4 = cast %3 : f32[a0,a1] loop B_frag
  %5 = square %4 : f32[a0,a1] loop B_frag
  %6 = sum[a0] %5 : f32[a1] loop row
  %7 = acc_sum %6 : f32[a1] post row
  %8 = mul %2 %7 : f32[a1] post row
  %9 = add %0 %8 : f32[a1] post row
  %10 = rsqrt %9 : f32[a1] post row
  %11 = load i2 imap=a2 cmap=- fmap=a0 : f16[a2,a0] loop A_frag
  %12 = load i1 imap=- cmap=- fmap=a0 : f16[a0] loop depth
  %13 = cast %12 : f32[a0] loop depth
  %14 = mul %13 %4 : f32[a0,a1] loop B_frag
  %15 = cast %14 : f16[a0,a1] loop B_frag
  %16 = matmul[a0] %11 %15 : f32[a1,a2] loop C_frag
  %17 = acc_sum %16 : f32[a1,a2] post C_frag
  %18 = mul %10 %17 : f32[a1,a2] post element
  %19 = cast %18 : f16[a1,a2] post element
  save o0 = %19 omap=a2
"""


def test_a_candidate_is_finite_where_the_original_hides_an_overflow():
  """x / sqrt(mean(x x)) of fp16 is 0 beyond 256: a NaN there would spoil what a cache keeps."""
  net = Net(np.float16)
  scale = net.constant(np.full(64, 1.5))
  region = model_region(net.model(net.MatMul(net.rms(net.input(4, 64), scale), net.weight(64, 64))))
  check = RangeCheck(region, gamma(region, 1.5))
  assert [list(box.values()) for box in check.boxes] == [[128.0], [largest(DType.F16)]]
  graph = parse_ugraph(LATE_DIVISION)
  assert isinstance(verify(region, graph), Proof)
  found = check.check(graph)
  assert isinstance(found, Rejection) and found.code == "RANGE" and "(cast of %14" in found.reason
  assert isinstance(check.check(rescaled(graph, [check])), RangeRecord)
  assert isinstance(RangeCheck(region, gamma(region, 1.0)).check(graph), RangeRecord)
