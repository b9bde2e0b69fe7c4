"""Archives of graphs: ``NAME.onnx`` for each, the same bytes for the same graphs."""

import functools
import io
import lzma
import tarfile


@functools.cache
def read(archive):
  """The graphs of an archive by name; none where there is no file."""
  found = {}
  if not archive.exists():
    return found
  with tarfile.open(archive) as opened:
    for entry in opened:
      file = opened.extractfile(entry)
      assert file is not None
      found[entry.name.removesuffix(".onnx")] = file.read()
  return found


def store(archive, new):
  """Put graphs (bytes by name) beside those that are there."""
  plain = io.BytesIO()
  with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as opened:
    for name, data in sorted({**read(archive), **new}.items()):
      entry = tarfile.TarInfo(f"{name}.onnx")
      entry.size = len(data)
      opened.addfile(entry, io.BytesIO(data))
  archive.write_bytes(lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME))
  read.cache_clear()
