"""What a constant says of the iterations of a loop: which change nothing, on what condition, and when not."""

import numpy as np
import pytest
from banded import ADDED, CHOSEN, SELECTED, THERE, banded, banded_text

from mirage_onnx.ir import parse_ugraph, print_ugraph
from mirage_onnx.ir.band import Band
from mirage_onnx.lower.unseen import HIDDEN, unseen
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
