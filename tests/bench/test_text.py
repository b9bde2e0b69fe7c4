"""Sums over models and their text, on lines made up for it."""

from dataclasses import replace

import pytest
from coverage_table.checks import Check
from coverage_table.kinds import DECODE, ENCODER
from coverage_table.reasons import Reason
from coverage_table.record import Record, all_reasons, codes, spreads
from coverage_table.row import Coverage, Kept, LibraryNodes, Share
from coverage_table.text import columns, table

UNKNOWN, SLOWER = Reason("OP_UNKNOWN", "Slice: _ is odd"), Reason("NOT_FASTER", "N against N")


def line(share, *kept, library=()):
  return Coverage(
    nodes=10, folded=1, unsized=0, candidates=9, regions=5, replaced=2, instances=4,
    replaced_nodes=7, flops=1000, bytes=1000, share=Share(0.7, 0.8, share),
    share_apart=Share(0.8, 0.9, min(1.0, share + 0.1)), before_us=10.0, replaced_us=8.0, after_us=5.0,
    unpriced=1, kept=kept, library=library,
  )  # fmt: skip


APART = LibraryNodes("Conv", 1, (65, 65), 100, 60, "OP_UNKNOWN", by_choice=False)
GOOD = Check("identical", 8, 0.0)
RECORDS = (
  Record("a", DECODE, "fp16", 9, 1.0, 70, 3, line(0.9, Kept(UNKNOWN, 2, 0, 100, {"Slice": 2})), "", GOOD),
  Record(
    "b", DECODE, "fp16", 9, 2.0, 80, 0,
    line(0.7, Kept(SLOWER, 1, 9, 200, {"Add": 1}),
         Kept(UNKNOWN, 2, 0, 40, {"Slice": 1, "Pad": 1}), library=(APART,)), "",
    Check("FAILED", 8, 0.5, "y differs"), Check("passed", 7, 1e-3),
  ),
  Record("c", ENCODER, "fp16", 9, 0.1, error="MODEL_INVALID: nothing there"),
)  # fmt: skip


def test_spreads():
  (decode,) = spreads(RECORDS, lambda c: c.share.bytes)
  assert (decode.kind, decode.models) == (DECODE, 2)
  assert (decode.median, decode.low, decode.high) == (pytest.approx(0.8), 0.7, 0.9)


def test_reasons_are_summed_over_models():
  slower, unknown = all_reasons(RECORDS)
  assert (slower.kept.reason, slower.models) == (SLOWER, 1)
  assert (unknown.kept.reason, unknown.models) == (UNKNOWN, 2)
  assert (unknown.kept.nodes, unknown.kept.bytes) == (4, 140)
  assert unknown.kept.ops == {"Slice": 3, "Pad": 1}
  assert codes([slower, unknown]) == [("NOT_FASTER", 1, 200), ("OP_UNKNOWN", 4, 140)]


def test_what_is_wrong():
  assert [r.is_wrong for r in RECORDS] == [False, True, True]
  assert not replace(RECORDS[1], stock=GOOD).is_wrong
  assert replace(RECORDS[0], emulated=Check("FAILED")).is_wrong


def test_table():
  text = table({"command": "python it", "versions": {"onnx": "1"}}, RECORDS)
  lines = [" ".join(x.split()) for x in text.splitlines()]
  assert "versions: onnx 1" in lines
  assert "a decode step fp16 10+1 5 2x4 70.0 80.0 90.0 100.0 80.0 10.0 5.0 1 70 1.0 - 3 identical -" in lines
  assert "c encoder fp16 - - - - - - - - - - - 0 0 - - - -" in lines
  assert "decode step 2 bytes 80.0 (70.0 - 90.0)" in lines
  assert "optimized: 2 of 3 models" in lines
  assert "stock onnxruntime: 1 FAILED, 1 identical" in lines
  assert "OP_UNKNOWN 4 7.0" in lines
  assert "7.0 4 2 OP_UNKNOWN: Slice: _ is odd [3 Slice, 1 Pad]" in lines
  assert "b 1 Conv 65 6.0 OP_UNKNOWN no" in lines
  assert "c: MODEL_INVALID: nothing there" in lines
  assert "b: stock: FAILED: y differs" in lines


def test_columns_are_aligned():
  assert list(columns(("name", "n"), [("a", "10")])) == ["name   n", "a     10"]
  assert list(columns(("n", "why"), [("1", "a b")], last_left=True)) == ["n  why", "1  a b"]


def test_times_of_a_later_tree():
  """Checks are those of the tree that made them; time and memory those of the later one."""
  later = Record("a", DECODE, "fp16", 9, 0.5, 60, repeat_s=0.1, at_60_s="tune", commit="c2")
  both = replace(RECORDS[0], commit="c1").with_times(later)
  assert (both.seconds, both.memory_mb, both.repeat_s, both.at_60_s) == (0.5, 60, 0.1, "tune")
  assert (both.commit, both.times_of) == ("c1", "c2")
  assert (both.stock, both.coverage) == (RECORDS[0].stock, RECORDS[0].coverage)
