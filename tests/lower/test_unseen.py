"""Iterations of a loop that change nothing, by a constant or what a run says: on what condition, when not."""

from dataclasses import replace

import numpy as np
import pytest
from banded import ADDED, CHOSEN, SELECTED, THERE, banded, banded_text

from mirage_onnx.ir import parse_ugraph, print_ugraph
from mirage_onnx.ir.band import Band
from mirage_onnx.lower.unseen import HIDDEN, early_end, unseen
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray

CAUSAL = "..0 else 0"


def found(text):
  graph = parse_ugraph(text)
  return unseen(graph.kernels[0], {t.name: t for t in graph.tensors})


@pytest.mark.parametrize(
  ("text", "floor"),
  [
    (banded_text(CAUSAL, SELECTED), -65404.0),
    (banded_text(CAUSAL, CHOSEN), -28.0),
    (banded_text(CAUSAL, THERE), -28.0),
    (banded_text("-63..0 else -65504", ADDED, kind="f16"), -28.0),
    (banded_text(CAUSAL, SELECTED, low="-1000"), -900.0),
    # Adding 100 to the least number changes nothing: a row that has it has seen nothing.
    (banded_text(CAUSAL, SELECTED, low=str(-(2**128 - 2**104))), -(2.0**128 - 2.0**105)),
  ],
)
def test_what_hides_and_the_condition(text, floor):
  seen = found(text)
  assert seen is not None and seen.floor == floor
  graph = parse_ugraph(text)
  assert {graph.kernels[0].ops[i].op for i in seen.running} == {"run_max"}


@pytest.mark.parametrize(
  "text",
  [
    # Adding less leaves something of a large score; so does a mask that hides too little.
    banded_text(CAUSAL, CHOSEN, low="-10000"),
    banded_text(CAUSAL, SELECTED, low="-100"),
    banded_text("..0 else -1000", ADDED, kind="f16"),
    banded_text("..0 else 0", ADDED, kind="f16"),
    # What is seen and what is not are the wrong way round.
    banded_text(CAUSAL, SELECTED).replace("select %5 %2 %4", "select %5 %4 %2"),
    # Another sum goes through the loop, of which nothing is hidden.
    banded_text(CAUSAL, SELECTED).replace("= sum[a1] %10", "= sum[a1] %2"),
    # The exponential is of something that is not below the maximum.
    banded_text(CAUSAL, SELECTED).replace("= exp %9 :", "= exp %2 :"),
    # No constant.
    banded_text(CAUSAL, SELECTED).replace(f" seen a1:a3 {CAUSAL}", ""),
    # Another axis is walked, or its rows are not what the blocks have.
    banded_text(CAUSAL, SELECTED).replace(f"seen a1:a3 {CAUSAL}", f"seen a3:a1 {CAUSAL}"),
  ],
)
def test_what_hides_nothing(text):
  assert found(text) is None


def test_the_band_is_text():
  for text in (banded_text("-5..0 else 0"), banded_text("..-3 else 0"), banded_text("2.. else 0")):
    assert print_ugraph(parse_ugraph(text)) == text


def test_the_columns_that_rows_see():
  seen = found(banded_text("-63..0 else 0", SELECTED))
  assert seen.ends(0, 64, 512) == (0, 64)
  assert seen.ends(128, 64, 512) == (65, 192)
  assert seen.ends(448, 64, 512) == (385, 512)
  # Rows that see nothing have one column all the same: no loop is empty.
  ahead = found(banded_text("600.. else 0", SELECTED))
  assert ahead.ends(0, 64, 512) == (511, 512)
  before = found(banded_text("..-100 else 0", SELECTED))
  assert before.ends(0, 64, 512) == (0, 1)
  assert seen.share(512, 512, 64, 64) == (1 + 7 * 2) / 64
  assert found(banded_text(CAUSAL, SELECTED)).share(512, 512, 64, 64) == 36 / 64


