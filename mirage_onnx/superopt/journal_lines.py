"""The lines of a journal: JSON objects with a checksum of their own bytes at the end.

    {"journal":"mirage-onnx","version":1,"setting":{"target":"..."},"sum":"0123456789abcdef"}
    {"key":"...","value":{...},"sum":"..."}

The sum is of the bytes before ``,"sum":``, so that it does not depend on how JSON is spelled.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mirage_onnx.errors import MirageError
from mirage_onnx.superopt.search_setting import SettingText, differing_parts

VERSION = 1
#: What reading an entry may raise that was edited and has its checksum.
UNREADABLE = (
  ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError,
  ValueError,
)  # fmt: skip
_START = b'{"journal":"mirage-onnx","version":'
_SUM = re.compile(rb'(\{.*),"sum":"([0-9a-f]{16})"\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Contents:
  """What a file holds for a setting: ``entries`` by key, each the line as it stands.

  ``size_bytes``: the whole lines; what follows them is a line that was not finished.
  ``foreign``: why the file cannot be used, where another setting or version wrote it.
  """

  entries: Mapping[str, bytes]
  size_bytes: int
  foreign: str | None = None


def header_line(setting: SettingText) -> bytes:
  """The first line of a journal."""
  return _sealed({"journal": "mirage-onnx", "version": VERSION, "setting": dict(setting)})


def entry_line(key: str, value: Mapping[str, Any]) -> bytes:
  """The line of one entry.

  Raises:
      TypeError or ValueError: ``value`` has no JSON text.
  """
  return _sealed({"key": key, "value": value})


def entry_value(line: bytes) -> dict[str, Any]:
  """The value of an entry whose line was checked when it was read."""
  value: dict[str, Any] = json.loads(line)["value"]
  return value


def read_lines(data: bytes, setting: SettingText, name: str) -> Contents:
  """Everything in a file called ``name`` that counts.

  A last line without its line feed was being written when the process was killed: it is left out.

  Raises:
      MirageError: JOURNAL, for a file that is no journal, or a line that is damaged.
  """
  if not data.startswith(_START) and not _START.startswith(data):
    raise MirageError("JOURNAL", f"{name} is not a journal")
  *lines, _ = data.split(b"\n")
  if not lines:
    return Contents({}, 0)
  version = lines[0][len(_START) :].partition(b",")[0]
  if version.isdigit() and len(version) < 10 and int(version) != VERSION:
    return Contents({}, 0, f"version {int(version)} wrote it, this program reads {VERSION}")
  found = [_unsealed(line, f"{name}, line {n}") for n, line in enumerate(lines, 1)]
  other = found[0].get("setting")
  if not isinstance(other, dict):
    raise MirageError("JOURNAL", f"{name}, line 1: no setting")
  if parts := differing_parts(setting, other):
    verb = "differ" if len(parts) > 1 else "differs"
    return Contents({}, 0, f"it is of another setting ({', '.join(parts)} {verb})")
  entries = {}
  for number, (line, entry) in enumerate(zip(lines[1:], found[1:], strict=True), 2):
    key = entry.get("key")
    if not isinstance(key, str) or not isinstance(entry.get("value"), dict):
      raise MirageError("JOURNAL", f"{name}, line {number}: no key with a value")
    entries[key] = line
  return Contents(entries, sum(len(line) + 1 for line in lines))


def _sealed(fields: Mapping[str, object]) -> bytes:
  body = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode()[:-1]
  return body + b',"sum":"' + _checksum(body) + b'"}\n'


def _unsealed(line: bytes, place: str) -> dict[str, Any]:
  match = _SUM.fullmatch(line)
  if match is None or _checksum(match[1]) != match[2]:
    raise MirageError("JOURNAL", f"{place}: the checksum does not match")
  try:
    fields = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise MirageError("JOURNAL", f"{place}: not JSON ({error})") from error
  if not isinstance(fields, dict):
    raise MirageError("JOURNAL", f"{place}: not a JSON object")
  return fields


def _checksum(body: bytes) -> bytes:
  return hashlib.sha256(body).hexdigest()[:16].encode()
