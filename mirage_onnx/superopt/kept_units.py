"""Running a unit, unless a store knows what it finds."""

from collections import Counter

from mirage_onnx.superopt.choices import Counts
from mirage_onnx.superopt.hooks import UnitStore
from mirage_onnx.superopt.outlines import Reads
from mirage_onnx.superopt.unit_record import BuiltRecord, UnitRecord, decode_unit, encode_unit
from mirage_onnx.superopt.units import Built, UnitResult, Units


class KeptUnits:
  """The units of one search with a store behind them.

  The numbers of classes are part of the records: saturation numbers them alike in every process
  (a test holds that), and everything it depends on is part of the key.
  """

  def __init__(self, units: Units, store: UnitStore) -> None:
    self._units, self._store = units, store
    self._region_text = units.region.text
    #: Whether any result was the store's: what makes no sense later may be its.
    self.taken = False

  def run(self, classes: tuple[int, ...], reads: Reads) -> UnitResult:
    """What the unit of these classes and reads finds.

    Raises:
        MirageError: JOURNAL, the store holds something else under its key.
    """
    key = self._key(classes, reads)
    value = self._store.get(key)
    if value is not None:
      self.taken = True
      return unit_result(decode_unit(value))
    result = self._units.run(classes, reads)
    self._store.put(key, encode_unit(unit_record(result)))
    return result

  def holds(self, classes: tuple[int, ...], reads: Reads) -> bool:
    """Whether the store knows what the unit finds."""
    return self._store.get(self._key(classes, reads)) is not None

  def _key(self, classes: tuple[int, ...], reads: Reads) -> str:
    return self._store.key(self._region_text, unit_name(classes, reads))


def unit_name(classes: tuple[int, ...], reads: Reads) -> str:
  """Text that only this unit of a region has."""
  return f"{','.join(map(str, classes))} from {','.join(map(str, reads)) or '-'}"


def unit_record(result: UnitResult) -> UnitRecord:
  """A unit's result as texts."""
  return UnitRecord(
    tuple(
      BuiltRecord(
        b.cost_us,
        b.text,
        tuple(p.to_text() for p in b.params),
        b.reads,
        tuple(sorted(b.exponentials)),
        b.rounded,
        b.is_tiled,
      )
      for b in result.kernels
    ),
    (("built", result.built),),
    tuple(sorted(result.counts.pruned.items())),
    result.reasons,
  )


def unit_result(record: UnitRecord) -> UnitResult:
  """The inverse of ``unit_record``."""
  counts = dict(record.counts)
  return UnitResult(
    tuple(
      Built(
        b.cost_us,
        b.text,
        b.kernel(),
        b.numbers(),
        b.reads,
        frozenset(b.exponentials),
        b.rounded,
        b.is_tiled,
      )
      for b in record.built
    ),
    Counts(pruned=Counter(dict(record.pruned))),
    counts["built"],
    record.refused,
  )
