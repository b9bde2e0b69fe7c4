"""Values by key in a folder: damage, age and number never cost more than the time again."""

import os
import time

import pytest

from mirage_onnx.superopt.kept_folder import OLDEST_S, KeptFolder, trim

SETTING = {"gpu": "one", "driver": "1"}


@pytest.fixture
def kept(tmp_path):
  return KeptFolder(tmp_path / "kept", SETTING)


def test_what_is_put_is_found_again(kept, tmp_path):
  key = kept.key("look", "a", "b")
  assert kept.get(key) is None
  kept.put(key, {"us": [1.5]})
  assert KeptFolder(tmp_path / "kept", SETTING).get(key) == {"us": [1.5]}
  kept.put(key, {"us": [2.5]})
  assert kept.get(key) == {"us": [2.5]}
  assert [p.name for p in (tmp_path / "kept").iterdir()] == [f"{key}.json"]  # and no temporary file


def test_keys_are_of_all_parts_and_of_the_setting(kept, tmp_path):
  keys = {kept.key("look", "a", "b"), kept.key("look", "ab"), kept.key("verdict", "a", "b")}
  keys |= {kept.key("look", "b", "a"), kept.key("look", "a", "b", "")}
  other = KeptFolder(tmp_path / "kept", {**SETTING, "driver": "2"})
  assert len(keys | {other.key("look", "a", "b")}) == 6


def test_another_setting_does_not_read_it(kept, tmp_path):
  """Even where somebody has renamed the file."""
  key = kept.key("look", "a")
  kept.put(key, {"us": [1.0]})
  assert KeptFolder(tmp_path / "kept", {**SETTING, "gpu": "two"}).get(key) is None


@pytest.mark.parametrize("at", [0, 40, -4])
def test_a_flipped_bit_is_as_if_nothing_was_there(kept, at):
  key = kept.key("look", "a")
  kept.put(key, {"us": [1.0]})
  path = kept.path(key)
  data = bytearray(path.read_bytes())
  data[at] ^= 1
  path.write_bytes(data)
  assert kept.get(key) is None
  kept.put(key, {"us": [3.0]})
  assert kept.get(key) == {"us": [3.0]}


@pytest.mark.parametrize("data", [b"", b"\0" * 99, b"{}", b'{"journal":"mirage-onnx","version":9}\n'])
def test_other_files_in_its_place(kept, data):
  key = kept.key("look", "a")
  kept.put(key, {"us": [1.0]})
  kept.path(key).write_bytes(data)
  assert kept.get(key) is None


def test_a_file_under_another_name_says_nothing(kept):
  key, other = kept.key("look", "a"), kept.key("look", "b")
  kept.put(key, {"us": [1.0]})
  os.rename(kept.path(key), kept.path(other))
  assert kept.get(other) is None


def test_nothing_is_kept_without_a_folder_or_where_it_cannot_be(tmp_path):
  none = KeptFolder(None, SETTING)
  none.put(none.key("look"), {"us": []})
  assert none.get(none.key("look")) is None
  (tmp_path / "file").write_text("no folder")
  kept = KeptFolder(tmp_path / "file", SETTING)
  kept.put(kept.key("look"), {"us": []})
  assert kept.get(kept.key("look")) is None


def test_what_is_old_is_made_again(kept):
  key = kept.key("look", "a")
  kept.put(key, {"us": [1.0]})
  long_ago = time.time() - OLDEST_S - 60
  os.utime(kept.path(key), (long_ago, long_ago))
  assert kept.get(key) is None
  trim(kept.folder)
  assert not kept.path(key).exists()


def test_the_oldest_make_way(tmp_path):
  kept, first = KeptFolder(tmp_path, SETTING), time.time() - 1000
  keys = [kept.key("look", str(n)) for n in range(6)]
  for n, key in enumerate(keys):
    kept.put(key, {"n": n})
    os.utime(kept.path(key), (first + n, first + n))
  new = KeptFolder(tmp_path, SETTING, most=3)
  key = new.key("look", "new")
  new.put(key, {"n": 6})  # the first that a process keeps
  assert {p.stem for p in tmp_path.iterdir()} == {*keys[-2:], key}
