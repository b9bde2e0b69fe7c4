"""Loops that leave out what a constant hides: right where rows see nothing, and as text."""

import re
from dataclasses import replace

import numpy as np
import pytest
from banded import ADDED, SELECTED, THERE, banded, banded_text
from tiled_kernels import near

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.ir import parse_ugraph
from mirage_onnx.target import H100

CAUSAL = "..0 else 0"
#: Of f32: adding 100 leaves it as it is.
LEAST = "-340282346638528859811704183484516925440"


def emitted(case):
  graph = case.graph
  return emit_kernel(graph, graph.kernels[0], case.params[0], case.all_extents(), H100)


#: Of all sizes, stages and ways to hide; rows that see nothing are in ``drawn_mask``.
CASES = {
  "causal": banded(banded_text(CAUSAL), 64, 64, 2, a1=200, a3=200),
  "late product": banded(banded_text(CAUSAL), 64, 64, 3, a1=264, a3=200),
  "two warpgroups": banded(banded_text(CAUSAL), 128, 64, 3, a1=392, a3=330),
  "window": banded(banded_text("-70..0 else 0"), 64, 64, 2, a1=328, a3=328),
  "window, late product": banded(banded_text("-70..3 else 0"), 64, 64, 3, a1=328, a3=328),
  "past": banded(banded_text("..130 else 0"), 64, 64, 2, a1=264, a3=130),
  "future": banded(banded_text("0.. else 0"), 64, 64, 3, a1=264, a3=264),
  "nothing at first": banded(banded_text("..-80 else 0"), 64, 64, 2, a1=264, a3=200),
  "selected": banded(banded_text(CAUSAL, SELECTED), 64, 64, 2, a1=200, a3=200),
  "selected, the least number": banded(banded_text(CAUSAL, SELECTED, low=LEAST), 64, 64, 2, a1=200, a3=200),
  "added": banded(banded_text("-100..0 else -65504", ADDED, kind="f16"), 64, 64, 2, a1=264, a3=264),
  "keys of a run": banded(banded_text(CAUSAL, THERE), 64, 64, 2, a1=272, a3=272),
  "sharp": banded(banded_text("..0 else 0 sharp"), 64, 64, 2, a1=200, a3=200),
  "sharp, late product": banded(
    banded_text("..0 else -65504 sharp", ADDED, kind="f16"), 128, 64, 3, a1=392, a3=330
  ),
  "sharp, past": banded(banded_text("..130 else 0 sharp"), 64, 64, 2, a1=264, a3=130),
  "sharp, nothing at first": banded(banded_text("..-80 else 0 sharp"), 64, 64, 2, a1=264, a3=200),
  "sharp window": banded(
    banded_text("-70..3 else -65504 sharp", ADDED, kind="f16"), 64, 64, 3, a1=328, a3=328
  ),
  "sharp future": banded(banded_text("0.. else 0 sharp"), 64, 64, 3, a1=264, a3=264),
  "sharp, selected": banded(banded_text("..0 else 0 sharp", SELECTED), 64, 64, 2, a1=200, a3=200),
  "sharp, keys of a run": banded(banded_text("..0 else 0 sharp", THERE), 64, 64, 2, a1=272, a3=272),
  "mma": banded(banded_text(CAUSAL), 64, 32, 2, "mma", a1=200, a3=200),
  "mma, window": banded(banded_text("-50..0 else 0"), 32, 16, 3, "mma", a1=136, a3=136),
}


def test_right_in_the_emulator():
  for case in CASES.values():
    assert "turns" in emitted(case).text
  near(CASES.values(), bound=6e-3)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("sharp")])
def test_a_mask_of_which_its_band_says_everything_is_not_read(name):
  """And tiles that are seen whole have a loop of their own, without it, unless the band begins somewhere."""
  text = emitted(CASES[name]).text
  assert "g_i3" not in text.partition("{")[2]
  ends = "window" in name or "future" in name
  first, *others = text.split("for (int step = ")[1:]
  assert len(others) == (not ends)
  by_place = re.compile(r"first_a1\w* \+ \w+ - \(first_a3")
  assert bool(by_place.search(first)) == ends
  assert all(by_place.search(other) for other in others)


