"""What is kept for later runs, counted and removed; what is not ours stays."""

import os
import re

from mirage_onnx import kept_files as kept_module
from mirage_onnx.emulator import toolchain
from mirage_onnx.kept_files import KINDS, kept_files, remove_kept
from mirage_onnx.source_digest import PACKAGE
from mirage_onnx.superopt.cache_folders import cache_folder


def test_kinds_are_the_folders_that_are_written(monkeypatch, tmp_path):
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  text = "".join(p.read_text() for p in PACKAGE.rglob("*.py"))
  written = set(re.findall(r'cache_folder\("(\w+)"\)', text)) - {"locks"}  # which hold nothing
  kept = {cache_folder(), toolchain.cache_folder(), *map(cache_folder, written)}
  assert len(written) > 5 and kept == {tmp_path / kind for kind in KINDS}


def test_counts_and_removal(tmp_path):
  assert [(k.kind, k.files, k.bytes) for k in kept_files(tmp_path / "none")] == [(k, 0, 0) for k in KINDS]
  deep = tmp_path / "results" / "ab"
  deep.mkdir(parents=True)
  (deep / "one").write_bytes(b"12345")
  (tmp_path / "results" / "two").write_bytes(b"678")
  (tmp_path / "mine").write_bytes(b"mine")
  (tmp_path / "others").mkdir()
  (tmp_path / "others" / "file").write_bytes(b"mine")
  os.symlink(tmp_path / "mine", tmp_path / "results" / "link")
  assert {k.kind: (k.files, k.bytes) for k in kept_files(tmp_path)}["results"] == (2, 8)
  remove_kept(tmp_path)
  assert all(k.files == 0 for k in kept_files(tmp_path))
  assert (tmp_path / "mine").exists() and (tmp_path / "others" / "file").exists()


def test_what_goes_away_meanwhile_is_not_counted(monkeypatch, tmp_path):
  """A run that goes on removes what it has compiled in a folder of its own."""
  (tmp_path / "results").mkdir()
  (tmp_path / "results" / "one").write_bytes(b"12345")
  seen = kept_module._files

  def and_one_more(folder):
    return [*seen(folder), folder / "gone"]

  monkeypatch.setattr(kept_module, "_files", and_one_more)
  assert {k.kind: (k.files, k.bytes) for k in kept_files(tmp_path)}["results"] == (1, 5)
