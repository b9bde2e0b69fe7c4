"""Where an error is: the line of the text, through inlined helpers, and the op of the µGraph."""

import numpy as np
import pytest

from mirage_onnx.emulator import EmulationError, failure, run_kernel
from tests.emulator.kernels import TEXTS, kernel

ROWS = kernel("rows", TEXTS["rows"], "x y", smem=128)
LINES = ROWS.text.splitlines()


def line(text):
  return next(i for i, found in enumerate(LINES, 1) if text in found)


def fail(x, y, smem=128):
  source = kernel("rows", TEXTS["rows"], "x y", smem=smem)
  with pytest.raises(EmulationError) as caught:
    run_kernel(source, {"x": np.zeros(x, np.float32), "y": np.zeros(y, np.float32)})
  return caught.value


def test_an_access_in_a_helper_of_the_text():
  error = fail(10, 32)
  assert error.line == line("load<F32")  # the sixth element of thread 5
  error = fail(4, 32)
  assert (error.line, error.op, error.thread) == (line("ld_f32"), "%9", 0)


def test_a_plain_access_with_a_marker_above():
  error = fail(37, 32, smem=64)
  assert error.op == "%0 = load i0 imap=a0 cmap=- fmap=-"  # as the head of the text says
  assert error.line == line("= a;")
  assert f"line {error.line} `s[ptx::lane()] = a;` (%0 = load i0 imap=a0 cmap=- fmap=-): " in str(error)


def test_an_access_in_a_device_header():
  error = fail(36, 32)
  assert (error.line, error.op) == (line("load<F32"), "%4 = matmul[a1] %0 %1")
  assert (error.kernel, error.block, error.thread) == ("rows", (0, 0, 0), 31)


def test_a_marker_without_a_meaning():
  error = fail(37, 31)
  assert (error.line, error.op) == (line("st_f32"), "%7")
  assert "(%7): out-of-bounds write" in str(error)


def test_no_marker_above():
  assert failure.op_at(ROWS, line("helper(x, ptx")) is None


def test_without_binutils_there_is_no_line(monkeypatch):
  fail(4, 32)  # compiled, as long as there is a compiler
  failure.find_place.cache_clear()
  monkeypatch.setenv("PATH", "/nowhere")
  error = fail(4, 32)
  failure.find_place.cache_clear()
  assert (error.line, error.op) == (None, None)
  assert "block (0,0,0), thread 0: out-of-bounds read" in str(error)
