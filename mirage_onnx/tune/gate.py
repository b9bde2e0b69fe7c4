"""Which regions stay, by what the whole model takes: never slower than the original, with confidence.

    result against original --faster everywhere--> it is written
             | not
    result against itself without each group of regions --> those that cost time go (or the worst half)
             |
    the result is made anew, and asked again

A group is one kernel and all places that it replaces. "Everywhere" is every declared size, as a run and as
a replayed CUDA graph. The questions share the chance of a wrong answer (``paired.spent``), as they may go on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Protocol

from mirage_onnx.tune.paired import PairedVerdict, Speedup


class EarlierStaysError(Exception):
  """What an earlier run has written is faster than what this one was about to write."""


class Looked(Protocol):
  """Timed sizes and ways, as ``custom_op.race.Raced``."""

  @property
  def speedups(self) -> tuple[Speedup, ...]: ...


@dataclass(frozen=True, slots=True)
class Gain:
  """What it does to leave a group out: at every size and in every way, if that was seen."""

  speedups: tuple[Speedup, ...]

  @property
  def is_harmful(self) -> bool:
    """Without it the model is faster somewhere, with confidence, and on the whole."""
    return any(s.verdict is PairedVerdict.FASTER for s in self.speedups) and self.mean > 1

  @property
  def mean(self) -> float:
    """The geometric mean of what is gained without it; below 1 it is worth its place."""
    return exp(sum(log(s.mean) for s in self.speedups) / len(self.speedups)) if self.speedups else 1.0


def is_faster(rows: Sequence[Looked], pair: int = 0) -> bool:
  """Whether a pair was decided for its second at every size and in every way."""
  return bool(rows) and all(r.speedups[pair].verdict is PairedVerdict.FASTER for r in rows)


def to_drop(
  groups: Sequence[str],
  without: Callable[[Sequence[str]], Mapping[str, Gain]],
  *,
  batch: int,
  over: Callable[[Sequence[str]], bool],
  faster: bool,
) -> tuple[str, ...]:
  """The groups that go, of a result that is ``faster`` than its original, or is not.

  ``groups``: those that should save the least first. ``without``: times what the result does without each
  of at most ``batch`` groups. Of a result that is not faster at least one goes, all if the time is ``over``
  (for these groups) before anything is known.
  """
  gains = dict[str, Gain]()
  for at in range(0, len(groups), batch):
    some = groups[at : at + batch]
    if over(some):
      break
    gains |= without(some)
  harmful = tuple(g for g in groups if g in gains and gains[g].is_harmful)
  if harmful or faster:
    return harmful
  if not gains:
    return tuple(groups)
  # Nothing is known to cost time: half of them go, those first without which it seemed fastest.
  ranked = sorted(groups, key=lambda g: (-gains[g].mean if g in gains else -1.0, groups.index(g)))
  return tuple(ranked[: -(-len(ranked) // 2)])
