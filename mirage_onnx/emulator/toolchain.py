"""The host's C++ compiler, and a cache of what it built, keyed by content."""

import atexit
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.superopt.cache_folders import cache_root
from mirage_onnx.superopt.private_folder import is_private, make_private

#: No library of ours is larger.
MOST_LIBRARY_BYTES = 1 << 28
#: Between a file and its digest.
_SEAL = b"mirage-onnx sha256"
_SEAL_BYTES = len(_SEAL) + 32


class BuildError(Exception):
  """The compiler refused the source; the message is what it printed."""


@functools.cache
def host_compiler() -> tuple[str, str]:
  """The command (``CXX``, else ``g++``) and the first line of what it says about itself.

  Raises:
      MirageError: HOST_COMPILER_MISSING.
  """
  command = os.environ.get("CXX", "g++")
  try:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
  except (OSError, subprocess.CalledProcessError) as error:
    raise MirageError(
      "HOST_COMPILER_MISSING", f"{command} could not be run, which emulation needs: {error}"
    ) from error
  return command, done.stdout.splitlines()[0]


def has_host_compiler() -> bool:
  """Whether emulation is possible on this machine."""
  try:
    host_compiler()
  except MirageError:
    return False
  return True


def cache_folder() -> Path:
  """Where built libraries are kept: below the folder of all caches.

  With ``MIRAGE_ONNX_CACHE=off``, or where one cannot write there or others can, in a folder of this
  process: what is loaded must be nobody else's. ``searches-off``: only what searches and NVRTC made is
  not kept.
  """
  return _writable(None if os.environ.get("MIRAGE_ONNX_CACHE") == "off" else cache_root())


@functools.cache
def _writable(root: Path | None) -> Path:
  try:
    if root is not None:
      own = root / "emulator"
      make_private(own)
      with tempfile.TemporaryFile(dir=own):
        if is_private(own):
          return own
  except OSError:
    pass
  folder = tempfile.mkdtemp(prefix="mirage-onnx-")
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  return Path(folder)


def sealed(data: bytes) -> bytes:
  """``data`` with its own digest behind it, which linker and loader pass over."""
  return data + _SEAL + hashlib.sha256(data).digest()


def unsealed(path: Path) -> bytes | None:
  """What was sealed in a file; None where there is none, or where it is cut or changed.

  A library that is cut short kills the process that opens it.
  """
  try:
    whole = read_bounded(path, MOST_LIBRARY_BYTES)
  except OSError:
    return None
  data, seal, digest = whole[:-_SEAL_BYTES], whole[-_SEAL_BYTES:-32], whole[-32:]
  return data if seal == _SEAL and hashlib.sha256(data).digest() == digest else None


def build_library(
  source: str, flags: Sequence[str], headers: Sequence[bytes] = (), *, suffix: str = ".so"
) -> Path:
  """What the compiler makes of one translation unit: a shared library, unless ``flags`` say else.

  It is compiled only if it was not before. ``headers``: contents of what ``source`` includes, as
  far as they can change: they are part of the key. Several processes may build the same library
  at once; each sees all of it or nothing.

  Raises:
      BuildError: the source does not compile.
      MirageError: HOST_COMPILER_MISSING.
  """
  command, version = host_compiler()
  digest = hashlib.sha256()
  for part in (source.encode(), version.encode(), platform.machine().encode(), *headers):
    digest.update(hashlib.sha256(part).digest())
  digest.update("\0".join(flags).encode())
  library = cache_folder() / f"{digest.hexdigest()}{suffix}"
  if unsealed(library) is not None:
    return library
  library.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=library.parent) as folder:
    built = Path(folder) / f"built{suffix}"
    done = subprocess.run(
      [command, *flags, "-x", "c++", "-", "-o", str(built)],
      input=source,
      capture_output=True,
      text=True,
      check=False,
    )
    if done.returncode:
      raise BuildError(done.stderr)
    replace_file(library, sealed(built.read_bytes()))
  return library
