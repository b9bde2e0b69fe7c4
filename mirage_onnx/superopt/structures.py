"""The µGraphs that are known for each family of regions, in memory and on disk.

A family is a region without its sizes (``family``). Its µGraphs are found at the extents of one
region and at probe shapes (``search_structure.py``); other tokens and batches, and weights of
nearly these sizes (``NEAR``), only need numbers (``renumber.py``). On disk an entry is one file,
named by the hash of all that decides it: the setting of the search, which holds the hash of the
generator's source, and the family. It has the form of a journal (``journal_lines.py``), so that
damage shows.

What is read is no proof: whoever uses a µGraph has it verified for the region at hand.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import Any

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError, RejectionError
from mirage_onnx.ir.region import Region
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.superopt.journal_lines import (
  UNREADABLE,
  entry_line,
  entry_value,
  header_line,
  read_lines,
)
from mirage_onnx.superopt.renumber import KnownGraph, renumber
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search_setting import SettingText, entry_key
from mirage_onnx.target import Target

#: Most µGraphs of an entry: all are given numbers within 50 ms.
MAX_GRAPHS = 14
#: Predicted times that differ by less are alike.
ALIKE = 0.01
#: Sizes of weights that differ by no more than this factor have their best program among the same,
#: if there are so many bytes of weights; of fewer, launches decide, and programs differ more.
NEAR, MANY_BYTES = 4, 4 << 20


def weight_axes(region: Region) -> frozenset[str]:
  """The axes of weights."""
  return frozenset(a for i in region.weights for a in i.axes)


def part_axes(region: Region) -> frozenset[str]:
  """The axes of parts of dimensions, whose sizes all regions of a family share."""
  windows = (w for x in (*region.inputs, *region.outputs) for w in x.windows)
  return frozenset(a for w in windows if w.full is not None for a in w.axes)


def fixed_axes(region: Region) -> frozenset[str]:
  """The axes that no probe changes."""
  return weight_axes(region) | part_axes(region)


def family(region: Region) -> str:
  """What all regions that share µGraphs have in common: the structure, and sizes of parts."""
  boxes = [x.windows for x in (*region.inputs, *region.outputs)]
  if not any(boxes):
    return region.structure
  fixed = " ".join(f"{a}={region.extents[a]}" for a in sorted(part_axes(region)))
  return f"{region.structure}parts {fixed}\nboxes {boxes}\n"


@dataclass(frozen=True, slots=True)
class FamilyEntry:
  """µGraphs of a family in the order in which they were found, and where they were searched.

  ``shapes``: the extents at which the search was run. ``probed``: those of them at whose probe
  shapes it was run too; far from these nothing is said about other extents.
  """

  graphs: tuple[KnownGraph, ...]
  shapes: tuple[Mapping[str, int], ...]
  probed: tuple[Mapping[str, int], ...]

  def serves(self, region: Region) -> bool:
    """Whether the best for ``region`` is among the µGraphs."""
    axes, extents = weight_axes(region), region.extents
    weights = region.weights
    held = sum(i.dtype.bytes_of(prod(extents[a] for a in i.axes)) // i.repeat for i in weights)
    near = NEAR if held >= MANY_BYTES else 1

    def is_near(shape: Mapping[str, int]) -> bool:
      return all(extents[a] <= near * shape[a] <= near**2 * extents[a] for a in axes)

    return dict(extents) in self.shapes or any(map(is_near, self.probed))


class StructureStore:
  """Entries by ``family``, kept in ``folder``, or in memory only where that is None.

  ``setting``: what all entries have in common (``search_setting.py``). All methods may be called
  from any thread. A folder or file that cannot be read or written is as if it were not there.
  """

  def __init__(self, folder: Path | None, setting: SettingText) -> None:
    self.folder, self._setting = folder, dict(setting)
    self._entries: dict[str, FamilyEntry | None] = {}
    self._guard = threading.Lock()

  def path(self, family: str) -> Path | None:
    """The file of a family."""
    name = f"{entry_key(self._setting, family, 'structure')}.json"
    return None if self.folder is None else self.folder / name

  def get(self, family: str) -> FamilyEntry | None:
    """What is known of a family, or None."""
    with self._guard:
      if family not in self._entries:
        self._entries[family] = self._read(family)
      return self._entries[family]

  def put(self, family: str, entry: FamilyEntry) -> None:
    """Make ``entry`` what is known of ``family``, here and for later processes."""
    with self._guard:
      self._entries[family] = entry
      path = self.path(family)
      if path is None:
        return
      key = path.stem
      data = header_line(self._setting) + entry_line(key, _encode(family, entry))
      with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)

  def forget(self, family: str) -> None:
    """Nothing is known of ``family``: what was read of it made no sense."""
    with self._guard:
      self._entries[family] = None

  def _read(self, family: str) -> FamilyEntry | None:
    path = self.path(family)
    if path is None:
      return None
    try:
      contents = read_lines(read_bounded(path), self._setting, str(path))
      line = contents.entries.get(path.stem)
      return None if line is None else _decode(family, entry_value(line))
    except (OSError, MirageError, RejectionError, *UNREADABLE):
      return None  # a cache is no document: it is found again, and replaces the damage


def dominant(
  graphs: Sequence[KnownGraph], shapes: Sequence[Mapping[str, int]], target: Target, bound: SearchBound
) -> tuple[KnownGraph, ...]:
  """The ``MAX_GRAPHS`` of ``graphs`` that do best at their best shape, in the given order.

  Those that are alike one of them at all shapes come last: they are never better.
  """
  if len(graphs) <= MAX_GRAPHS:
    return tuple(graphs)
  place = {g.text: len(graphs) for g in graphs}
  times = {g.text: [inf] * len(shapes) for g in graphs}
  for at, extents in enumerate(shapes):
    for n, ranked in enumerate(renumber(graphs, extents, target, bound)):
      text = ranked.known.text
      place[text] = min(place[text], n)
      times[text][at] = ranked.predicted_us
  first, alike = list[str](), list[str]()
  for text in sorted(place, key=lambda t: place[t]):
    (alike if any(_alike(times[text], times[t]) for t in first) else first).append(text)
  best = {*(first + alike)[:MAX_GRAPHS]}
  return tuple(g for g in graphs if g.text in best)


def _alike(a: Sequence[float], b: Sequence[float]) -> bool:
  return all(max(x, y) <= (1 + ALIKE) * min(x, y) for x, y in zip(a, b, strict=True))


def _encode(family: str, entry: FamilyEntry) -> dict[str, Any]:
  return {
    "family": family,
    "graphs": [g.text for g in entry.graphs],
    "shapes": [dict(sorted(s.items())) for s in entry.shapes],
    "probed": [dict(sorted(s.items())) for s in entry.probed],
  }


def _decode(family: str, value: Mapping[str, Any]) -> FamilyEntry:
  """The inverse of ``_encode``.

  Raises:
      ValueError: it is no entry of this family.
  """
  graphs, shapes, probed = (value.get(n) for n in ("graphs", "shapes", "probed"))
  if value.get("family") != family or not isinstance(graphs, list):
    raise ValueError("not an entry of this family")
  if not all(isinstance(g, str) for g in graphs) or not (_are_shapes(shapes) and _are_shapes(probed)):
    raise ValueError("an entry without texts and extents")
  return FamilyEntry(tuple(map(KnownGraph.of, graphs)), tuple(shapes or ()), tuple(probed or ()))


def _are_shapes(value: object) -> bool:
  return isinstance(value, list) and all(
    isinstance(s, dict) and all(type(n) is int and n > 0 for n in s.values()) for s in value
  )
