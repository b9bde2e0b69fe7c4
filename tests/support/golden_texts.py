"""Texts that tests expect, many in one compressed file (``xzcat`` shows it, ``xz -9e`` packs it).

A text of the file is a line ``=== NAME``, its own lines and a line feed more.
"""

import lzma
import re
import tempfile
from pathlib import Path

from filelock import FileLock

_HEAD = re.compile(r"^=== (.+)\n", re.M)


def read_texts(path):
    """The texts of a file by name; none where there is no file."""
    if not path.exists():
        return {}
    _, *parts = _HEAD.split(lzma.decompress(path.read_bytes()).decode())
    return {n: t.removesuffix("\n") for n, t in zip(parts[::2], parts[1::2], strict=True)}


def write_text(path, name, text):
    """Add a text to the file or replace it; several processes may do so at once."""
    assert not _HEAD.search(text), "this would be read as two texts"
    with FileLock(Path(tempfile.gettempdir()) / f"{path.name}.lock"):
        texts = sorted({**read_texts(path), name: text}.items())
        data = "".join(f"=== {n}\n{t}\n" for n, t in texts).encode()
        path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
