"""What searches of one process have found, for regions that differ in how their outputs lie only.

Values with and without a transposition behind them are two regions of a model, and one search: the classes,
the derivations and every kernel that writes none of the outputs are the same. So a search begins with the
outlines and units of those before it. A unit is a pure function of what it is kept under.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mirage_onnx.ir.region import Region
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.space import Space
from mirage_onnx.target import Target

if TYPE_CHECKING:  # who has nothing to search needs none of them
  from mirage_onnx.ir.ugraph import KTensor
  from mirage_onnx.superopt.axioms import Axiom
  from mirage_onnx.superopt.unit_worker import Found, Job

#: Derivations that all that is kept may have, of about 3 kB each; what was used longest ago goes first.
MOST = 40_000


def kin(region: Region) -> str:
  """What regions have in common that are the same but for the order of axes of whole outputs."""
  outputs = (o if o.view else replace(o, axes=tuple(sorted(o.axes))) for o in region.outputs)
  return replace(region, outputs=tuple(outputs)).text


@dataclass(slots=True)
class FoundUnits:
  """What jobs of one kind of region found, by the job and the tensors that it is about."""

  found: dict[tuple[Job, tuple[KTensor, ...]], Found] = field(default_factory=dict)
  derivations: int = 0


class KinUnits:
  """Of all searches of a process, the latest last. For one thread."""

  def __init__(self, most: int = MOST) -> None:
    self._most = most
    self._kept: dict[tuple[object, ...], FoundUnits] = {}

  def of(
    self, region: Region, target: Target, bound: SearchBound, axioms: tuple[Axiom, ...], space: Space
  ) -> FoundUnits:
    """What is known of regions like this one; a search adds to it."""
    key = kin(region), target, bound, axioms, space
    found = self._kept[key] = self._kept.pop(key, FoundUnits())
    while len(self._kept) > 1 and sum(f.derivations for f in self._kept.values()) > self._most:
      del self._kept[next(iter(self._kept))]
    return found
