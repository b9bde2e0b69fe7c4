"""What it takes at least to make the values that a plan is missing: each by a walk of its own.

The floor of what no kernel is chosen for (``floors.py``) is a launch and its bytes: a third of what a product
of two activations takes, and less. A plan with several missing values makes each of them, so it costs no less
than the cheapest plan of the dearest one alone. That plan is looked for as plans are, only until its floor
says enough; its units are those that the plans need, too. One value is made by a kernel that may make others
beside it, at no less: the costs add up what a kernel does.
"""

from collections.abc import Callable, Iterable, Iterator

#: Floors of the plans of a value by so many kernels at most, as a walk goes on; the last one is a cost.
Begin = Callable[[int, int], Iterator[float]]


class RestFloors:
  """The walks of one search by their value and their kernels."""

  def __init__(self, begin: Begin) -> None:
    self._begin = begin
    self._walks: dict[tuple[int, int], Iterator[float]] = {}
    self._known_us: dict[tuple[int, int], float] = {}

  def least_us(self, missing: Iterable[int], kernels: int, enough_us: float) -> float:
    """A floor of making all that is ``missing``; more than ``enough_us`` is not looked for."""
    most_us = 0.0
    for c in sorted(missing):
      most_us = max(most_us, self._of(c, kernels, enough_us))
      if most_us >= enough_us:
        break
    return most_us

  def _of(self, c: int, kernels: int, enough_us: float) -> float:
    key = c, kernels
    if key not in self._walks:
      self._walks[key], self._known_us[key] = self._begin(c, kernels), 0.0
    while self._known_us[key] < enough_us:
      found = next(self._walks[key], None)
      if found is None:
        break
      # With slack a floor may be above the cost that it becomes: what was said stays.
      self._known_us[key] = max(self._known_us[key], found)
    return self._known_us[key]
