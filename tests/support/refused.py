"""Errors of ours that a test expects."""

from contextlib import contextmanager

import pytest

from mirage_onnx.errors import MirageError


@contextmanager
def refused(code, match=None):
  """Expects a ``MirageError`` with this code, in one line; ``match`` as in ``pytest.raises``."""
  with pytest.raises(MirageError, match=match) as caught:
    yield caught
  assert caught.value.code == code
  assert "\n" not in caught.value.line()
