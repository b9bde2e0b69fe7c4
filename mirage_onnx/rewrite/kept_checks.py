"""Which written models have passed their check: who writes the same bytes again need not run them again.

The key holds the bytes of both model files, the weights' files (their names, sizes and times of change;
what was written for the new model is named by its content), onnx, onnxruntime and the source of the check.
Only what ran and passed is kept.
"""

import hashlib
from importlib import metadata
from pathlib import Path

import onnx

from mirage_onnx.rewrite.external import data_files
from mirage_onnx.rewrite.stock_check import Found
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.tune.lock import file_hash

#: What the report adds.
EARLIER = " (in an earlier run that wrote these bytes)"
_PACKAGES = ("onnx", "onnxruntime", "onnxruntime-gpu")


class KeptChecks:
  """Checks of results of one original; nothing is kept where ``folder`` is None.

  ``original``: its path, or its bytes. ``given``: what is in that file.
  """

  def __init__(self, folder: Path | None, original: Path | bytes, given: onnx.ModelProto) -> None:
    self._store = KeptFolder(folder, _setting() if folder is not None else {})
    self._original, self._given = original, given

  @classmethod
  def of_user(cls, original: Path | bytes, given: onnx.ModelProto) -> "KeptChecks":
    """In the user's cache folder."""
    return cls(cache_folder("checks"), original, given)

  def passed(self, written: Path) -> Found | None:
    """What an earlier run has found of these bytes, if they passed."""
    key = self._key(written)
    value = self._store.get(key) if key else None
    said = value.get("said") if value else None
    return Found(said=said + EARLIER) if isinstance(said, str) and said else None

  def keep(self, written: Path, found: Found) -> None:
    """Remember what was found, if the model ran."""
    if found.ran and not found.problem and (key := self._key(written)):
      self._store.put(key, {"said": found.said})
      self._store.put(self._key(None), {"said": ""})

  @property
  def has_any(self) -> bool:
    """Whether a result of this original has passed before: then the next one is likely to be the same."""
    key = self._key(None)
    return bool(key) and self._store.get(key) is not None

  def _key(self, written: Path | None) -> str:
    """Empty where a file cannot be read; None: of any result."""
    if self._store.folder is None:
      return ""
    try:
      own = self._original
      first = hashlib.sha256(own).hexdigest() if isinstance(own, bytes) else file_hash(own)
      parts = [first, file_hash(written) if written is not None else "any"]
      if isinstance(self._original, Path):
        for file in sorted(data_files(self._given, self._original.parent)):
          facts = file.stat()
          parts.append(f"{file} {facts.st_size} {facts.st_mtime_ns}")
    except OSError:
      return ""
    return self._store.key("check", *parts)


def _setting() -> dict[str, str]:
  found = {"source": source_digest("rewrite", "custom_op")}
  for name in _PACKAGES:
    try:
      found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      found[name] = ""
  return found
