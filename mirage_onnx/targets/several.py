"""What ``--target`` takes for one file for several GPUs: names with commas between, ``h200,a100,rtx4090``."""

from collections.abc import Sequence

from mirage_onnx.errors import MirageError
from mirage_onnx.targets.names import get_target
from mirage_onnx.targets.profile import Target


def get_targets(names: str) -> tuple[Target, ...]:
  """The profiles called ``names``, in this order.

  Each is of another architecture: kernels of one run on all GPUs of it, and the library tells GPUs apart by
  nothing else.

  Raises:
      MirageError: TARGET_UNKNOWN; OPTION_INVALID, two of one architecture, or the present GPU by no name.
  """
  words = [word.strip() for word in names.split(",")]
  if len(words) == 1:
    return (get_target(names),)
  if any(word.lower() == "local" for word in words):
    raise MirageError(
      "OPTION_INVALID", "local is timed on the GPU that is here: it stands alone, or give a name"
    )
  found = tuple(map(get_target, words))
  for i, target in enumerate(found):
    if (other := next((t for t in found[:i] if t.suffix == target.suffix), None)) is not None:
      same = f"{other.name} and {target.name} are both of {target.arch}"
      raise MirageError("OPTION_INVALID", f"{same}: what is made for one runs on the other, give one of them")
  return found


def joined(targets: Sequence[Target]) -> str:
  """Their names as ``get_targets`` reads them."""
  return ",".join(t.name for t in targets)
