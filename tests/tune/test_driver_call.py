"""Results of the driver: values, or a line with a code."""

import pytest

from mirage_onnx.errors import MirageError
from mirage_onnx.tune import driver_call


def test_what_the_driver_says():
  assert driver_call.ok((0,)) == () and driver_call.ok((0, 5)) == 5 and driver_call.ok((0, 5, 6)) == (5, 6)
  with pytest.raises(MirageError, match="the CUDA driver says 801") as raised:
    driver_call.ok((801, None))
  assert raised.value.code == "NO_GPU"
