"""docs/search.md says what the search does."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
import write_search_docs

from mirage_onnx.superopt.result import SearchBound, Stop

ROOT = Path(__file__).parents[1]
SUPEROPT = ROOT / "mirage_onnx" / "superopt"
PAGE = write_search_docs.PAGE.read_text(encoding="utf-8")
#: Where a prune is counted under a literal, and where the reason is returned.
COUNTED = re.compile(r'(?:prune\(\s*|dropped\[)"([^"]+)"')
RETURNED = re.compile(r'return (?:\(\s*)?"(an? [^"]+)"')


def reasons():
  found = {r for p in SUPEROPT.glob("*.py") for r in COUNTED.findall(p.read_text())}
  returned = "".join((SUPEROPT / name).read_text() for name in ("roles.py", "blame.py"))
  return found | set(RETURNED.findall(returned))


def documented():
  table = PAGE[PAGE.index("| reason | kind |") :].partition("\n\n")[0]
  rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
  return {reason for row in rows for reason in row.split("; ")}


def test_the_blocks_are_what_the_program_makes():
  assert write_search_docs.page(PAGE) == PAGE, "run python scripts/write_search_docs.py"


def test_a_page_without_a_block_is_an_error():
  with pytest.raises(ValueError, match="substring"):
    write_search_docs.page(PAGE.replace("<!-- begin split -->", ""))


def test_every_prune_is_explained_and_every_explained_prune_exists():
  counted_elsewhere = {"idle warps"}  # a key of ``tiled_cost``'s table
  assert len(reasons()) > 20
  assert documented() == reasons() | counted_elsewhere


@pytest.mark.parametrize("name", [f.name for f in fields(SearchBound)])
def test_every_limit_is_named(name):
  assert re.search(rf"`(?:SearchBound\.)?{name}`", PAGE)


@pytest.mark.parametrize("stop", Stop)
def test_every_stop_is_named(stop):
  assert f"`{stop}`" in PAGE


def test_every_file_of_the_page_exists():
  named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE))
  assert {"plans.py", "egraph.py", "tests/support/brute_force.py"} <= named
  for name in named:
    places = (ROOT / name, SUPEROPT / name, ROOT / "mirage_onnx" / name)
    assert any(place.exists() for place in places), name
