"""Units of a search: the best kernels that compute given values together, with their numbers.

assign roles  which dimension the loop walks and which the grid splits (roles.py)
derive        every derivation of the values under these roles (derive.py)
outline       the derivations by what they read of earlier kernels, with a floor of their cost
build         block graph and thread layouts, or a typed refusal (build.py, lower/layouts.py)
solve         numbers by the cost model (solved.py)

Derivations are cheap and layouts and numbers are not, so a unit is only built when a plan that is
the cheapest by its floor needs it. A unit is a pure function of the search's setting and of the
classes that it computes and reads: it does not matter where or in which order units are run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import inf

from mirage_onnx.cost.model import stored_bytes
from mirage_onnx.cost.tiled_work import TiledWork
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir import Kernel, KernelParams, Region, print_kernel
from mirage_onnx.ir.term import MAXR
from mirage_onnx.lower.layouts import Family
from mirage_onnx.superopt.axioms import Axiom
from mirage_onnx.superopt.build import build_kernel
from mirage_onnx.superopt.choices import Counts, Place, RoleSetting, StateLimitError
from mirage_onnx.superopt.derive import Derivation, derivations
from mirage_onnx.superopt.egraph import PMAX
from mirage_onnx.superopt.floors import Floors
from mirage_onnx.superopt.outlines import (
  DEEPER,
  Depth,
  Derivations,
  Outline,
  Reads,
  merged,
  reads_of,
)
from mirage_onnx.superopt.result import Allow, SearchBound
from mirage_onnx.superopt.roles import KernelRoles, enumerate_roles
from mirage_onnx.superopt.saturated import Saturated
from mirage_onnx.superopt.solved import solved
from mirage_onnx.superopt.space import Space
from mirage_onnx.superopt.spellings import Spellings
from mirage_onnx.superopt.tiled_numbers import REGISTER_BYTES
from mirage_onnx.target import Target

MAXIMA = frozenset({"rmax", "run_max"})
#: States that the outlines of one search may visit in all, and how many a part of one counts as at least:
#: some twenty seconds. Most regions take a tenth of it, some of many outputs any number.
OUTLINED, PART_STATES = 400_000, 50


def _maxima(derivation: Derivation) -> frozenset[str]:
  """The kinds of maxima that its kernel takes: ``Built.maxima``."""
  choices = derivation.values()
  if any(c.kind == "run" for c in choices):
    return MAXIMA
  return MAXIMA & {"rmax" for c in choices if c.weight and c.node.op in (MAXR, PMAX)}


@dataclass(frozen=True, slots=True)
class Built:
  """A kernel of a unit: its cost with the first of its numbers.

  ``reads``: the classes of earlier kernels that it reads. ``exponentials``: the classes of its
  values that are one. ``rounded``: of what it rounds to 16 bits the number of the block value,
  its class, and in order the classes of all heavy values under it, of what these take, and reads.
  ``is_tiled``: its cost is a roofline (``cost/tiled.py``).
  """

  cost_us: float
  text: str
  kernel: Kernel
  params: tuple[KernelParams, ...]
  reads: Reads
  exponentials: frozenset[int]
  rounded: tuple[tuple[int, ...], ...] = ()
  is_tiled: bool = False

  @property
  def maxima(self) -> frozenset[str]:
    """The kinds of maxima that it takes."""
    return frozenset(o.op for o in self.kernel.ops) & MAXIMA


def _rounded(
  kernel: Kernel, places: Mapping[int, Place], derivation: Derivation
) -> Iterator[tuple[int, ...]]:
  """``Built.rounded``."""
  for i, op in enumerate(kernel.ops):
    if op.op != "cast" or not op.dtype.is_half or op.args[0] not in places:
      continue
    todo, seen, under = [places[op.args[0]]], set[Place](), set[int]()
    while todo:
      if (place := todo.pop()) in seen:
        continue
      seen.add(place)
      choice = derivation[place]
      todo += choice.needs
      if choice.weight:
        under.update(c for c, _ in (place, *choice.needs))
      elif choice.kind == "read":
        under.add(place[0])
    yield (i, places[op.args[0]][0], *sorted(under))


@dataclass(frozen=True, slots=True)
class UnitResult:
  """What building the kernels of one unit found."""

  kernels: tuple[Built, ...]
  counts: Counts
  built: int
  reasons: tuple[Rejection, ...]


class Units(Saturated):
  """The saturated region and the units of one search."""

  def __init__(
    self,
    region: Region,
    target: Target,
    bound: SearchBound,
    axioms: tuple[Axiom, ...],
    space: Space,
    allow: Allow | None = None,
  ) -> None:
    super().__init__(region, axioms, space, nodes=bound.nodes)
    self.target, self.bound, self.space, self.allow = target, bound, space, allow
    self.floors = Floors(self, target)
    narrowest = min((stored_bytes(t) for t in self.inputs.values()), default=2)
    self._held = max(target.smem_bytes, REGISTER_BYTES) / min(2, narrowest)
    #: Called between pieces of work; it may raise, and then the unit has no result.
    self.poll: Callable[[Counts], None] = lambda counts: None
    self._outlines: dict[tuple[tuple[int, ...], int | None], Outline] = {}
    self._outlined = 0
    self._made_of: dict[tuple[tuple[int, ...], Reads], Derivations] = {}

  def roles(self, classes: tuple[int, ...]) -> tuple[KernelRoles, ...]:
    region = self.region
    roles = enumerate_roles(self.graph, classes, region.extents, self.space, region.runtime)
    return tuple(roles)

  def outline(self, classes: tuple[int, ...], depth: int | None = None) -> Outline:
    """The derivations of ``classes`` under all roles: those that this depth adds, or all.

    Raises:
        StateLimitError: the outlines so far have visited ``OUTLINED`` states.
    """
    if (classes, depth) not in self._outlines:
      if self._outlined > OUTLINED:
        raise StateLimitError
      jobs = self.jobs(classes, depth)
      found = merged(self._parts(jobs))
      self._outlined += found.counts.states + PART_STATES * len(jobs)
      for i in range(depth or 0):
        for reads in self.outline(classes, i).derivations:
          found.derivations.pop(reads, None)
      self._outlines[classes, depth] = found
      for reads, own in found.derivations.items():
        self._made_of.setdefault((classes, reads), own)
    return self._outlines[classes, depth]

  def jobs(self, classes: tuple[int, ...], depth: int | None) -> tuple[tuple[tuple[int, ...], Depth], ...]:
    """The parts of an outline whose shallower ones are known."""
    most_us = inf
    if depth is not None:
      before_us = self.floors.program_us(classes, frozenset(), frozenset())
      if depth > 0:
        before_us = self.outline(classes, depth - 1).beyond_us
      most_us = (1 + DEEPER * 2**depth) * before_us
    return tuple((classes, Depth(r, most_us)) for r in self.roles(classes))

  def _parts(self, jobs: tuple[tuple[tuple[int, ...], Depth], ...]) -> list[Outline]:
    return [self.outline_part(*job) for job in jobs]

  def derivations_of(self, classes: tuple[int, ...], reads: Reads) -> Derivations:
    """What the unit of these classes and reads is built of."""
    if not any(known == classes for known, _ in self._outlines):
      self.outline(classes)
    return self._made_of.get((classes, reads), ())

  @property
  def first_depth(self) -> int | None:
    """How deep an outline is wanted first; at once, if there is no limit of the sets of values."""
    return None if self.bound.units is None else 0

  def outlined(self, classes: tuple[int, ...]) -> list[tuple[Reads, Derivations]]:
    """What the units of these classes read that are known by now, and their derivations."""
    return [(reads, own) for (known, reads), own in self._made_of.items() if known == classes]

  @property
  def states(self) -> int:
    """States visited by the outlines so far."""
    return sum(o.counts.states for o in self._outlines.values())

  @property
  def known(self) -> int:
    """Units outlined so far."""
    return len(self._made_of)

  @property
  def complete(self) -> bool:
    """Whether no outline has met the limit of its states."""
    return all(o.complete for o in self._outlines.values())

  @property
  def pruned(self) -> Counter[str]:
    """What the outlines pruned, by reason; the deepest one of some classes has it all."""
    deepest = {classes: o for (classes, _), o in self._outlines.items()}
    return sum((o.counts.pruned for o in deepest.values()), Counter[str]())

  def outline_part(self, classes: tuple[int, ...], depth: Depth) -> Outline:
    """The derivations of ``classes`` under these roles only."""
    roles = depth.roles
    counts, complete = Counts(limit=self.bound.states), True
    setting = RoleSetting(
      self.graph, roles, self.space, frozenset(self.inputs), self.readable, self.original,
      self.region.extents, counts, self._held, frozenset(self.region.runtime),
    )  # fmt: skip
    spellings = Spellings(setting, self.bound)
    try:
      floor_us = cache(partial(self.floors.program_us, classes))
      for d in derivations(setting, classes, self.bound, floor_us, depth.most_us):
        self.poll(counts)
        spellings.add(d)
    except StateLimitError:
      complete = False
    found: dict[Reads, Derivations] = {}
    for d in spellings.cheapest():
      found[reads_of(d)] = (*found.get(reads_of(d), ()), (roles, d))
    floors = {r: min(self._floor_us(classes, *rd) for rd in ds) for r, ds in found.items()}
    return Outline(found, floors, counts, complete)

  def run(self, classes: tuple[int, ...], reads: Reads) -> UnitResult:
    """The kernels that compute ``classes`` from inputs and exactly ``reads``, best first."""
    counts = Counts()
    targets = tuple((c, self.tensor(c)) for c in classes)
    tensors = {**self.inputs, **{c: self.tensor(c) for c in reads}}
    named = {t.name: t for t in (*tensors.values(), *(t for _, t in targets))}
    found: dict[str, Built] = {}
    reasons: dict[str, Rejection] = {}
    built = 0
    for floor_us, roles, d in self._by_floor(classes, reads):
      self.poll(counts)
      if self._is_beaten(floor_us, _maxima(d), found.values()):
        counts.prune("kernels of the same reads that cost no more")
        continue
      try:
        laid, kernel, places = build_kernel(
          self.graph, "k", targets, roles, d, tensors,
          clusters=self.target.has_clusters, space=self.space,
        )  # fmt: skip
      except RejectionError as error:
        reasons.setdefault(error.rejection.reason, error.rejection)
        continue
      built += 1
      text = print_kernel(kernel)
      if text in found:
        counts.prune("the same kernel twice")
        continue
      work = TiledWork.of(kernel, named, laid.lanes) if laid.family is Family.TILED else None
      best = solved(
        laid.family, kernel, named, self.extents, self.target,
        keep=self.bound.points, pruned=counts.pruned, allow=self._allowed(kernel), work=work,
      )  # fmt: skip
      if best:
        cost_us, params = best
        powers = frozenset(p[0] for p, c in d.items() if c.node.op == "exp")
        rounded = tuple(_rounded(kernel, places, d))
        is_tiled = laid.family is Family.TILED
        found[text] = Built(cost_us, text, kernel, params, reads, powers, rounded, is_tiled)
    kernels = self.best(found.values(), counts)
    return UnitResult(kernels, counts, built, tuple(reasons.values()))

  def _by_floor(self, classes: tuple[int, ...], reads: Reads) -> list[tuple[float, KernelRoles, Derivation]]:
    """The derivations of a unit, those first that may be the cheapest."""
    found = [
      (self._floor_us(classes, roles, d), roles, d) for roles, d in self.derivations_of(classes, reads)
    ]
    return sorted(found, key=lambda f: f[0])

  def certain_us(self, classes: tuple[int, ...], derivations: Derivations) -> float:
    """No streaming or row kernel of these costs less; infinite where there is none."""
    floors = self.floors
    some = [floors.kernel_us(classes, r, d) for r, d in derivations if not floors.is_tiled(r, d)]
    return min(some, default=inf)

  def _floor_us(self, classes: tuple[int, ...], roles: KernelRoles, derivation: Derivation) -> float:
    """No kernel of this derivation costs less."""
    floors = self.floors
    return max(floors.kernel_us(classes, roles, derivation), floors.lane_us(roles, derivation))

  def _is_beaten(self, floor_us: float, maxima: frozenset[str], found: Iterable[Built]) -> bool:
    """Whether ``best`` leaves out every kernel that costs at least ``floor_us``."""
    cheaper = sum(b.cost_us < floor_us and b.maxima >= maxima for b in found)
    return cheaper >= self.bound.kept

  def _allowed(self, kernel: Kernel) -> Callable[[KernelParams], bool] | None:
    allow = self.allow
    return None if allow is None else lambda p: allow(kernel, p)

  def best(self, found: Iterable[Built], counts: Counts) -> tuple[Built, ...]:
    """Cheapest first; a kernel dies where ``kept`` others of its kind cost no more.

    What a streaming or row kernel costs is what it takes, of a tiled one it is a roofline: neither is beaten
    by the other. Maxima keep exponentials in range, and what the region computes as it was written fits into
    16 bits where the region does: a kernel with fewer maxima, or that rounds anything else (queries in front
    of their norm), is no better to every user, as the numeric check may refuse it.
    """
    kept: list[tuple[Built, frozenset[int]]] = []
    for b in sorted(found, key=lambda b: (b.cost_us, b.text)):
      other = frozenset(c for _, c, *_ in b.rounded) - self.original
      alike = (k for k, own in kept if k.maxima >= b.maxima and k.is_tiled == b.is_tiled and own <= other)
      if sum(1 for _ in alike) >= self.bound.kept:
        counts.prune("kernels of the same reads that cost no more")
        continue
      kept.append((b, other))
    return tuple(b for b, _ in kept)
