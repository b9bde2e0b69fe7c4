"""The collector of cycles during a search.

A search makes millions of small objects, which live to its end or have no cycles; to look through
all of them again and again takes a tenth of its time.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: As many collections of the younger generations until one of the oldest as there never are.
NEVER = 1 << 30


@contextmanager
def young_only() -> Iterator[None]:
  """Cycles among old objects are not collected; within another such context nothing changes."""
  before = gc.get_threshold()
  if before[2] == NEVER:
    yield
    return
  gc.set_threshold(*before[:2], NEVER)
  try:
    yield
  finally:
    gc.set_threshold(*before)
