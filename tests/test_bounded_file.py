"""Files of others are read whole or not at all, and never without an end."""

import os
import time

import pytest
from refused import refused

from mirage_onnx import commands
from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.config_file import OWN, read_config
from mirage_onnx.superopt.journal import Journal
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.tune.lock import read_lock

ODD = {
  "a pipe": os.mkfifo,
  "without an end": lambda path: os.symlink("/dev/zero", path),
  "a folder": os.mkdir,
  "larger than memory": lambda path: path.open("wb").truncate(1 << 42),
}
odd = pytest.mark.parametrize("make", ODD.values(), ids=ODD)


def test_a_file_up_to_its_size(tmp_path):
  path = tmp_path / "file"
  path.write_bytes(b"12345")
  assert read_bounded(path, 5) == b"12345"
  with pytest.raises(OSError, match="it is larger than 0 MiB"):
    read_bounded(path, 4)
  with pytest.raises(FileNotFoundError):
    read_bounded(tmp_path / "none")
  (tmp_path / "link").symlink_to(path)
  assert read_bounded(tmp_path / "link") == b"12345"


@odd
def test_what_is_no_file(tmp_path, make):
  make(tmp_path / "x")
  with pytest.raises(OSError, match=r"it is (no regular file|a folder|larger than 64 MiB)"):
    read_bounded(tmp_path / "x")


@odd
def test_settings_of_the_folder(tmp_path, make):
  make(tmp_path / OWN)
  with refused("CONFIG_INVALID", "mirage.toml: it is "):
    read_config(tmp_path, {})


@odd
def test_a_lock(tmp_path, make):
  make(tmp_path / "x.lock")
  with refused("LOCK_INVALID", "it is "):
    read_lock(tmp_path / "x.lock")


@odd
def test_a_kept_file_is_as_none(tmp_path, make):
  kept = KeptFolder(tmp_path, {"target": "a"})
  path = kept.path("k")
  path.parent.mkdir(parents=True, exist_ok=True)
  make(path)
  assert kept.get("k") is None


def test_the_command_line_reads_them(tmp_path, monkeypatch, capsys):
  from mirage_onnx.cli import main

  assert commands.app
  monkeypatch.chdir(tmp_path)
  os.mkfifo(tmp_path / OWN)
  assert main(["version"]) == 2
  assert "CONFIG_INVALID: mirage.toml: it is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
  "text", ["a." * 3000 + "a = 1", "\n".join(f"{'a.' * 255}b{k} = 1" for k in range(60))]
)
def test_keys_of_many_parts(tmp_path, text):
  """The parser takes the square of them: 8 kB had taken seconds."""
  (tmp_path / OWN).write_text(text)
  began = time.process_time()
  with refused("CONFIG_INVALID", "its keys have too many parts"):
    read_config(tmp_path, {})
  assert time.process_time() - began < 1


def test_a_journal_larger_than_any(tmp_path):
  with (tmp_path / "j").open("wb") as file:
    file.truncate(1 << 42)
  with refused("JOURNAL", "larger than 256 MiB"):
    Journal(tmp_path / "j", {"target": "a"})
  assert (tmp_path / "j").stat().st_size == 1 << 42
