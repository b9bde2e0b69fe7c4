"""The profiles: limits agree with each other, features with the instructions, measurements are there."""

import json
from dataclasses import fields

import pytest

from mirage_onnx.errors import MirageError
from mirage_onnx.targets import TARGETS, Target, get_target, table_path


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_the_columns_agree(target):
  assert TARGETS[target.name] is target and target.name == target.name.lower()
  assert target.arch.removeprefix("sm_").rstrip("af") == "{}{}".format(*target.capability)
  assert target.suffix == target.arch.replace("_", "")
  assert target.smem_bytes + target.reserved_smem_bytes <= target.smem_per_sm_bytes
  assert target.has_clusters == (target.max_cluster > 1)
  assert target.has_clusters == target.has_pdl == (target.capability >= (9, 0))
  assert all(getattr(target, f.name) for f in fields(Target) if f.type in ("int", "float", int, float))


@pytest.mark.parametrize("target", TARGETS.values(), ids=str)
def test_its_tables_were_measured_on_it(target):
  table = table_path(target.name)
  if not table.is_file():
    pytest.skip("nothing is predicted for it")
  assert target.gpu in json.loads(table.read_text())["gpu"]
  assert table_path(f"{target.name}_known").is_file()


def test_every_table_is_of_a_target():
  names = {p.name.removesuffix(".json").removesuffix("_known") for p in table_path("x").parent.iterdir()}
  assert names - {"ort_fusions"} <= {*TARGETS}


def test_a_name_in_any_case():
  assert get_target("H200") is TARGETS["h200"]
  with pytest.raises(MirageError, match=r"no target .b200.; known: .*h200"):
    get_target("b200")
