"""What fails at one region is a refusal of that region; what is of the whole run goes on up."""

import errno
import logging

import pytest

from mirage_onnx.errors import ERRORS, MirageError, Rejection, RejectionError
from mirage_onnx.failures import REGIONAL, ends_run, guarded, largest_valid


@pytest.mark.parametrize(
  "error",
  [ValueError("two\nlines"), MemoryError(), RecursionError(), AssertionError(),
   MirageError("INTERNAL", "bug"),
   OSError(errno.EBADF, "some file"), BrokenPipeError()],
)  # fmt: skip
def test_an_error_of_one_region(error, caplog):
  def fail():
    raise error

  with caplog.at_level(logging.ERROR, "mirage_onnx"):
    found = guarded("compile", ("a", "b"), fail)
  assert isinstance(found, Rejection)
  assert (found.code, found.nodes) == ("REGION_FAILED", ("a", "b"))
  assert found.reason.startswith(f"compile: {type(error).__name__}") and "\n" not in found.reason
  (record,) = caplog.records
  assert record.exc_info[1] is error and "a, b" in record.getMessage()


@pytest.mark.parametrize(
  "error",
  [KeyboardInterrupt(), SystemExit(1), MirageError("COMPILER_MISSING", ""), MirageError("NO_GPU", ""),
   OSError(errno.ENOSPC, "full"), MirageError("OUTPUT_UNWRITABLE", "")],
)  # fmt: skip
def test_an_error_of_the_run(error):
  def fail():
    raise error

  with pytest.raises(type(error)):
    guarded("compile", ("a",), fail)


def test_what_stages_refuse_keeps_its_code():
  def fail():
    raise RejectionError("LAYOUT", "no layout", ("a",))

  assert guarded("search", ("b",), fail) == Rejection("LAYOUT", "no layout", ("a",))
  assert guarded("search", ("b",), lambda: 3) == 3


def test_the_codes_are_codes():
  assert set(ERRORS) >= REGIONAL
  assert ends_run(MirageError("MODEL_INVALID", ""))


@pytest.mark.parametrize("bad", [(), (0,), (6,), (2, 3), (0, 1, 2, 3, 4, 5, 6)])
def test_dropping_what_fails(bad):
  tried = []

  def attempt(some):
    tried.append(tuple(some))
    wrong = [i for i in some if i in bad]
    return Rejection("REGION_FAILED", f"{wrong}") if wrong else None

  good, failed = largest_valid(7, attempt)
  assert good == tuple(i for i in range(7) if i not in bad)
  assert sorted(failed) == list(bad)
  passed = [t for t in tried if not set(t) & set(bad)]
  assert (passed[-1] if passed else ()) == good
  assert len(tried) <= 1 + 6 * len(bad)


def test_two_that_fail_together_only():
  good, failed = largest_valid(
    4, lambda some: Rejection("REGION_FAILED", "") if {1, 2} <= set(some) else None
  )
  assert good == (0, 1, 3) and list(failed) == [2]


def test_nothing_to_drop():
  assert largest_valid(0, lambda some: pytest.fail("called")) == ((), {})
