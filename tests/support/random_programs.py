"""Random programs for the search: 4 to 10 primitive operations at the sizes of real models.

One that is refused, or does not depend on all that it reads, is thrown away for the next attempt.
"""

from dataclasses import dataclass
from random import Random

import onnx
from program_net import as_weights
from random_moves import MOVES, Growing, combine

from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import term as t
from mirage_onnx.ir.region import Region
from mirage_onnx.match.whole import whole_region

FEWEST, MOST = 4, 10
ATTEMPTS, MOVES_TRIED = 100, 40


@dataclass(frozen=True)
class RandomProgram:
  """``operations``: how many nodes compute; ``weights``: which inputs of the graph are declared
  to be initializers.
  """

  model: onnx.ModelProto
  weights: tuple[str, ...]
  operations: int
  region: Region


def random_program(seed):
  return random_model(seed).region


def random_model(seed):
  """A random program with one or two outputs whose nodes all are in one region."""
  for attempt in range(ATTEMPTS):
    found = _grown(Random(f"program {seed}, attempt {attempt}"))
    if found is not None:
      return found
  raise AssertionError(f"no program in {ATTEMPTS} attempts for seed {seed}")


def _grown(pick):
  g = Growing(pick)
  g.start()
  wanted = pick.randint(FEWEST, MOST)
  for _ in range(MOVES_TRIED):
    if g.operations >= wanted:
      break
    several = sum(not v.uses for v in g.values) > 1
    move = combine if several and pick.random() < 0.4 else pick.choice(MOVES)
    move(g)
  unread = [v for v in g.values[1:] if not v.uses]
  if len(unread) == 1 and pick.random() < 0.2:
    unread += [v for v in (pick.choice(g.values[1:]),) if v is not unread[0]]
  if not FEWEST <= g.operations <= MOST or len(unread) > 2:
    return None
  if any(max(v.shape) == 1 for v in unread):
    return None
  model = g.net.model(*(v.name for v in unread))
  try:
    made = whole_region(as_weights(import_model(load_model(model)), tuple(g.net.declared)))
  except RejectionError:  # an axis twice, in x x^T say
    return None
  read = {u.attr for u in t.walk(made.terms) if u.op == t.INPUT}
  if len(read) < len(g.net.inputs) or len(set(made.terms)) < len(unread):
    return None
  # An output that does not vary over one of its axes only repeats what a smaller program says.
  pairs = zip(made.outputs, made.terms, strict=True)
  if any(set(o.axes) != set(e.axes) for o, e in pairs):
    return None
  return RandomProgram(model, tuple(g.net.declared), g.operations, made)
