"""Tests that are slow for their time alone: `make test` leaves them out (five minutes), `.ci/run` has all.

``long_tests.txt`` has a line a file, and below it its tests of more than half a second of a core (those
that were listed first: 1 s), measured by ``pytest --durations 0``. Of a function with parameters the one that
takes least stays, of every file at least one test, and all of the layers of real width. What is slow for
another reason has the mark where it is. ``tests/test_conftest.py`` holds that each is there.
"""

from pathlib import Path


def _read(text):
  tests, file = {}, ""
  for line in text.splitlines():
    if line.startswith("  "):
      tests[file] += (line[2:],)
    else:
      file = line
      tests[file] = ()
  return tests


#: File -> names of its tests.
LONG = _read(Path(__file__).with_suffix(".txt").read_text())
