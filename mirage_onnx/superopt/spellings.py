"""Derivations that do the same heavy work, and the cheapest spellings of their elementwise chains.

Two derivations with the same *skeleton* (the heavy values, by kind, phase and axes, and what is
read) differ in where the elementwise operations are attached. Those with the least elementwise
work are built, the others are not.
"""

from __future__ import annotations

from collections.abc import Iterator

from mirage_onnx.ir.term import MAXR
from mirage_onnx.superopt.choices import Place, Setting
from mirage_onnx.superopt.derive import Derivation
from mirage_onnx.superopt.egraph import PMAX
from mirage_onnx.superopt.result import Bound

#: Of each heavy value: kind, phase, axis, axes reduced and left, the class read, whether a maximum,
#: work.
Skeleton = tuple[tuple[str, str, str, tuple[str, ...], tuple[str, ...], int, bool, int], ...]


class Spellings:
    """The derivations of one setting by skeleton; the bound says how many of each stay."""

    def __init__(self, setting: Setting, bound: Bound) -> None:
        self.setting, self.bound, self.kept = setting, bound, bound.spellings
        #: By skeleton: elementwise work, heavy values that the region does not compute, a number.
        self._found: dict[Skeleton, list[tuple[int, int, int, Derivation]]] = {}
        self._count = 0

    def add(self, derivation: Derivation) -> None:
        """Take note of one more derivation."""
        self._count += 1
        own = self._found.setdefault(self._skeleton(derivation), [])
        own.append((self._work(derivation), self._foreign(derivation), self._count, derivation))
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

    def _axes(self, c: int) -> tuple[str, ...]:
        return self.setting.roles.axes_in_block(self.setting.g.axes(c))

    def _skeleton(self, derivation: Derivation) -> Skeleton:
        rows = []
        for (c, phase), choice in derivation.items():
            if choice.weight or choice.kind == "read":
                axes = (choice.axis, choice.node.over, self._axes(c))
                read = c if choice.kind == "read" else -1
                maximum = choice.node.op in (MAXR, PMAX)
                work = self.setting.heavy_work((c, phase), choice)
                rows.append((choice.kind, phase.value, *axes, read, maximum, work))
        return tuple(sorted(rows))

    def _work(self, derivation: Derivation) -> int:
        return sum(self.setting.work(p, choice) for p, choice in derivation.items())


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
