"""Arguments of the Python interface that are of no type they may have: an error with a code, as others."""

import os
from collections.abc import Mapping
from numbers import Real

from mirage_onnx.errors import MirageError

#: What an argument may be, beside None -> its types.
_KINDS: dict[str, tuple[type, ...]] = {
  "a path": (str, os.PathLike),
  "a text": (str,),
  "a number": (Real,),
  "a mapping": (Mapping,),
}


def check_kinds(kind: str, **given: object) -> None:
  """That each is of this kind, or None.

  Raises:
      MirageError: OPTION_INVALID.
  """
  for name, value in given.items():
    if value is not None and not isinstance(value, _KINDS[kind]):
      raise MirageError("OPTION_INVALID", f"{name}={value!r} is of type {type(value).__name__}, not {kind}")
