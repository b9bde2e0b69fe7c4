"""Writes the exported models of this folder, ``NAME.onnx``: graphs from the archive, and weights.

    python models/packed.py [NAME ...]

``make build``, the tests and ``bench/h200.sh`` do so by themselves. The graphs are in the archive
of the architectures, whose ``weights.py`` makes the weights from their names. No torch is needed.
"""

import os
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.append(str(FOLDER / "architectures"))

import weights  # noqa: E402

#: What their names in the archive begin with.
PREFIX = "models/"


def names():
  """The models that are packed."""
  return weights.names(PREFIX)


def write(chosen=()):
  """Write the models named (default: all) that have no file yet, or one older than the archive.

  Several processes may do so at once. Returns what was written.
  """
  written = []
  for name in tuple(chosen) or names():
    target = FOLDER / f"{name}.onnx"
    if target.exists() and target.stat().st_mtime >= weights.ARCHIVE.stat().st_mtime:
      continue
    with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".part", delete=False) as file:
      file.write(weights.load(PREFIX + name).SerializeToString(deterministic=True))
    Path(file.name).chmod(0o644)
    os.replace(file.name, target)
    written.append(target)
  return tuple(written)


if __name__ == "__main__":
  for path in write(sys.argv[1:]):
    print(f"wrote {path.relative_to(FOLDER.parent)}")
