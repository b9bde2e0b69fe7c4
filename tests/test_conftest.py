"""The golden fixture fails where its file is missing or differs, and writes it on demand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def make(golden: object) -> type:
    """The class of the fixture, to make one with another path."""
    return type(golden)


def test_missing_names_the_flag(make: type, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        assert make(tmp_path / "new.txt", update=False) == "text"


def test_update_then_compare(make: type, tmp_path: Path) -> None:
    path = tmp_path / "file" / "name.txt"
    assert make(path, update=True) == "one\ntwo\n"
    assert make(path, update=False) == "one\ntwo\n"
    assert make(path, update=False) != "one\nTWO\n"
    lines = make(path, update=False).difference("one\nTWO\n")
    assert "-two" in lines and "+TWO" in lines


def test_rng_is_seeded_by_the_test(rng: np.random.Generator) -> None:
    assert rng.integers(1 << 30) == 4187276
