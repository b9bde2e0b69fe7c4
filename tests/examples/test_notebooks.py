"""The tutorials: every cell runs, one after the other, as a kernel would run it; none keeps an output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
BOOKS = sorted(p.name for p in FOLDER.glob("*.ipynb"))


def cells(name):
  book = json.loads((FOLDER / name).read_text(encoding="utf-8"))
  assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
  return book["cells"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BOOKS)
def test_notebook(name, tmp_path):
  found = cells(name)
  assert len({c["id"] for c in found}) == len(found)
  code = ["".join(c["source"]) for c in found if c["cell_type"] == "code"]
  assert code and not any(c.get("outputs") or c.get("execution_count") for c in found)
  # One namespace, the cells in order; processes of the search start anew from this file.
  program = tmp_path / "book.py"
  run = "    exec(compile(cell, 'cell', 'exec'), globals())"
  text = f"if __name__ == '__main__':\n  for cell in {code!r}:\n{run}\n"
  program.write_text(text, encoding="utf-8")
  command = [sys.executable, str(program)]
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  wanted = {"encoder.ipynb": "emulated", "search.ipynb": "verified programs"}
  assert wanted[name] in done.stdout


def test_there_are_some():
  assert len(BOOKS) == 2
