"""A table of a stage is complete, or the message names the stage and the row."""

from enum import Enum

import pytest

from mirage_onnx.ir.rows import MissingRowError, covered


class Colour(Enum):
  RED = 1
  BLUE = 2


def test_a_complete_table_is_itself():
  table = {Colour.RED: "r", Colour.BLUE: "b"}
  assert covered("stage", table, Colour) is table


def test_a_row_is_missing():
  with pytest.raises(MissingRowError, match=r"^verify/x\.py lacks a row for BLUE \(docs/adding\.md\)$"):
    covered("verify/x.py", {Colour.RED: 1}, Colour)


def test_a_row_is_of_nothing():
  with pytest.raises(MissingRowError, match=r"^s lacks a row for b and has a row for c, which nothing is"):
    covered("s", {"a": 1, "c": 2}, ["a", "b"])
