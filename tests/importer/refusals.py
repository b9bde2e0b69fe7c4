"""What loading says of bad input, and a small model to spoil."""

import numpy as np
import pytest
from protos import new_node

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model

F32 = np.float32


def refusal(source, **kwargs):
  with pytest.raises(MirageError) as e:
    load_model(source, **kwargs)
  assert e.value.__cause__ is None
  assert "\n" not in e.value.detail and "Traceback" not in e.value.detail
  return f"{e.value.code}: {e.value.detail}"


def relu(bench, **kwargs):
  return bench.model(new_node("Relu", "x", "y"), {"x": (F32, [2, 3])}, ["y"], **kwargs)
