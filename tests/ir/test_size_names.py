"""Names of dimensions that are formulas of other names."""

import pytest

from mirage_onnx.ir.size_names import names_in, size_by_name


@pytest.mark.parametrize(
  ("name", "names", "size"),
  [
    ("past + seq", {"past", "seq"}, 12),
    ("past_sequence_length + sequence_length", {"past_sequence_length", "sequence_length"}, None),
    ("2*seq - past", {"past", "seq"}, 15),
    ("Min(512, seq)", {"seq"}, 9),
    ("Max(1, past, seq)//2", {"past", "seq"}, 4),
    ("seq % 4", {"seq"}, 1),
  ],
)
def test_formulas(name, names, size):
  assert names_in(name) == names
  assert size_by_name(name, {"seq": 9, "past": 3}) == size
  assert size_by_name(name, {}, default=1) is not None


@pytest.mark.parametrize(
  "name",
  ["seq", "unk__5", "12", "batch.1", "seq.1 + 1", "a b", "", "f(x)", "Min()", "seq ** 9", "seq / 2", "'a'*9",
   "[seq]", "-seq", "seq + 1.5", "True + seq", "(" * 400, "x" * 600, "lambda: seq", "\x00"],
)  # fmt: skip
def test_what_is_none(name):
  """Plain names, numbers, and what is no arithmetic of whole numbers."""
  assert size_by_name(name, {"seq": 9, "x": 1}) is None


def test_a_formula_that_fails():
  assert size_by_name("seq // (past - 3)", {"seq": 9, "past": 3}) is None
