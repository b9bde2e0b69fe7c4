from mirage_onnx.superopt.cache_folders import cache_folder


def test_the_folder(monkeypatch, tmp_path):
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  assert cache_folder() is None
  monkeypatch.delenv("MIRAGE_ONNX_CACHE")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  assert cache_folder() == tmp_path / "structures"
  monkeypatch.delenv("MIRAGE_CACHE_DIR")
  folder = cache_folder()
  assert folder is not None and folder.parts[-2:] == ("mirage-onnx", "structures")
