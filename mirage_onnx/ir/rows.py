"""Tables of stages that have a row for each row of a table of the IR, which is checked at import.

What a stage does with an operator may need machinery of its own (a term, CUDA text), so it has a
table of its own, by the same names. ``covered`` says which stage has forgotten which of them.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class MissingRowError(AssertionError):
  """A table of a stage lacks a row, or has one too many: the message names both."""


def covered(stage: str, table: Mapping[K, V], rows: Iterable[K]) -> Mapping[K, V]:
  """``table``, which has a row for each of ``rows`` and no other.

  Raises:
      MissingRowError: it has not.
  """
  wanted = list(rows)
  missing = [_name(r) for r in wanted if r not in table]
  unknown = [_name(r) for r in table if r not in wanted]
  if missing or unknown:
    wrong = [f"lacks a row for {', '.join(missing)}"] if missing else []
    wrong += [f"has a row for {', '.join(unknown)}, which nothing is"] if unknown else []
    raise MissingRowError(f"{stage} {' and '.join(wrong)} (docs/adding.md)")
  return table


def _name(row: object) -> str:
  return row.name if isinstance(row, Enum) else str(row)
