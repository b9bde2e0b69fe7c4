"""The prunings of the search that can be turned off, one by one.

Those that drop what no kernel could compute (a value over the loop that is needed behind it, a tile
that does not fit) are not prunings in this sense: without them there is nothing to build. Nor is
the derivation backwards from the targets, which is how a prefix that leads nowhere never appears.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

from mirage_onnx.superopt.blame import Blame
from mirage_onnx.superopt.choices import RoleSetting
from mirage_onnx.superopt.floors import Floors
from mirage_onnx.superopt.result import SearchBound

#: More than any search has.
ALL_OF_THEM = 10**9


@dataclass(frozen=True, slots=True)
class Pruning:
  """One pruning and how to search without it.

  ``without``: the bound that does not have it. ``patches``: where it is no part of the bound, the
  (object, name, value) that take it out of the program.
  """

  says: str
  without: Callable[[SearchBound], SearchBound] = lambda bound: bound
  patches: tuple[tuple[object, str, object], ...] = ()

  @contextmanager
  def off(self):
    """The program without this pruning."""
    if not self.patches:
      yield
      return
    (target, name, value), *rest = self.patches
    with patch.object(target, name, value), replace(self, patches=tuple(rest)).off():
      yield


PRUNINGS = {
  "chains": Pruning(
    "of the elementwise chains of a place, the few with the fewest needs",
    lambda b: replace(b, chains=None),
  ),
  "parts": Pruning(
    "of the chains of each operand, the few with the least work are combined",
    lambda b: replace(b, parts=None),
  ),
  "groupings": Pruning(
    "of the groupings of a contraction with the same needs, the few with the least work",
    lambda b: replace(b, groupings=None),
  ),
  "spellings": Pruning(
    "of the derivations with the same heavy values, the few with the least work are built",
    lambda b: replace(b, spellings=None),
  ),
  "skeletons": Pruning(
    "of the derivations with the same reads and maxima, those with the least work are built",
    lambda b: replace(b, skeletons=None),
  ),
  "kept": Pruning(
    "a kernel dies where others with the same reads cost no more",
    lambda b: replace(b, kept=ALL_OF_THEM),
  ),
  "verified": Pruning(
    "only the cheapest programs are verified, until enough are proven",
    lambda b: replace(b, verified=ALL_OF_THEM, tried=ALL_OF_THEM),
  ),
  "floor": Pruning(
    "programs are put together best first, with floors for what is missing or not built",
    # Without floors the first units of a group are any units.
    lambda b: replace(b, units=None),
    patches=(
      (Floors, "kernel_us", lambda self, classes, roles, derivation: 0.0),
      (Floors, "lane_us", lambda self, roles, derivation: 0.0),
      (Floors, "rest_us", lambda self, missing: 0.0),
    ),
  ),
  "units": Pruning(
    "of the sets of values that the kernels of one group read, those with the least floors",
    lambda b: replace(b, units=None),
  ),
  "slack": Pruning(
    "floors count a little more than they are, so that few plans are open at once",
    lambda b: replace(b, slack=1.0),
  ),
  "products": Pruning(
    "what a contraction sums is not summed element by element too",
    patches=((RoleSetting, "contracts_only", False),),
  ),
  "blame": Pruning(
    "what has overflowed in one program is not verified in another",
    patches=((Blame, "learn", lambda self, verdict, kernels: None),),
  ),
  "fits": Pruning(
    "no tile that is too large at its smallest",
    patches=(
      (RoleSetting, "too_large", lambda self, place: False),
      (RoleSetting, "_least_registers", lambda self, operands, axis: 0),
    ),
  ),
}
