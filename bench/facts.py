"""What a reader of recorded numbers needs to know about the run that made them."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import mirage_onnx

ROOT = Path(__file__).resolve().parents[1]


def facts(packages):
  """Date, command, commit, whether the tree had changes, cores and versions."""
  return {
    "date": datetime.now(UTC).isoformat(timespec="seconds"),
    "command": " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    "commit": os.environ.get("MIRAGE_COMMIT") or _git("rev-parse", "HEAD") or "unknown",
    "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
    "cores": os.cpu_count(),
    "versions": {
      "mirage-onnx": mirage_onnx.__version__,
      "python": platform.python_version(),
      **{name: _version(name) for name in packages},
    },
  }


def _version(name):
  """Of a package, or of its build for GPUs, which is a package of another name."""
  try:
    return metadata.version(name)
  except metadata.PackageNotFoundError:
    return metadata.version(f"{name}-gpu")


def _git(*arguments):
  """What git says; nothing in a copy of the tree (MIRAGE_COMMIT says its commit)."""
  try:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
  except FileNotFoundError:
    return ""
  return done.stdout.strip()
