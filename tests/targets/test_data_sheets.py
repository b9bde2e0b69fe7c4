"""docs/data_sheets.md has the figures of every row that is not measured, and they agree among themselves."""

import re
from pathlib import Path

import pytest

from mirage_onnx.targets import TARGETS, Rated

PAGE = (Path(__file__).parents[2] / "docs" / "data_sheets.md").read_text()
ROWS = {
  cells[0]: cells[1:]
  for line in PAGE.splitlines()
  if line.startswith("| ") and len(cells := [c.strip() for c in line.strip("| ").split(" | ")]) == 8
}
PUBLISHED = [t for t in TARGETS.values() if t.rated is Rated.DATASHEET and t.name != "sm_90"]
#: Operations of a multiprocessor's tensor cores in a cycle, fp16 with fp32 sums.
PER_CYCLE = {"sm_80": 2048, "sm_86": 1024, "sm_87": 2048, "sm_89": 1024, "sm_90a": 4096, "sm_100a": 8192,
             "sm_103a": 8192, "sm_120a": 1024, "sm_121a": 1024}  # fmt: skip
#: GeForce: half of it with fp32 sums.
HALVED = {"rtx3090", "rtx4090", "rtx5090"}


@pytest.mark.parametrize("target", PUBLISHED, ids=lambda t: t.name)
def test_the_page_has_the_figures_of_the_row(target):
  processors, l2, mhz, gbps, tflops, pages, _ = ROWS[target.name]
  assert target.multiprocessors == int(processors) and target.l2_bytes == float(l2) * 2**20
  assert target.cycles_per_us == float(mhz)
  assert target.published_tbps == pytest.approx(float(gbps) / 1e3)
  assert target.published_tflops == float(tflops)
  assert re.search(r"\w\.\w", pages), "a page is named"


def test_every_row_of_the_page_is_a_target():
  assert set(ROWS) - {"row", "---"} == {t.name for t in PUBLISHED}


@pytest.mark.parametrize("target", [t for t in PUBLISHED if t.arch in PER_CYCLE], ids=lambda t: t.name)
def test_products_are_what_the_tensor_cores_do(target):
  """Multiprocessors, clock and operations in a cycle give what is published, but for the clock it is of."""
  each = PER_CYCLE[target.arch] / (2 if target.name in HALVED else 1)
  made = target.multiprocessors * target.cycles_per_us * each / 1e6
  assert 0.9 < made / target.published_tflops < 1.25, made
