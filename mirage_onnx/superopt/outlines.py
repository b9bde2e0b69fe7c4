"""Outlines: the derivations of some values by what they read of earlier kernels.

There may be thousands of sets of values to read, and a plan needs the few that cost least. So an
outline has *depths*: each has those sets that it takes at least so many microseconds to make and
read (``Floors.program_us``), and the walk over the plans asks for the next one when it gets there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from mirage_onnx.superopt.choices import Counts
from mirage_onnx.superopt.derive import Derivation
from mirage_onnx.superopt.roles import KernelRoles

Reads = tuple[int, ...]
Derivations = tuple[tuple[KernelRoles, Derivation], ...]

#: The first depth has what costs this share more than the least; each further one twice as much
#: more than the least that the one before it has not.
DEEPER = 0.05


@dataclass(frozen=True, slots=True)
class Outline:
  """The derivations of some classes by what they read.

  No kernel of them costs less than ``floor_us``. ``complete``: within the bound none is missing,
  except those that are put off because no plan with them costs less than ``beyond_us``.
  """

  derivations: dict[Reads, Derivations]
  floor_us: dict[Reads, float]
  counts: Counts
  complete: bool

  @property
  def beyond_us(self) -> float:
    """No plan that reads other values costs less."""
    return self.counts.put_off_us


@dataclass(frozen=True, slots=True, order=True)
class Depth:
  """A part of an outline: derivations under ``roles`` by what is made and read in ``most_us``."""

  roles: KernelRoles
  most_us: float = inf


def reads_of(derivation: Derivation) -> Reads:
  """The classes of earlier kernels that a derivation reads, in ascending order."""
  return tuple(sorted({p[0] for p, c in derivation.items() if c.kind == "read"}))


def merged(parts: Iterable[Outline]) -> Outline:
  """The outline of the same classes under all roles, from its parts in the order of these."""
  derivations: dict[Reads, Derivations] = {}
  floor_us: dict[Reads, float] = {}
  counts, complete = Counts(), True
  for part in parts:
    for reads, own in part.derivations.items():
      derivations[reads] = (*derivations.get(reads, ()), *own)
      floor_us[reads] = min(floor_us.get(reads, inf), part.floor_us[reads])
    counts.states += part.counts.states
    counts.pruned.update(part.counts.pruned)
    counts.put_off_us = min(counts.put_off_us, part.counts.put_off_us)
    complete = complete and part.complete
  return Outline(derivations, floor_us, counts, complete)
