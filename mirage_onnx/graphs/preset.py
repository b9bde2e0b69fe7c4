"""The ``config`` of the original: named restrictions for a kind of program, and nothing else.

``attention`` has the original's maps for all variants of it (its README): dimension 0, the heads,
is split by the grid in every input; rows, positions or columns may be too. Numbers of blocks depend
on sizes, so the grids of that README are no part of it. ``mlp`` and ``lora`` restrict nothing: what
the original turns on by them is always on here.
"""

from dataclasses import replace

from mirage_onnx.errors import MirageError
from mirage_onnx.graphs.restriction import Restriction

PRESETS: dict[str, Restriction] = {
  "attention": Restriction(
    imaps=((0, -1, -1), (0, 1, -1), (0, 2, -1), (0, -1, 1)),
    omaps=((0, -1, -1), (0, 1, -1), (0, 2, -1), (0, 2, 1)),
    fmaps=(-1, 1, 2),
  ),
  "mlp": Restriction(),
  "lora": Restriction(),
}


def with_preset(config: str | None, given: Restriction) -> Restriction:
  """``given`` with what the preset says where it says nothing itself.

  Raises:
      MirageError: OPTION_INVALID, there is no preset of this name.
  """
  if config is None:
    return given
  if config not in PRESETS:
    known = ", ".join(sorted(PRESETS))
    raise MirageError("OPTION_INVALID", f"config={config!r}: known are {known}")
  preset = PRESETS[config]
  names = ("griddims", "blockdims", "imaps", "omaps", "fmaps", "franges")
  missing = {n: getattr(preset, n) for n in names if getattr(given, n) is None}
  return replace(given, **missing)
