"""What the results of a search depend on beside the region, as text: the first part of every key.

A result that was kept is only right for the setting it was found with, so everything that decides
is in here: the target with all its figures, the bound, the space, the axioms, and the source of the
generator itself, because nobody remembers to count up a version with every change of a rule.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace

from mirage_onnx.source_digest import SEARCH_SOURCES, source_digest
from mirage_onnx.target import Target

#: Name of a part of a setting -> its canonical text.
SettingText = Mapping[str, str]


def setting_text(target: Target, axioms: Iterable[str], **limits: object) -> dict[str, str]:
  """The setting of a search: ``limits`` are its bound, its space and whatever else restricts it.

  No search reads what ONNX Runtime takes on the target, nor the name under which kernels are registered.

  ``axioms``: their names, in the order in which they are applied. A restriction that has no
  canonical text (a callable) cannot be kept results of: search without a journal then.

  Raises:
      TypeError: a limit is no frozen dataclass, number, text, or collection of them.
  """
  found = {name: _canonical(value) for name, value in sorted(limits.items())}
  return {
    "target": _canonical(replace(target, suffix=target.suffix.partition("_")[0], table="")),
    "axioms": ",".join(axioms),
    **found,
    "generator": generator_digest(),
  }


def entry_key(setting: SettingText, region_text: str, unit: str) -> str:
  """The key of what one unit of the search of a region found: a SHA-256 in hexadecimal."""
  parts = [sorted(setting.items()), region_text, unit]
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def differing_parts(a: SettingText, b: SettingText) -> tuple[str, ...]:
  """The names of the parts in which two settings differ."""
  return tuple(sorted(name for name in {*a, *b} if a.get(name) != b.get(name)))


def generator_digest() -> str:
  """A hash of the source of the search and of the IR that its results are written in."""
  return source_digest(*SEARCH_SOURCES)


def _canonical(value: object) -> str:
  """Text that is equal for equal values, in every process: a set has no order, its ``repr`` has.

  An enumeration of texts is its text.
  """
  if is_dataclass(value) and not isinstance(value, type):
    inside = [f"{f.name}={_canonical(getattr(value, f.name))}" for f in fields(value)]
    return f"{type(value).__name__}({', '.join(inside)})"
  if isinstance(value, str):
    return repr(str(value))
  if value is None or isinstance(value, (bool, int, float)):
    return repr(value)
  if isinstance(value, (set, frozenset)):
    return f"{{{', '.join(sorted(map(_canonical, value)))}}}"
  if isinstance(value, (tuple, list)):
    return f"({', '.join(map(_canonical, value))})"
  raise TypeError(f"a {type(value).__name__} has no canonical text")
