"""Errors are one line, whatever a file makes them quote."""

import pickle

import pytest

from mirage_onnx.errors import MirageError


@pytest.mark.parametrize("end", ["\n", "\r\n", "\x00", "\x1b[2J", "\x85", "\u2028"])
def test_one_line(end):
  error = MirageError("NOT_ONNX", f"the node 'a{end}b' is none")
  assert len(error.line().splitlines()) == 1 and "\x1b" not in error.line()
  assert error.detail.startswith("the node 'a ") and str(error) == error.line()
  again = pickle.loads(pickle.dumps(error))
  assert (again.code, again.detail) == (error.code, error.detail)


def test_spaces_and_letters_stay():
  assert MirageError("NOT_ONNX", "two  spaces, ünï 模型").detail == "two  spaces, ünï 模型"
