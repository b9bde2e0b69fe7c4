"""Where what is kept from run to run lies. Read by many that have no other use for the search."""

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
  """The folder of all caches: ``$MIRAGE_CACHE_DIR``, or the user's cache folder."""
  chosen = os.environ.get("MIRAGE_CACHE_DIR")
  return Path(chosen or platformdirs.user_cache_dir("mirage-onnx", appauthor=False))


def cache_folder(what: str = "structures") -> Path | None:
  """Where ``what`` is kept from run to run; None with ``MIRAGE_ONNX_CACHE=off`` or ``searches-off``."""
  if os.environ.get("MIRAGE_ONNX_CACHE") in ("off", "searches-off"):
    return None
  return cache_root() / what
