"""The µGraphs that the generator found for the golden programs, by program."""

from golden_texts import texts_of

from mirage_onnx.ir.text import parse_ugraph

_TEXTS = texts_of("test_goldens_found")
_PREFIX = "test_best_program_"
NAMES = tuple(n.removeprefix(_PREFIX) for n in _TEXTS if n.startswith(_PREFIX))


def golden_graph(name):
  return parse_ugraph(_TEXTS[_PREFIX + name])
