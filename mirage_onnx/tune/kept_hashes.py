"""Hashes of weights from run to run: a repeat of a model of many gigabytes does not read them to know them.

    files of the weights, when they changed  +  place, type and shape of a weight  ->  its hash

What is kept of a region is found by its weights' hash (``verify/weights.py``). A file counts by which it is,
its size and when it changed last (``file_facts.py``), as with data files that are written
(``rewrite/kept_data.py``). Weights in the model file are hashed anew: it is read anyway.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnx import TensorProto

from mirage_onnx.file_facts import settled
from mirage_onnx.importer import LoadedModel
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.verify.weights import ModelWeights

#: What decides a hash of the bytes, and which bytes they are.
SOURCES = ("verify/weights.py", "importer", "file_facts.py")


class KeptHashes:
  """Hashes of the weights of one model that lie outside of it; nothing is kept where ``folder`` is None."""

  def __init__(self, folder: Path | None, loaded: LoadedModel) -> None:
    self._store = KeptFolder(folder, {"source": source_digest(*SOURCES)} if folder is not None else {})
    self._base, self._weights = loaded.base_dir, ModelWeights(loaded)
    self._before = self._files() if folder is not None else ()
    self._found: dict[str, str] = {}

  @classmethod
  def of_user(cls, loaded: LoadedModel) -> KeptHashes:
    """In the user's cache folder."""
    return cls(cache_folder("hashes"), loaded)

  def tell(self) -> None:
    """Let the model's weights know the hashes of an earlier run."""
    value = self._store.get(self._key()) if self._before else None
    if value is None:
      return
    for name, tensor in self._weights.outside.items():
      found = value.get(_place(tensor))
      if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found):
        self._found[_place(tensor)] = found
        self._weights.digests.setdefault(name, found)

  def keep(self) -> None:
    """Remember those that are known now, unless a file has changed since ``self`` was made."""
    outside, known = self._weights.outside, dict(self._weights.digests)
    found = self._found | {_place(t): known[n] for n, t in outside.items() if n in known}
    if self._before and found != self._found and self._files() == self._before:
      self._store.put(self._key(), found)

  def _key(self) -> str:
    return self._store.key("hashes", *self._before)

  def _files(self) -> tuple[str, ...]:
    """Which files the weights are in, and when each changed; nothing where that does not say the content."""
    if self._base is None:
      return ()
    now, found = time.time(), dict[str, str]()
    for location in sorted({_entry(t, "location") for t in self._weights.outside.values()}):
      facts = settled(self._base / os.path.normpath(location), now)
      if facts is None:
        return ()
      found[location] = facts
    return tuple(f"{location}\0{facts}" for location, facts in found.items())


@contextmanager
def kept_hashes(loaded: LoadedModel) -> Iterator[None]:
  """Hashes of an earlier run are known inside, and what was hashed is kept behind it."""
  kept = KeptHashes.of_user(loaded)
  kept.tell()
  try:
    yield
  finally:
    kept.keep()


def _place(tensor: TensorProto) -> str:
  """What is hashed: where it lies, and how it is read."""
  where = (_entry(tensor, "location"), _entry(tensor, "offset") or "0")
  return " ".join((*where, str(tensor.data_type), *map(str, tensor.dims)))


def _entry(tensor: TensorProto, key: str) -> str:
  return next((e.value for e in tensor.external_data if e.key == key), "")
