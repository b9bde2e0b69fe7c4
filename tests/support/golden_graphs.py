"""The µGraphs that the generator found for the golden programs, by program."""

from __future__ import annotations

import lzma
from pathlib import Path

from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.ir.ugraph import UGraph

_FOLDER = Path(__file__).parents[1] / "golden" / "test_goldens_found"
_PREFIX = "test_best_program_"
_FILES = {
    p.name.removeprefix(_PREFIX).partition(".")[0]: p for p in _FOLDER.glob(f"{_PREFIX}*.txt*")
}
NAMES = tuple(sorted(_FILES))


def golden_graph(name: str) -> UGraph:
    """The µGraph of a golden program."""
    data = _FILES[name].read_bytes()
    return parse_ugraph((lzma.decompress(data) if _FILES[name].suffix == ".xz" else data).decode())
