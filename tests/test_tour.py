"""docs/tour.md says what the program makes of its region, and names every file once."""

from collections import Counter

import pytest
import write_tour

PAGE = write_tour.PAGE.read_text(encoding="utf-8")


def test_every_file_is_named_once():
  assert Counter(write_tour.named_files(PAGE)) == Counter(write_tour.sources())


def test_the_texts_are_what_the_program_makes():
  assert write_tour.page(PAGE) == PAGE, "run python scripts/write_tour.py"


def test_a_block_that_nothing_makes_is_an_error():
  with pytest.raises(KeyError, match="poem"):
    write_tour.page("<!-- begin poem -->\n<!-- end -->")
