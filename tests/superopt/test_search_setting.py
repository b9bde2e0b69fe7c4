"""What a kept result depends on: equal settings have equal texts, in every process."""

import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import pytest

from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search_setting import (
  differing_parts,
  entry_key,
  generator_digest,
  setting_text,
)
from mirage_onnx.target import H200

SETTING = setting_text(H200, ["a", "b"], bound=SearchBound(), grids=frozenset({"x", "y"}))


def test_every_part_decides():
  others = {
    "target": setting_text(replace(H200, launch_us=1.0), ["a", "b"], bound=SearchBound(), grids={"x", "y"}),
    "axioms": setting_text(H200, ["b", "a"], bound=SearchBound(), grids={"x", "y"}),
    "bound": setting_text(H200, ["a", "b"], bound=SearchBound(operators=7), grids={"x", "y"}),
    "grids": setting_text(H200, ["a", "b"], bound=SearchBound(), grids={"x, y"}),
  }
  for part, other in others.items():
    assert differing_parts(SETTING, other) == (part,)
  assert differing_parts(SETTING, setting_text(H200, ["a", "b"], bound=SearchBound())) == ("grids",)
  found = {entry_key(s, "region", "unit") for s in (SETTING, *others.values())}
  found |= {entry_key(SETTING, "regio", "nunit"), entry_key(SETTING, "region", "other")}
  assert len(found) == 7


PRINT_KEY = """
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search_setting import entry_key, setting_text
from mirage_onnx.target import H200
setting = setting_text(H200, ["a", "b"], grids=frozenset({"x", "y"}), bound=SearchBound())
print(entry_key(setting, "region", "unit"))
"""


def test_the_same_in_every_process():
  for seed in ("1", "2"):
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    run = [sys.executable, "-c", PRINT_KEY]
    key = subprocess.check_output(run, text=True, env=environment).strip()
    assert key == entry_key(SETTING, "region", "unit")


def test_what_no_search_reads():
  """After ``calibrate``, and as the second of its architecture in a file, a GPU has the same searches."""
  same = replace(H200, table='{"ops": {}}', suffix="sm90a_h200")
  assert setting_text(same, ()) == setting_text(H200, ()) != setting_text(replace(H200, l2_tbps=1.0), ())
  assert setting_text(replace(H200, suffix="sm80"), ()) != setting_text(H200, ())


def test_a_value_without_canonical_text():
  for value in (lambda: None, object(), Fraction(1, 2), {"x": 1}):
    with pytest.raises(TypeError, match="no canonical text"):
      setting_text(H200, [], allow=value)


def test_the_generator_is_its_source():
  assert SETTING["generator"] == generator_digest()
  assert len(generator_digest()) == 16
