"""The profiles: limits agree with each other, features with the instructions, measurements are there."""

import json
from dataclasses import fields

import pytest

from mirage_onnx.custom_op.plan import MAX_SMEM_BYTES
from mirage_onnx.targets import ARCHITECTURES, TARGETS, Rated, Target, table_path
from mirage_onnx.tune.known_sizes import load_known
from mirage_onnx.tune.other_gpu import MOST_ROWS


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_columns_agree(target):
  assert TARGETS[target.name] is target and target.name == target.name.lower()
  assert target.arch.removeprefix("sm_").rstrip("af") == "{}{}".format(*target.capability)
  assert ARCHITECTURES[target.arch].suffix == target.suffix and target.suffix.startswith(
    target.arch.replace("_", "")
  )
  assert target.smem_bytes + target.reserved_smem_bytes <= target.smem_per_sm_bytes
  assert target.has_clusters == (target.max_cluster > 1)
  assert target.has_pdl == (target.capability >= (9, 0)) and target.has_pdl >= target.has_clusters
  assert all(getattr(target, f.name) for f in fields(Target) if f.type in ("int", "float", int, float))
  assert target.smem_bytes <= MAX_SMEM_BYTES


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_its_tables_were_measured_on_it(target):
  table = table_path(target.name)
  if not table.is_file():
    pytest.skip("nothing is predicted for it")
  assert target.gpu in json.loads(table.read_text())["gpu"]
  # Without sizes at which our kernels were measured on it: those of a GPU like it, of few rows only, or
  # nothing is chosen for it without a GPU, and the table says what ONNX Runtime takes.
  known = load_known(target)
  assert table_path(f"{target.name}_known").is_file() or known is None or known == known.of_rows(MOST_ROWS)


def test_every_table_is_of_a_target():
  names = {p.name.removesuffix(".json").removesuffix("_known") for p in table_path("x").parent.iterdir()}
  assert names - {"ort_fusions", "operators"} <= {*TARGETS}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_no_rate_is_above_what_is_published(target):
  """Reads are near the bandwidth, a library's products near the peak: the measured rows say how near."""
  assert 0.9 <= target.stream_tbps / target.published_tbps <= 1.0
  assert 0.7 <= target.mma_tflops / target.published_tflops <= 0.85
  assert target.l2_tbps > target.stream_tbps / 2
  if target.rated is Rated.DATASHEET:
    assert TARGETS[target.ranked_by].rated is Rated.MEASURED