def test_every_column_a_row_sees_is_between_the_ends():
  rng = np.random.default_rng(0)
  for _ in range(300):
    least, most = sorted(int(x) for x in rng.integers(-90, 90, 2))
    ends = (None if rng.random() < 0.3 else least, None if rng.random() < 0.3 else most)
    seen = found(banded_text(CAUSAL, SELECTED))
    seen = type(seen)(Band("a3", "a1", *ends, seen.band.outside), seen.running, seen.floor)
    first, rows, columns = (int(x) for x in rng.integers(1, 70, 3))
    begin, end = seen.ends(first, rows, columns)
    assert 0 <= begin < end <= columns
    distance = np.arange(columns)[None, :] - np.arange(first, first + rows)[:, None]
    visible = np.flatnonzero(seen.band.covers(distance).any(axis=0))
    assert all(begin <= v < end for v in visible)


@pytest.mark.parametrize("how", [SELECTED, CHOSEN])
def test_hidden_columns_change_nothing(how):
  """The claim itself, without a kernel: with all columns and with those in the band alone, to the bit."""
  case = banded(banded_text("-20..0 else 0", how), 16, 16, 2, a0=1, a1=64, a3=64)
  rng = np.random.default_rng(1)
  extents, graph, given = case.all_extents(), case.graph, {}
  for t in graph.tensors:
    if t.role == "input":
      given[t.name] = rng.standard_normal([extents[a] for a in t.axes])
  distance = np.arange(64)[None, :] - np.arange(64)[:, None]
  given["i3"] = ((distance <= 0) & (distance >= -20)).astype(float)

  def run(columns):
    some = {n: x if n == "i1" else (x[:, :columns]) for n, x in given.items()}
    axes = {t.name: t.axes for t in graph.tensors}
    inputs = {n: NamedArray(x[None], axes[n]) for n, x in some.items()}
    sizes = {**case.extents, "a1": columns}
    return interpret_ugraph(Rounded(), graph, case.params, sizes, inputs)["o0"].aligned(("a0", "a3", "a4"))[0]

  whole, half = run(64), run(32)
  assert (whole[:, :32] == half[:, :32]).all()
  assert not (whole[:, 32:] == half[:, 32:]).all()
  assert HIDDEN < 0


#: One query against keys and values of a cache, with a running maximum.
ATTENDED = """ugraph 1
tensor i1 i32[] input
tensor i2 f16[a3,a1] input
tensor i3 f16[a0,a1] input upto a0<=i1
tensor i4 f16[a0,a4] input upto a0<=i1
tensor i0 i32[a0] weight
tensor o0 f16[a3,a4] output
kernel k0 grid=a3 cluster=a0 loop=a0
  %0 = load i0 imap=- cmap=a0 fmap=a0 : i32[a0] loop depth
  %1 = load i1 imap=- cmap=- fmap=- : i32[] loop uniform
  %2 = cast %0 : f32[a0] loop depth
  %3 = cast %1 : f32[] loop uniform
  %4 = less_equal %2 %3 : f32[a0] loop column
  %5 = load i3 imap=- cmap=a0 fmap=a0 : f16[a0,a1] loop shared
  %6 = load i2 imap=a3 cmap=- fmap=- : f16[a3,a1] loop A_frag
  %7 = matmul[a1] %6 %5 : f32[a0,a3] loop C_frag
  %8 = const[-340282346638528859811704183484516925440] : f32[] loop uniform
  %9 = select %4 %7 %8 : f32[a0,a3] loop C_frag
  %10 = rmax[a0] %9 : f32[a3] loop row
  %11 = run_max %10 : f32[a3] loop row
  %12 = const[-1] : f32[] loop uniform
  %13 = mul %12 %11 : f32[a3] loop row
  %14 = add %13 %9 : f32[a0,a3] loop C_frag
  %15 = exp %14 : f32[a0,a3] loop C_frag
  %16 = sum[a0] %15 : f32[a3] loop row
  %17 = prev %11 : f32[a3] loop row
  %18 = sub %17 %11 : f32[a3] loop row
  %19 = exp %18 : f32[a3] loop row
  %20 = acc_scaled %16 %19 : f32[a3] post row
  %21 = acc_max %10 : f32[a3] post row
  %22 = red_max %21 : f32[a3] post row
  %23 = sub %21 %22 : f32[a3] post row
  %24 = exp %23 : f32[a3] post row
  %25 = mul %20 %24 : f32[a3] post row
  %26 = red_sum %25 : f32[a3] post row
  %27 = recip %26 : f32[a3] post row
  %28 = load i4 imap=- cmap=a0 fmap=a0 : f16[a0,a4] loop shared
  %29 = const[0] : f32[] loop uniform
  %30 = cast %28 : f32[a0,a4] loop B_frag
  %31 = select %4 %30 %29 : f32[a0,a4] loop B_frag
  %32 = cast %31 : f16[a0,a4] loop B_frag
  %33 = cast %15 : f16[a0,a3] loop A_frag
  %34 = matmul[a0] %33 %32 : f32[a3,a4] loop C_frag
  %35 = acc_scaled %34 %19 : f32[a3,a4] post C_frag
  %36 = mul %35 %24 : f32[a3,a4] post C_frag
  %37 = red_sum %36 : f32[a3,a4] post C_frag
  %38 = mul %27 %37 : f32[a3,a4] post C_frag
  %39 = cast %38 : f16[a3,a4] post C_frag
  save o0 = %39 omap=a3
"""


