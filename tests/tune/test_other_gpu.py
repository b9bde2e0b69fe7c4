"""A GPU that nobody has measured: ONNX Runtime is not thought slower than it can be, and ours has to win."""

import json
from dataclasses import replace

import pytest

from mirage_onnx.target import H100, H200, TARGETS, Rated
from mirage_onnx.targets import get_target
from mirage_onnx.tune.baseline import load_table
from mirage_onnx.tune.known_sizes import load_known
from mirage_onnx.tune.other_gpu import LEAST_MARGIN, MOST_ROWS, known_like, least_margin, measured_like

SHEETS = [t for t in TARGETS.values() if t.rated is Rated.DATASHEET]
#: A GPU without a row, of which calibrate has left a table.
CALIBRATED = replace(
  get_target("sm_86x46"), rated=Rated.MEASURED, table=json.dumps({"ort": "1", "ops": {}, "matmul": []})
)


@pytest.mark.parametrize("target", SHEETS, ids=lambda t: t.name)
def test_times_are_between_what_physics_and_the_slowest_part_say(target):
  """Reading a weight takes what the published bandwidth says, and no part of a chip is slower than that."""
  table, measured = load_table(target), load_table(H200)
  assert table.source.endswith(f"scaled to {target.name}")
  assert {op: [e for e, _ in points] for op, points in table.ops.items()} == {
    op: [e for e, _ in points] for op, points in measured.ops.items()
  }
  worst = max(H200.published_tbps / target.published_tbps, H200.published_tflops / target.published_tflops,
              H200.multiprocessors / target.multiprocessors)  # fmt: skip
  for (m, k, n, us), (*_, there) in zip(table.matmul, measured.matmul, strict=True):
    assert us >= 2 * k * n / (target.published_tbps * 1e6), (m, k, n)
    read_us = 2 * k * n / (0.9 * target.published_tbps * 1e6)
    assert us <= max(there * max(worst, 1.0) * 1.6, read_us) + 2, (m, k, n)
  for op, points in table.ops.items():
    for (_, us), (_, there) in zip(points, measured.ops[op], strict=True):
      assert target.launch_us <= us <= there * max(worst, 1.0) * 1.6 + 1, op


@pytest.mark.parametrize("target", [*SHEETS, CALIBRATED], ids=lambda t: t.name)
def test_only_products_of_few_rows_are_known(target):
  """Where our kernels were not measured, whatever is known of ONNX Runtime's."""
  known = load_known(target)
  rows = [r for found in known.products.values() for r, _ in found]
  assert max(rows) == MOST_ROWS and known.behind_function_rows <= MOST_ROWS
  assert known.most_rows(4096 * 4096, "f16") == MOST_ROWS


def test_the_margin_is_wider_where_nothing_was_measured():
  for target in SHEETS:
    assert (least_margin(target, 0.2), least_margin(target, 0.6)) == (LEAST_MARGIN, 0.6)
    assert measured_like(target) is H200
  for target in (H200, H100):  # both sides were measured
    assert least_margin(target, 0.2) == 0.2 and known_like(target) is measured_like(target) is None
    assert load_known(target).most_rows(4096 * 4096, "f16") > 4096 and load_table(target) is not None
  # Of one that calibrate has seen ONNX Runtime was measured, kernels of ours were not.
  assert least_margin(CALIBRATED, 0.2) == LEAST_MARGIN and measured_like(CALIBRATED) is None
  assert known_like(CALIBRATED) is not None and load_table(CALIBRATED).source.endswith(CALIBRATED.gpu)


def test_nothing_is_predicted_where_not_even_the_chip_is_known():
  unknown = get_target("sm_86x46")
  assert measured_like(unknown) is None and load_table(unknown) is None and load_known(unknown) is None
