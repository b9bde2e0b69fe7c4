"""What calls of the CUDA driver give: values, or what it says instead."""

from typing import Any

from mirage_onnx.errors import MirageError


def ok(result: tuple[Any, ...]) -> Any:
  """What a call of the driver gives.

  Raises:
      MirageError: NO_GPU, what it says instead.
  """
  code, *values = result
  if int(code) != 0:
    raise MirageError("NO_GPU", f"the CUDA driver says {code!r}")
  return values[0] if len(values) == 1 else tuple(values)
