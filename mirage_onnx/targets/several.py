"""What ``--target`` takes for one file for several GPUs: names with commas between, ``h200,a100,rtx4090``."""

from collections.abc import Sequence

from mirage_onnx.errors import MirageError
from mirage_onnx.targets.names import for_itself, get_target
from mirage_onnx.targets.profile import Target


def get_targets(names: str) -> tuple[Target, ...]:
  """The profiles called ``names``, in this order.

  The first of one architecture is for all GPUs of it; the library runs what a further one has on that GPU
  only, which it knows by the driver's name for it (``sm_86x46``: by the number of multiprocessors).

  Raises:
      MirageError: TARGET_UNKNOWN; OPTION_INVALID, one twice, the present GPU by no name, or an architecture
          behind a GPU of it.
  """
  words = [word.strip() for word in names.split(",")]
  if len(words) == 1:
    return (get_target(names),)
  if any(word.lower() == "local" for word in words):
    raise MirageError(
      "OPTION_INVALID", "local is timed on the GPU that is here: it stands alone, or give a name"
    )
  if "" in words:
    raise MirageError("OPTION_INVALID", f"{names!r}: a comma stands between two names")
  found = list[Target]()
  for target in map(get_target, words):
    if target.name in {t.name for t in found}:
      raise MirageError("OPTION_INVALID", f"{target.name} is given twice")
    there = any(t.suffix == target.suffix for t in found)
    found.append(for_itself(target) if there else target)
  return tuple(found)


def joined(targets: Sequence[Target]) -> str:
  """Their names as ``get_targets`` reads them."""
  return ",".join(t.name for t in targets)
