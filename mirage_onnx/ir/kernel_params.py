"""The numbers of one kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelParams:
  """The numbers of one kernel.

  ``tile``: grid axis -> elements per block, by grid dimension. ``cluster``: ranks. ``loop_tile``:
  elements of the loop axis per iteration (of the whole block). ``warps``: per block.
  ``stages``: loop steps whose loads are in flight. ``instruction``: by which tensor cores contract
  (``instructions``); only one that is not ``mma`` is in the text. ``beside``: in the launch before it.
  ``teams``: of so many warps each, fed by a warp that copies (``lower/feed.py``), or 0; ``sharing``:
  blocks that copy for each other what they have in common; ``late``: what a block has of a part is stored
  beside the products of its next one (``codegen/tiled/late_stores_text.py``), 2: its last functions, too.
  """

  tile: tuple[int, ...] = ()
  cluster: int = 1
  loop_tile: int = 0
  warps: int = 4
  stages: int = 1
  instruction: str = "mma"
  beside: bool = False
  teams: int = 0
  sharing: int = 1
  late: int = 0

  def to_text(self) -> str:
    tiles = ",".join(map(str, self.tile)) or "-"
    other = f" instruction={self.instruction}" if self.instruction != "mma" else ""
    other += " beside=1" if self.beside else ""
    other += f" teams={self.teams} sharing={self.sharing}" if self.teams else ""
    other += f" late={self.late}" if self.late else ""
    return (
      f"tile={tiles} cluster={self.cluster} loop_tile={self.loop_tile} "
      f"warps={self.warps} stages={self.stages}{other}"
    )

  @classmethod
  def from_text(cls, text: str) -> KernelParams:
    """The inverse of ``to_text``.

    Raises:
        ValueError, TypeError or KeyError: no ``to_text`` gives this text.
    """
    fields = dict(word.split("=") for word in text.split(" "))
    tile, instruction = fields.pop("tile"), fields.pop("instruction", "mma")
    beside = fields.pop("beside", "") == "1"
    tiles = () if tile == "-" else tuple(map(int, tile.split(",")))
    numbers = {name: int(value) for name, value in fields.items()}
    params = cls(tiles, **numbers, instruction=instruction, beside=beside)
    if params.to_text() != text:
      raise ValueError(f"not the numbers of a kernel: {text!r}")
    return params
