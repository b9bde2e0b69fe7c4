"""The µGraphs that the generator found for the golden programs, by program."""

from pathlib import Path

from golden_texts import read_texts

from mirage_onnx.ir.text import parse_ugraph

_TEXTS = read_texts(Path(__file__).parents[1] / "golden" / "test_goldens_found.txt.xz")
_PREFIX = "test_best_program_"
NAMES = tuple(n.removeprefix(_PREFIX) for n in _TEXTS if n.startswith(_PREFIX))


def golden_graph(name):
    """The µGraph of a golden program."""
    return parse_ugraph(_TEXTS[_PREFIX + name])
