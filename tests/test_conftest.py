"""The golden fixture fails where its file is missing or differs, and writes it on demand."""

import pytest
from golden_texts import read_texts


def test_every_long_test_is_there(long_tests_not_there):
  """What has another name now would be among the fast ones."""
  if long_tests_not_there is None:
    pytest.skip("only parts of files are collected")
  assert not long_tests_not_there


@pytest.fixture
def make(golden):
  return type(golden)


def test_missing_names_the_flag(make, tmp_path):
  with pytest.raises(pytest.fail.Exception, match="--update-golden"):
    assert make(tmp_path / "new.txt", "name", update=False) == "text"


def test_update_then_compare(make, tmp_path):
  path = tmp_path / "file.txt"
  texts = {"name": "one\ntwo\n", "empty": "", "no line feed": "x"}
  for name, text in texts.items():
    assert make(path, name, update=True) == text
  assert read_texts(path) == texts
  golden = make(path, "name", update=False)
  assert golden == "one\ntwo\n"
  assert golden != "one\nTWO\n"
  lines = golden.difference("one\nTWO\n")
  assert "-two" in lines and "+TWO" in lines


def test_rng_is_seeded_by_the_test(rng):
  assert rng.integers(1 << 30) == 4187276
