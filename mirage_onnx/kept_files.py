"""What runs keep for later ones below the cache folder: how much of each kind, and removing it.

All of it is found again where it is missing; nothing here is a document.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

#: Folder of the cache -> what is in it.
KINDS = {
  "results": "what searches found",
  "structures": "what they proved of a structure",
  "cubins": "kernels that NVRTC compiled",
  "verdicts": "programs that are safe with given weights",
  "choices": "choices of regions, proven the best",
  "expected": "what programs are expected to take",
  "checks": "written models that ran as their originals",
  "data": "weights' files that were written, by what is in them",
  "hashes": "hashes of weights in files, by when these changed",
  "measurements": "what was timed and checked on a GPU",
  "runs": "runs that came to their end, with what they wrote",
  "rates": "rates of a GPU, from calibrate",
  "emulator": "kernels that g++ built, and what they gave",
}


@dataclass(frozen=True, slots=True)
class Kept:
  """The files of one kind."""

  kind: str
  what: str
  files: int
  bytes: int


def kept_files(cache: Path) -> tuple[Kept, ...]:
  """How much is kept of every kind, also of those of which nothing is."""
  found = []
  for kind, what in KINDS.items():
    sizes = [size for p in _files(cache / kind) if (size := _size(p)) is not None]
    found.append(Kept(kind, what, len(sizes), sum(sizes)))
  return tuple(found)


def remove_kept(cache: Path) -> None:
  """Remove the files of all kinds; what else lies in the folder stays, and so does what cannot be removed.

  A run that goes on meanwhile may keep new ones.
  """
  for kind in KINDS:
    for path in _files(cache / kind):
      with contextlib.suppress(OSError):
        path.unlink()


def _files(folder: Path) -> list[Path]:
  """Also while others write there: ``rglob`` raises where a folder goes away, ``walk`` passes it over."""
  every = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
  return sorted(p for p in every if p.is_file() and not p.is_symlink())


def _size(path: Path) -> int | None:
  """Of a file; None if a run that goes on has removed it since it was seen."""
  try:
    return path.stat().st_size
  except FileNotFoundError:
    return None
