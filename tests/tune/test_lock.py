"""The text of a lock."""

import json

import pytest

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError
from mirage_onnx.tune import lock as module
from mirage_onnx.tune.lock import Lock, LockedOptions, LockedVersions, read_lock, write_lock

EMPTY = Lock(
  format="mirage-onnx lock",
  version=1,
  input="a" * 64,
  output="b" * 64,
  options=LockedOptions("h200", False, 0.2, {"ünï": [1, 8]}, None),
  versions=LockedVersions("0.1.0", "13.0", "1.31", None),
  before_us=None,
  after_us=0.1,
  regions=[],
  nodes=[],
)


def test_its_text(tmp_path):
  path = tmp_path / "lock"
  write_lock(path, EMPTY)
  assert read_lock(path) == EMPTY
  text = path.read_text(encoding="utf-8")
  assert text.endswith("\n}\n") and '"ünï"' in text and json.loads(text)["after_us"] == 0.1
  write_lock(path, EMPTY)
  assert path.read_text(encoding="utf-8") == text
  assert [p.name for p in tmp_path.iterdir()] == ["lock"]


def test_where_it_cannot_be_written(tmp_path):
  with pytest.raises(MirageError) as error:
    write_lock(tmp_path / "no folder" / "lock", EMPTY)
  assert error.value.code == "OUTPUT_UNWRITABLE"


def test_what_is_far_too_large_is_not_read(tmp_path, monkeypatch):
  monkeypatch.setattr(module, "read_bounded", lambda path: read_bounded(path, 100))
  write_lock(tmp_path / "lock", EMPTY)
  with pytest.raises(MirageError, match="it is larger than 0 MiB"):
    read_lock(tmp_path / "lock")
