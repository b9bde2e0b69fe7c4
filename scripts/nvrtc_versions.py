"""Compiles the golden kernels with many versions of NVRTC, each in a process of its own; needs no GPU.

    python scripts/nvrtc_versions.py [VERSION ...] [--folder FOLDER] [--group goldens]

Every version is a package of PyPI, installed by itself; 12.x is of another name. Texts are those of
``bench/replay``; a kernel passes where ``compile_cubin`` makes an image without spills. Prints a row of
docs/compatibility.md for each version; exit 1 where a kernel does not compile.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

VERSIONS = ("12.9.41", "12.9.86", "13.0.48", "13.0.88", "13.5.37")
ROOT = Path(__file__).resolve().parents[1]

CHILD = """
import ctypes, json, sys
from pathlib import Path
# Whoever asks for NVRTC later finds the one that is loaded.
for path in (*sorted(Path(sys.argv[1]).parent.glob("libnvrtc-builtins.so.*[0-9]")), sys.argv[1]):
  ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
sys.path[:0] = ["bench", "tests/support"]
from replay_record import made, read_group
from cuda.bindings import nvrtc
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.target import get_target
kernels, failed, registers = 0, [], 0
for entry in read_group(Path(sys.argv[2])):
  for kernel in (k for k in made(entry) if k.text):
    kernels += 1
    try:
      registers += compile_cubin(kernel.text, get_target(entry.target), name=kernel.name).registers
    except RejectionError as error:
      failed.append(f"{entry.name}: {error.rejection}"[:300])
version = ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
print(json.dumps({"version": version, "kernels": kernels, "failed": failed, "registers": registers}))
"""


def library(version, folder):
  """The library of a version, installed if it is not there; None if that fails."""
  place = folder / version
  if not place.is_dir():
    name = "nvidia-cuda-nvrtc-cu12" if version.startswith("12.") else "nvidia-cuda-nvrtc"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
    subprocess.run([*command, f"{name}=={version}"], capture_output=True, check=False)
  found = sorted(place.rglob("libnvrtc.so.1[23]"))
  return found[0] if found else None


def check(version, folder, group):
  """What the child found, or why it did not."""
  path = library(version, folder)
  if path is None:
    return {"failed": ["it could not be installed"], "kernels": 0}
  command = [sys.executable, "-c", CHILD, str(path), f"bench/replay/{group}.jsonl"]
  done = subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, check=False,
    env={**os.environ, "PYTHONPATH": str(ROOT), "MIRAGE_ONNX_CACHE": "off"},
  )  # fmt: skip
  if done.returncode:
    return {"failed": [done.stderr.strip().splitlines()[-1][:300]], "kernels": 0}
  found = json.loads(done.stdout.splitlines()[-1])
  if not version.startswith(found["version"]):
    found["failed"] = [f"NVRTC {found['version']} ran"]
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("versions", nargs="*", default=VERSIONS)
  parser.add_argument("--folder", type=Path, default=ROOT / "build" / "nvrtc-versions")
  parser.add_argument("--group", default="goldens")
  options = parser.parse_args()
  options.folder.mkdir(parents=True, exist_ok=True)
  bad = 0
  for version in options.versions:
    found = check(version, options.folder, options.group)
    failed = found["failed"]
    bad += bool(failed)
    right = found["kernels"] - len(failed)
    said = f"{right} of {found['kernels']} kernels, {found.get('registers', 0)} registers in all"
    print(f"| {version} | {said}{'; ' + failed[0] if failed else ''} |", flush=True)
  return int(bad > 0)


if __name__ == "__main__":
  sys.exit(main())
