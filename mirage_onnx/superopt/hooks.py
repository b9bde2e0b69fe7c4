"""What a running search asks and tells: whether to stop, what is known already, how far it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mirage_onnx.events import Emit, silent
from mirage_onnx.superopt.kin_units import KinUnits
from mirage_onnx.superopt.result import Stop


class UnitStore(Protocol):
  """Where the results of units are kept: a ``Journal``, or one in another process."""

  def key(self, region_text: str, unit: str) -> str:
    """The key of a unit of a region in the setting of this store."""

  def get(self, key: str) -> dict[str, Any] | None:
    """What is kept under ``key``; None: nothing."""

  def put(self, key: str, value: Mapping[str, Any]) -> None:
    """Keep ``value``; what is kept already stays."""


class NoStore:
  """Keeps nothing."""

  def key(self, region_text: str, unit: str) -> str:
    return ""

  def get(self, key: str) -> dict[str, Any] | None:
    return None

  def put(self, key: str, value: Mapping[str, Any]) -> None:
    """Forget it."""


def never() -> Stop | None:
  """The poll of a search that nobody stops."""
  return None


@dataclass(frozen=True, slots=True)
class Hooks:
  """The ends that a search is connected to.

  ``stop`` is polled between pieces of work; what it returns is the reason to stop now. ``store``:
  units found there are not searched again. ``kin``: nor those that an earlier search of the same thread has
  found of a region like this. None of them can change a result, only cut it short.
  """

  store: UnitStore = field(default_factory=NoStore)
  stop: Callable[[], Stop | None] = never
  emit: Emit = silent
  kin: KinUnits = field(default_factory=KinUnits)
