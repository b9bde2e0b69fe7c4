"""A hash of our own source, for the keys of what is kept from run to run.

Nobody remembers to count up a version with every change of a rule, so what decides a kept result is
in its key as source: whole folders at any depth, and single modules. ``tests/test_source_digest.py``
compares each of these lists with what the module in question imports.
"""

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
#: What a folder of source holds that decides anything: Python, device and host code, tables.
SUFFIXES = frozenset({".py", ".cuh", ".h", ".cc", ".json"})
#: What every stage stands on, beside ``ir``.
PLUMBING = (
  "bounded_file.py", "cores.py", "deadline.py", "errors.py", "events.py", "failures.py", "garbage.py",
  "interrupt.py", "onnx_process.py", "search_workers.py", "source_digest.py", "target.py",
  "worker_process.py", "targets/__init__.py", "targets/architectures.py", "targets/measured.py",
  "targets/names.py", "targets/profile.py", "targets/rows.py", "targets/several.py",
)  # fmt: skip

#: What a search finds: its rules, and the IR that its results are written in.
SEARCH_SOURCES = ("superopt", "cost", "lower", "instructions", "ir", *PLUMBING)
#: What of it is taken for right, and for which regions of a model.
PROOF_SOURCES = ("verify", "match", "importer", "ir", "searching.py", "search_run.py", *PLUMBING)
#: What a kernel text computes in the emulator, and whether that is right.
EMULATION_SOURCES = ("emulator", "codegen/device", "verify", "ir", "tune/emulated.py", *PLUMBING)
#: What a kernel text includes.
HEADER_SOURCES = ("codegen/device",)
#: Which machine code is refused.
MACHINE_SOURCES = ("compiler/machine", "compiler/image_facts.py")


@cache
def source_digest(*parts: str, package: Path = PACKAGE) -> str:
  """A hash of the names and contents of these folders and files of the package.

  Raises:
      FileNotFoundError: a part is not there, or has no source: a name that was moved must not
          leave the keys in silence.
  """
  digest = hashlib.sha256()
  for path in sorted({p for part in parts for p in _sources(package, part)}):
    digest.update(f"{path.relative_to(package).as_posix()}\n".encode())
    digest.update(_content(path))
  return digest.hexdigest()[:16]


def forget() -> None:
  """Read all source again: it has changed."""
  for known in (source_digest, _content, _sources):
    known.cache_clear()


@cache
def _content(path: Path) -> bytes:
  """The hash of a file: most files are in several keys."""
  return hashlib.sha256(path.read_bytes()).digest()


@cache
def _sources(package: Path, part: str) -> tuple[Path, ...]:
  root = package / part
  found = (root,) if root.is_file() else tuple(_below(str(root)))
  if not found:
    raise FileNotFoundError(f"no source at {root}, which is part of a key")
  return found


def _below(folder: str) -> Iterator[Path]:
  """The files of source at any depth."""
  for place, _, names in os.walk(folder):
    yield from (Path(place, n) for n in names if os.path.splitext(n)[1] in SUFFIXES)
