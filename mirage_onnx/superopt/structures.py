"""The µGraphs that are known for each region structure, in memory and on disk.

A structure is a region without its sizes (``Region.structure``). Its µGraphs are found once, at the
extents of one region and at probe shapes (``search_structure.py``); any other extents only need
numbers (``renumber.py``). On disk an entry is one file, named by the hash of all that decides it:
the setting of the search, which holds the hash of the generator's source, and the structure. It has
the form of a journal (``journal_lines.py``), so that damage shows.

What is read is no proof: whoever uses a µGraph has it verified for the region at hand.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from mirage_onnx.errors import MirageError
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.superopt.journal_lines import entry_line, entry_value, header_line, read_lines
from mirage_onnx.superopt.renumber import Known, renumber
from mirage_onnx.superopt.result import Bound
from mirage_onnx.superopt.search_setting import SettingText, entry_key
from mirage_onnx.target import Target

#: Most µGraphs of an entry: all are given numbers within 50 ms.
MAX_GRAPHS = 20


@dataclass(frozen=True, slots=True)
class Entry:
    """µGraphs of a structure in the order in which they were found, and where they were searched.

    ``shapes``: the extents at which the search was run.
    """

    graphs: tuple[Known, ...]
    shapes: tuple[Mapping[str, int], ...]


class StructureStore:
    """Entries by structure, kept in ``folder``, or in memory only where that is None.

    ``setting``: what all entries have in common (``search_setting.py``). All methods may be called
    from any thread. A folder or file that cannot be read or written is as if it were not there.
    """

    def __init__(self, folder: Path | None, setting: SettingText) -> None:
        self.folder, self._setting = folder, dict(setting)
        self._entries: dict[str, Entry | None] = {}
        self._guard = threading.Lock()

    def path(self, structure: str) -> Path | None:
        """The file of a structure."""
        name = f"{entry_key(self._setting, structure, 'structure')}.json"
        return None if self.folder is None else self.folder / name

    def get(self, structure: str) -> Entry | None:
        """What is known of a structure, or None."""
        with self._guard:
            if structure not in self._entries:
                self._entries[structure] = self._read(structure)
            return self._entries[structure]

    def put(self, structure: str, entry: Entry) -> None:
        """Make ``entry`` what is known of ``structure``, here and for later processes."""
        with self._guard:
            self._entries[structure] = entry
            path = self.path(structure)
            if path is None:
                return
            key = path.stem
            data = header_line(self._setting) + entry_line(key, _encode(structure, entry))
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, data)

    def _read(self, structure: str) -> Entry | None:
        path = self.path(structure)
        if path is None:
            return None
        try:
            contents = read_lines(path.read_bytes(), self._setting, str(path))
            line = contents.entries.get(path.stem)
            return None if line is None else _decode(structure, entry_value(line))
        except (OSError, MirageError, ValueError):
            return None  # a cache is no document: it is found again, and replaces the damage


def cache_folder() -> Path | None:
    """Where entries are kept from run to run; None with ``MIRAGE_ONNX_CACHE=off``.

    A folder of ``$MIRAGE_CACHE_DIR``, or of the user's cache folder.
    """
    if os.environ.get("MIRAGE_ONNX_CACHE") == "off":
        return None
    chosen = os.environ.get("MIRAGE_CACHE_DIR")
    own = chosen or platformdirs.user_cache_dir("mirage-onnx", appauthor=False)
    return Path(own) / "structures"


def dominant(
    graphs: Sequence[Known], shapes: Sequence[Mapping[str, int]], target: Target, bound: Bound
) -> tuple[Known, ...]:
    """The ``MAX_GRAPHS`` of ``graphs`` that do best at their best shape, in the given order."""
    if len(graphs) <= MAX_GRAPHS:
        return tuple(graphs)
    place = {g.text: len(graphs) for g in graphs}
    for extents in shapes:
        for n, ranked in enumerate(renumber(graphs, extents, target, bound)):
            text = ranked.known.text
            place[text] = min(place[text], n)
    best = {g.text for g in sorted(graphs, key=lambda g: place[g.text])[:MAX_GRAPHS]}
    return tuple(g for g in graphs if g.text in best)


def _encode(structure: str, entry: Entry) -> dict[str, Any]:
    return {
        "structure": structure,
        "graphs": [g.text for g in entry.graphs],
        "shapes": [dict(sorted(s.items())) for s in entry.shapes],
    }


def _decode(structure: str, value: Mapping[str, Any]) -> Entry:
    """The inverse of ``_encode``.

    Raises:
        ValueError: it is no entry of this structure.
    """
    graphs, shapes = value.get("graphs"), value.get("shapes")
    if value.get("structure") != structure or not isinstance(graphs, list):
        raise ValueError("not an entry of this structure")
    if not all(isinstance(g, str) for g in graphs) or not _are_shapes(shapes):
        raise ValueError("an entry without texts and extents")
    return Entry(tuple(map(Known.of, graphs)), tuple(shapes or ()))


def _are_shapes(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(s, dict) and all(type(n) is int and n > 0 for n in s.values()) for s in value
    )
