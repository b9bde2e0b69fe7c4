"""What one unit of a search found, as the journal keeps it: texts, costs and counts.

A unit is the search for one kernel under one assignment of roles. Everything that the report of the
search says comes from its units, so a run that goes on from a journal reports what it would have.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.ir import Kernel, KernelParams, parse_ugraph, print_kernel
from mirage_onnx.ir.text import VERSION


@dataclass(frozen=True, slots=True)
class BuiltRecord:
  """A kernel (``print_kernel``), its cheapest numbers (``to_text``) and the cost of the first.

  Classes are those of the saturated region: ``reads`` are made by earlier kernels,
  ``exponentials`` are the values that are one. Both in ascending order. ``rounded``, ``is_tiled``: as
  of ``units.Built``.
  """

  cost_us: float
  text: str
  params: tuple[str, ...]
  reads: tuple[int, ...] = ()
  exponentials: tuple[int, ...] = ()
  rounded: tuple[tuple[int, ...], ...] = ()
  is_tiled: bool = False

  def kernel(self) -> Kernel:
    """The kernel of the text.

    Raises:
        MirageError: JOURNAL, it is not the text of one kernel.
    """
    try:
      (kernel,) = parse_ugraph(f"ugraph {VERSION}\n{self.text}").kernels
    except (ValueError, KeyError) as error:
      raise MirageError("JOURNAL", f"an entry holds no kernel: {error}") from error
    if print_kernel(kernel) != self.text:
      raise MirageError("JOURNAL", "an entry holds a kernel in another spelling")
    return kernel

  def numbers(self) -> tuple[KernelParams, ...]:
    """The numbers, cheapest first.

    Raises:
        MirageError: JOURNAL, a text is not that of numbers.
    """
    try:
      return tuple(map(KernelParams.from_text, self.params))
    except (ValueError, TypeError, KeyError) as error:
      raise MirageError("JOURNAL", f"an entry holds no numbers: {error}") from error


@dataclass(frozen=True, slots=True)
class UnitRecord:
  """The best kernels of a unit, cheapest first, and its part of the report of the search.

  ``counts``: what was counted (``states``, ``built``), ``pruned``: by reason; both by name.
  """

  built: tuple[BuiltRecord, ...] = ()
  counts: tuple[tuple[str, int], ...] = ()
  pruned: tuple[tuple[str, int], ...] = ()
  refused: tuple[Rejection, ...] = ()


def encode_built(record: BuiltRecord) -> dict[str, Any]:
  """The JSON value of a record; a cost comes back bit by bit."""
  return {
    "cost_us": float(record.cost_us),
    "text": record.text,
    "params": list(record.params),
    "reads": list(record.reads),
    "exponentials": list(record.exponentials),
    "rounded": list(map(list, record.rounded)),
    "tiled": record.is_tiled,
  }


def decode_built(value: object) -> BuiltRecord:
  """The inverse of ``encode_built``.

  Raises:
      MirageError: JOURNAL.
  """
  fields = _object(value)
  cost, text, params = (fields.get(name) for name in ("cost_us", "text", "params"))
  if not isinstance(cost, float) or not math.isfinite(cost) or not isinstance(text, str):
    raise MirageError("JOURNAL", "an entry holds no kernel with a cost")
  reads, exponentials = (_classes(fields.get(name)) for name in ("reads", "exponentials"))
  rounded = tuple(map(_classes, _list(fields.get("rounded"))))
  if any(len(r) < 2 for r in rounded):
    raise MirageError("JOURNAL", "an entry holds a rounding of no class")
  numbers = tuple(map(_text, _list(params)))
  if not numbers:
    raise MirageError("JOURNAL", "an entry holds a kernel without numbers")
  is_tiled = fields.get("tiled")
  if not isinstance(is_tiled, bool):
    raise MirageError("JOURNAL", "an entry holds a kernel of no kind")
  return BuiltRecord(cost, text, numbers, reads, exponentials, rounded, is_tiled)


def encode_unit(record: UnitRecord) -> dict[str, Any]:
  """The JSON value of a unit."""
  return {
    "built": [encode_built(b) for b in record.built],
    "counts": {name: int(n) for name, n in record.counts},
    "pruned": {reason: int(n) for reason, n in record.pruned},
    "refused": [[r.code, r.reason, list(r.nodes)] for r in record.refused],
  }


def decode_unit(value: object) -> UnitRecord:
  """The inverse of ``encode_unit``.

  Raises:
      MirageError: JOURNAL.
  """
  fields = _object(value)
  counts = _counts(fields.get("counts"))
  if "built" not in dict(counts):
    raise MirageError("JOURNAL", "an entry holds no count of kernels")
  return UnitRecord(
    tuple(map(decode_built, _list(fields.get("built")))),
    counts,
    _counts(fields.get("pruned")),
    tuple(map(_rejection, _list(fields.get("refused")))),
  )


def _rejection(value: object) -> Rejection:
  parts = _list(value)
  if len(parts) != 3:
    raise MirageError("JOURNAL", "an entry holds no refusal")
  try:
    return Rejection(_text(parts[0]), _text(parts[1]), tuple(map(_text, _list(parts[2]))))
  except ValueError as error:
    raise MirageError("JOURNAL", f"an entry holds an {error}") from error


def _counts(value: object) -> tuple[tuple[str, int], ...]:
  found = _object(value)
  if not all(type(n) is int and n >= 0 for n in found.values()):
    raise MirageError("JOURNAL", "an entry holds counts that are no numbers")
  return tuple(found.items())


def _classes(value: object) -> tuple[int, ...]:
  found = _list(value)
  if not all(type(c) is int for c in found):
    raise MirageError("JOURNAL", "an entry holds no numbers of classes")
  return tuple(found)


def _object(value: object) -> Mapping[str, Any]:
  if not isinstance(value, dict):
    raise MirageError("JOURNAL", "an entry holds no object")
  return value


def _list(value: object) -> list[Any]:
  if not isinstance(value, list):
    raise MirageError("JOURNAL", "an entry holds no list")
  return value


def _text(value: object) -> str:
  if not isinstance(value, str):
    raise MirageError("JOURNAL", "an entry holds no text")
  return value
