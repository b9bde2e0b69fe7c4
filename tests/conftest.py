"""Shared by all tests: golden texts, seeded randomness, GPU detection, the hypothesis profile.

The models in ``models/`` are unpacked before any test file is imported.
"""

from __future__ import annotations

import difflib
import lzma
import os
import re
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from mirage_onnx.collect_env import gpus

sys.path.append(str(Path(__file__).resolve().parents[1] / "models"))

import packed

GOLDEN = Path(__file__).parent / "golden"
#: Test files whose golden texts are long lists: they are kept compressed (``xzcat`` shows them).
PACKED = (
    "test_cuts", "test_dot", "test_emit", "test_goldens_found", "test_inspection", "test_kernel",
    "test_models", "test_region", "test_saved_emit", "test_schema", "test_search", "test_table",
)  # fmt: skip

# No test finds what another run has found: those of the cache open one of their own.
os.environ["MIRAGE_ONNX_CACHE"] = "off"

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure(config: pytest.Config) -> None:
    packed.write()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write what golden tests get as expected"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    try:
        missing = "" if gpus() else "the driver finds no GPU"
    except OSError as error:
        missing = str(error)
    for item in marked:
        if missing:
            item.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU: {missing}"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator with a seed of its own for every test, the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


class Golden:
    """The expected text of a test, kept in a file; ``assert text == golden`` compares with it."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: Path, update: bool) -> None:
        self._path = path
        self._update = update

    def __eq__(self, text: object) -> bool:
        if not isinstance(text, str):
            return NotImplemented
        if self._update:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._write(text)
            return True
        if not self._path.exists():
            pytest.fail(f"there is no {self._path}: run pytest --update-golden", pytrace=False)
        return text == self._read()

    def _read(self) -> str:
        data = self._path.read_bytes()
        return (lzma.decompress(data) if self._path.suffix == ".xz" else data).decode()

    def _write(self, text: str) -> None:
        data = text.encode()
        packed = self._path.suffix == ".xz"
        self._path.write_bytes(
            lzma.compress(data, preset=9 | lzma.PRESET_EXTREME) if packed else data
        )

    def difference(self, text: str) -> list[str]:
        """The lines of a unified diff from the file to ``text``."""
        wanted = self._read().splitlines()
        lines = difflib.unified_diff(wanted, text.splitlines(), "golden", "got", lineterm="")
        return [f"differs from {self._path} (--update-golden accepts it)", *lines]


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show a failed golden comparison as a diff."""
    if op != "==":
        return None
    match left, right:
        case (str() as text, Golden() as golden) | (Golden() as golden, str() as text):
            return golden.difference(text)
    return None


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The text in tests/golden/<test file>/<test name>.txt (or .txt.xz)."""
    name = re.sub(r"[^\w.=-]+", "_", request.node.name).strip("_")
    end = ".xz" if request.path.stem in PACKED else ""
    path = GOLDEN / request.path.stem / f"{name}.txt{end}"
    return Golden(path, request.config.getoption("--update-golden"))
