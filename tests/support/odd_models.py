"""Models that are odd in ways of their own: one by seed, of a kind each.

Not damage of right models (``damaged_models.py``), but what no exporter writes: nesting, counts, wire
formats, functions, sparse and external tensors, attributes and arities at their ends, and graphs that
are small and dear to follow.
"""

import random

from odd_attributes import arities, attributes, names
from odd_base import Odd, raw
from odd_graphs import deep_graphs, deep_types, dense, many, shapes
from odd_parts import external, functions, sparse, texts
from odd_wire import wire

KINDS = (
  deep_graphs, deep_types, many, wire, functions, texts, sparse, external, attributes, attributes, attributes, arities, names, dense, dense, shapes,
)  # fmt: skip


def made(seed):
  """The file of a seed; the same bytes for the same seed."""
  rng = random.Random(f"odd {seed}")
  kind = KINDS[seed % len(KINDS)]
  found = kind(rng)
  if isinstance(found, Odd):
    found.kind = kind.__name__
    return found
  return Odd(kind.__name__, found if isinstance(found, bytes) else raw(found))
