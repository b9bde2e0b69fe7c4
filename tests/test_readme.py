"""Commands of the README are run, so that it cannot tell what is not so.

Every ```console block is run by bash from the repository root, line by line: ``$ `` starts a
command, other lines show its output and are not compared. Every ```python block is run too. A block
after ``<!-- not run: REASON -->`` is left out, and so is ``make test``: these tests are running.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCK = re.compile(r"(?:<!-- not run: ([^>]*?) -->\n+)?```(console|python)\n(.*?)^```$", re.S | re.M)


def blocks(text):
  """(language, script) of every block that is run."""
  found = []
  for reason, language, body in BLOCK.findall(text):
    if reason:
      continue
    commands = [c for c in re.findall(r"^\$ ((?:.*\\\n)*.*)$", body, re.M) if c != "make test"]
    found.append((language, body if language == "python" else "\n".join(commands)))
  return found


def test_blocks():
  text = "```console\n$ echo a \\\n  b\noutput\n$ make test\n$ true\n```\n"
  left_out = "<!-- not run: needs a GPU -->\n\n```console\n$ false\n```\n"
  python = "```python\nprint(1)\n```\n```\n$ no\n```\n"
  assert blocks(text + left_out + python) == [
    ("console", "echo a \\\n  b\ntrue"),
    ("python", "print(1)\n"),
  ]


def test_the_first_speedups_stand_in_the_tables():
  """What the page begins with is measured: each factor is in a row of the table of whole models."""
  text = README.read_text()
  first = text.split("Measured, whole models", 1)[1].split("\n\n", 1)[0]
  rows = text.split("<!-- whole: ", 1)[1].split("<!-- end of whole -->", 1)[0]
  factors = re.findall(r"(\d\.\d\d)x", first)
  assert len(factors) >= 4 and all(f"| {x} (" in rows for x in factors)


@pytest.mark.slow
@pytest.mark.skipif(not README.exists(), reason="there is no README.md yet")
def test_readme(kept_searches):
  found = blocks(README.read_text())
  assert found, "the README shows no command"
  with kept_searches("readme"):  # of models that other tests search, too, and the same from block to block
    run_blocks(found)


def run_blocks(found):
  scripts = Path(sys.executable).parent
  environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
  for language, script in found:
    command = ["bash", "-euxc", script] if language == "console" else [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