@pytest.mark.parametrize("blind", [False, True])
def test_a_block_in_which_all_rows_see_something_reads_no_other_columns(blind):
  """What lies in columns that nobody sees may be anything, unless a row of the block sees nothing."""
  case = banded(banded_text(CAUSAL), 64, 64, 2, a0=1, a1=256, a3=64)
  rng = np.random.default_rng(0)
  q, k, v = (rng.standard_normal((1, n, 64)).astype(np.float16) for n in (64, 256, 256))
  k[:, 64:] = v[:, 64:] = np.nan
  mask = np.tri(64, 256, dtype=bool)
  mask[7, :] &= not blind
  y = np.zeros((1, 64, 64), np.float16)
  compile_kernels([emitted(case)]).run({"i0": k, "i1": q, "i2": v, "i3": mask, "o0": y})
  assert np.isnan(y[0, 7]).all() == blind
  assert blind or np.isfinite(y).all()


def test_a_row_whose_scores_are_all_low_has_the_rest_too():
  """Scores of -65504 that are seen are no higher than those that -65504 is added to."""
  case = banded(banded_text(CAUSAL), 64, 64, 2, a0=1, a1=256, a3=64)
  rng = np.random.default_rng(0)
  q, k, v = (rng.standard_normal((1, n, 64)).astype(np.float16) for n in (64, 256, 256))
  mask = np.tri(64, 256, dtype=bool)
  q[0, 0], k[0, 0] = 32, -32  # one score, of -65536
  y = np.zeros((1, 64, 64), np.float16)
  compile_kernels([emitted(case)]).run({"i0": k, "i1": q, "i2": v, "i3": mask, "o0": y})
  s = q[0].astype(float) @ k[0].astype(float).T + np.where(mask, 0, -65504)
  p = np.exp(s - s.max(1, keepdims=True))
  want = p @ v[0].astype(float) / p.sum(1, keepdims=True)
  assert p[0, 1:].sum() > p[0, 0]
  assert np.abs(y[0] - want).max() < 1e-2


@pytest.mark.parametrize(
  "change",
  [
    {"stages": 4},  # all steps are on their way at once
    {"stages": 1},
    {"cluster": 2},
  ],
)
def test_where_all_steps_are_done(change):
  case = banded(banded_text(CAUSAL), 64, 64, 2, a1=256, a3=256)
  params = replace(case.params[0], **change)
  graph = case.graph
  text = emit_kernel(
    graph, graph.kernels[0], params, replace(case, params=(params,)).all_extents(), H100
  ).text
  assert "turns" not in text


def test_blocks_with_most_to_do_come_first():
  """Of all heads: rows are the slowest dimension, backwards where the last ones see most."""
  source = emitted(CASES["causal"])
  assert "(3 - ptx::block_y()) * 64" in source.text and source.grid == (2, 4, 1)
  assert "first_a3 = ptx::pinned(ptx::block_y() * 64)" in emitted(CASES["future"]).text
  assert "first_a3 = ptx::pinned((5 - ptx::block_x()) * 64)" in emitted(CASES["window"]).text
  plain = replace(CASES["causal"], text=banded_text(CAUSAL).replace(f" seen a1:a3 {CAUSAL}", ""))
  assert "turns" not in emitted(plain).text and parse_ugraph(plain.text).tensor("i3").band is None


def test_a_batch_that_a_launch_counts():
  """The blocks of the batch share x, whose dimension comes first; rows stay the slowest."""
  case = CASES["causal"]
  graph, params = case.graph, case.params[0]
  source = emit_kernel(graph, graph.kernels[0], params, {**case.extents, "a0": 7}, H100, frozenset({"a0"}))
  assert "turns" in source.text and "ptx::block_x()" in source.text
  rng = np.random.default_rng(0)
  module = compile_kernels([source])
  for batch in (1, 3):
    q, k, v = (rng.standard_normal((batch, 200, 64)).astype(np.float16) for _ in range(3))
    mask, y = np.tri(200, dtype=bool), np.full((batch, 200, 64), np.nan, np.float16)
    mask[3] = False
    module.run({"i0": k, "i1": q, "i2": v, "i3": mask, "o0": y}, [0], sizes={"a0": batch})
    s = np.einsum("bqd,bkd->bqk", q, k, dtype=float) + np.where(mask, 0, -65504)
    p = np.exp(s - s.max(2, keepdims=True))
    want = np.einsum("bqk,bkd->bqd", p / p.sum(2, keepdims=True), v.astype(float))
    assert np.abs(y - want).max() < 6e-3 * np.abs(want).max()
