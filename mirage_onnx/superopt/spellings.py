"""Derivations that do the same heavy work, and the cheapest spellings of their elementwise chains.

Two derivations with the same *skeleton* (the heavy values, by kind, phase and axes, and what is
read) differ in where the elementwise operations are attached. Those with the least elementwise
work are built, the others are not.
"""

from collections.abc import Iterator

from mirage_onnx.ir.term import MAXR
from mirage_onnx.superopt.choices import Choice, Place, RoleSetting
from mirage_onnx.superopt.derive import Derivation
from mirage_onnx.superopt.egraph import PMAX
from mirage_onnx.superopt.result import SearchBound

#: Of each heavy value: kind, phase, axis, axes reduced and left, the class read, whether a maximum,
#: work.
Row = tuple[str, str, str, tuple[str, ...], tuple[str, ...], int, bool, int]
Skeleton = tuple[Row, ...]


class Spellings:
  """The derivations of one setting by skeleton; the bound says how many of each stay."""

  def __init__(self, setting: RoleSetting, bound: SearchBound) -> None:
    self.setting, self.bound, self.kept = setting, bound, bound.spellings
    #: By skeleton: elementwise work, heavy values that the region does not compute, a number.
    self._found: dict[Skeleton, list[tuple[int, int, int, Derivation]]] = {}
    self._count = 0
    #: Of a choice at a place, which is in many derivations: its row and its elementwise work.
    self._known: dict[tuple[Place, int], tuple[Choice, Row | None, int]] = {}

  def add(self, derivation: Derivation) -> None:
    """Take note of one more derivation."""
    self._count += 1
    known = [self._of(place, choice) for place, choice in derivation.items()]
    own = self._found.setdefault(tuple(sorted(row for _, row, _ in known if row)), [])
    work = sum(work for *_, work in known)
    own.append((work, self._foreign(derivation), self._count, derivation))
    if self.kept is not None and len(own) > 4 * self.kept:
      self._cut(own, self.kept)

  def cheapest(self) -> Iterator[Derivation]:
    """The derivations to build.

    Of each skeleton those with the least elementwise work, and the one that is most like the
    region as it was written: its values are in range where those of the region are. A skeleton
    with all the heavy values of another one, and more, is not built unless it saves elementwise
    work or takes other maxima. Of the skeletons with equal reads and maxima the
    ``bound.skeletons`` with the least work stay.
    """
    groups: dict[tuple[object, ...], list[Skeleton]] = {}
    for s in self._found:
      groups.setdefault(_reads_and_maxima(s), []).append(s)
    least = {s: min(w for w, *_ in own) for s, own in self._found.items()}
    foreign = {s: min(f for _, f, *_ in own) for s, own in self._found.items()}
    for group in groups.values():
      ranked = sorted(group, key=lambda s: (least[s] + _heavy_work(s), len(s), s))
      likest = min(ranked, key=lambda s: foreign[s])
      kept: list[Skeleton] = []
      for s in ranked:
        if s is likest:
          kept.append(s)
        elif self.kept is not None and any(
          len(k) < len(s) and least[k] <= least[s] and _is_part_of(k, s) for k in kept
        ):
          self.setting.counts.prune("more heavy values than another kernel, and no less")
        elif self.bound.skeletons is not None and len(kept) >= self.bound.skeletons:
          self.setting.counts.prune("more work than other kernels with the same reads")
        else:
          kept.append(s)
      for s in kept:
        own = self._found[s]
        if self.kept is not None:
          self._cut(own, self.kept)
        yield from (d for *_, d in sorted(own, key=lambda w: (w[0], w[2])))

  def _cut(self, own: list[tuple[int, int, int, Derivation]], kept: int) -> None:
    own.sort(key=lambda w: (w[0], w[2]))
    if len(own) <= kept:
      return
    likest = min(own, key=lambda w: (w[1], w[0], w[2]))
    for _ in own[kept:]:
      self.setting.counts.prune("more elementwise work around the same heavy values")
    if likest not in own[:kept]:
      own[kept - 1] = likest
    del own[kept:]

  def _foreign(self, derivation: Derivation) -> int:
    """Heavy values and their operands that the region as it was written does not compute."""
    own, places = self.setting.original, set[Place]()
    for place, choice in derivation.items():
      if choice.weight:
        places.update((place, *choice.needs))
    return sum(c not in own for c, _ in places)

  def _of(self, place: Place, choice: Choice) -> tuple[Choice, Row | None, int]:
    key = (place, id(choice))
    if key not in self._known:
      row = self._row(place, choice) if choice.weight or choice.kind == "read" else None
      # The choice is kept, so that its number stays its own.
      self._known[key] = choice, row, self.setting.work(place, choice)
    return self._known[key]

  def _row(self, place: Place, choice: Choice) -> Row:
    c, phase = place
    axes = self.setting.roles.axes_in_block(self.setting.g.axes(c))
    read = c if choice.kind == "read" else -1
    maximum = choice.node.op in (MAXR, PMAX)
    work = self.setting.heavy_work(place, choice)
    return choice.kind, phase.value, choice.axis, choice.node.over, axes, read, maximum, work


def _reads_and_maxima(skeleton: Skeleton) -> tuple[object, ...]:
  return tuple(
    (kind, read)
    for kind, _, _, _, _, read, maximum, _ in skeleton
    if kind in ("read", "run", "rescale") or maximum
  )


def _heavy_work(skeleton: Skeleton) -> int:
  return sum(work for *_, work in skeleton)


def _is_part_of(less: Skeleton, more: Skeleton) -> bool:
  """Whether ``more`` has all values of ``less``."""
  rest = list(more)
  for value in less:
    if value not in rest:
      return False
    rest.remove(value)
  return True
