"""The order in which regions are searched, for the time may end before the last.

Regions that the narrow space has kernels for come first, as they are: each takes a second. The others take
ten, and most are variants of a few (with more or less of what feeds them). They come in rounds:
in each the regions that take longest in ONNX Runtime, of which no two share a node.
"""

from collections.abc import Mapping

from mirage_onnx.superopt.space import EMITTED, space_of
from mirage_onnx.tune.outcome import Outcome

#: Behind so many rounds the rest comes by time alone.
ROUNDS = 16


def search_order(found: Mapping[str, Outcome]) -> list[str]:
  """The keys of ``found``, in this order."""
  quick = [key for key, o in found.items() if space_of(o.region) == EMITTED]
  narrow = set(quick)
  rest = sorted((key for key in found if key not in narrow), key=lambda key: -found[key].total_us)
  slow: list[str] = []
  for _ in range(ROUNDS):
    taken, left = set[str](), list[str]()
    for key in rest:
      nodes = found[key].instances[0].nodes
      if taken.isdisjoint(nodes):
        taken |= nodes
        slow.append(key)
      else:
        left.append(key)
    rest = left
  return [*quick, *slow, *rest]
