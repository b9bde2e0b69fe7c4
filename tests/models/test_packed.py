"""The models of ``models/`` are written from the archive, once."""

import os
import time

import onnx
import packed
import weights


def test_files_are_written_once(monkeypatch, tmp_path):
  """A file is made where there is none, or the archive is newer, and not otherwise."""
  names = ("bert", "llama_decode", "lora", "rmsnorm_linear")
  assert packed.names() == names and not set(weights.names()) & {packed.PREFIX + n for n in names}
  monkeypatch.setattr(packed, "FOLDER", tmp_path)
  paths = tuple(tmp_path / f"{name}.onnx" for name in names)
  assert packed.write() == paths
  assert onnx.load(paths[0]) == weights.load("models/bert")
  assert packed.write() == ()
  old = weights.ARCHIVE.stat().st_mtime - 10
  os.utime(paths[1], (old, old))
  before = time.time() - 5
  assert packed.write(["bert", "llama_decode"]) == (paths[1],)
  assert paths[1].stat().st_mtime > before
  assert set(tmp_path.iterdir()) == set(paths)
