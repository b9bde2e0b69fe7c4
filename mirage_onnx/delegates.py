"""Who does elsewhere what this process could do itself, and is asked first, by any thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class Delegates(list[T]):
  """Those there are now; the last one is asked."""

  @contextmanager
  def asked(self, by: T) -> Iterator[None]:
    """Inside, ``by`` is."""
    self.append(by)
    try:
      yield
    finally:
      self.remove(by)