def ends(text):
  graph = parse_ugraph(text)
  return early_end(graph, graph.kernels[0])


def test_a_softmax_of_what_is_seen():
  assert ends(ATTENDED) == "i3"


#: What is changed, and what the loop would miss behind the end.
GO_ON = {
  "another limit of the values": ("i4 f16[a0,a4] input upto a0<=i1", "i4 f16[a0,a4] input upto a0<i1"),
  "no limit": (" upto a0<=i1", ""),
  "scores that are hidden count": ("const[-340282346638528859811704183484516925440]", "const[-10000]"),
  "values that are hidden count": ("%29 = const[0]", "%29 = const[1]"),
  "the row at the end": ("%4 = less_equal", "%4 = less"),
  "the other way round": ("%9 = select %4 %7 %8", "%9 = select %4 %8 %7"),
  "a maximum of others": ("%13 = mul %12 %11", "%13 = mul %12 %10"),
  "twice the maximum": ("%12 = const[-1]", "%12 = const[-2]"),
  "what was added is scaled": ("%18 = sub %17 %11", "%18 = sub %17 %10"),
  "a maximum of all": ("%11 = run_max %10", "%11 = run_max %2"),
}


@pytest.mark.parametrize("why", GO_ON)
def test_loops_that_go_on(why):
  old, new = GO_ON[why]
  assert old in ATTENDED
  assert ends(ATTENDED.replace(old, new)) is None


def test_values_as_they_are():
  """Of a copy, which has zeros behind the end, they change nothing; of what lanes load they may."""
  copied = ATTENDED.replace("%32 = cast %31", "%32 = cast %30")
  assert ends(copied) == "i3"
  assert ends(copied.replace("f16[a0,a4] loop shared", "f16[a0,a4] loop B_frag")) is None


def test_places_are_known_by_being_alone():
  """Of two tensors that are compared with the length, one may be no place."""
  text = ATTENDED.replace("tensor i0", "tensor i5 i32[a0] weight\ntensor i0").replace(
    "  %5 = load i3", "  %40 = load i5 imap=- cmap=a0 fmap=a0 : i32[a0] loop depth\n  %5 = load i3"
  )
  lines = text.splitlines()
  at = next(n for n, line in enumerate(lines) if line.startswith("  %40"))
  # Numbers follow their order: the new value is the last but the comparison with it.
  load = lines.pop(at).replace("%40", "%40")
  save = next(n for n, line in enumerate(lines) if line.startswith("  save"))
  lines[save:save] = [load, "  %41 = less_equal %40 %1 : f32[a0] loop column"]
  assert ends("\n".join(lines) + "\n") is None


def test_a_kernel_of_another_name_is_the_same():
  """As the code generator gives kernels names of their own."""
  graph = parse_ugraph(ATTENDED)
  assert early_end(graph, replace(graph.kernels[0], name="k9")) == "i3"
