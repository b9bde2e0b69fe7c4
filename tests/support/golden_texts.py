"""Texts of tests, many in one file.

A text of the file is a line ``=== NAME``, its own lines and a line feed more. Beside what tests
expect: what they run (kernels, µGraphs, models, files) and tables, a row a line (``rules``).
"""

import re
import tempfile
from pathlib import Path

from filelock import FileLock

#: The file of all tests: FILE/TEST, and under other names what helpers read.
GOLDEN = Path(__file__).parents[1] / "golden.txt"
_HEAD = re.compile(r"^=== (.+)\n", re.M)


def read_texts(path):
  if not path.exists():
    return {}
  _, *parts = _HEAD.split(path.read_bytes().decode())
  return {n: t.removesuffix("\n") for n, t in zip(parts[::2], parts[1::2], strict=True)}


def texts_of(folder):
  found = read_texts(GOLDEN).items()
  return {n.removeprefix(f"{folder}/"): t for n, t in found if n.startswith(f"{folder}/")}


def write_text(path, name, text):
  """Add a text to the file or replace it; several processes may do so at once."""
  assert not _HEAD.search(text), "this would be read as two texts"
  with FileLock(Path(tempfile.gettempdir()) / f"{path.name}.lock"):
    texts = sorted({**read_texts(path), name: text}.items())
    data = "".join(f"=== {n}\n{t}\n" for n, t in texts).encode()
    path.write_bytes(data)  # line feeds stay what they are


#: Block graphs that several tests compile or run, by name.
PROGRAMS = texts_of("programs")
