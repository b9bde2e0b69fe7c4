"""Parts of the custom-op library built under the address and undefined-behaviour sanitizers."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cpp" / "ort_custom_ops"
FLAGS = ("-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
READERS = ("bundle", "expr", "image", "node_digest", "plan", "sha256")


def build(output, *arguments):
  """The path, or None where the compiler has no sanitizers."""
  done = subprocess.run(["g++", *FLAGS, *arguments, "-o", str(output)], capture_output=True, text=True)
  if "cannot find" in done.stderr:
    return None
  assert done.returncode == 0, done.stderr
  return output


def build_fuzzer(folder):
  """The program of ``tests/custom_op/fuzz_main.cc``."""
  files = [ROOT / "tests" / "custom_op" / "fuzz_main.cc", *(SOURCES / f"{name}.cc" for name in READERS)]
  return build(folder / "fuzz", f"-I{SOURCES}", *map(str, files))


def build_ops(folder):
  """The whole library, to be loaded by a process that has ``libasan`` preloaded."""
  files = [str(path) for path in sorted(SOURCES.glob("*.cc"))]
  flags = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,nodelete", f"-I{SOURCES}", "-ldl")
  return build(folder / "libmirage_onnx_ops.so", *files, *flags)


def preload():
  """``libasan`` of this compiler; libstdc++ too, or it does not find what throws exceptions."""
  ask = (["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6"))
  return ":".join(subprocess.run(a, capture_output=True, text=True).stdout.strip() for a in ask)
