"""The custom-op library, and parts of it, built under sanitizers: addresses, undefined behaviour, threads."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "cpp" / "ort_custom_ops"
FLAGS = ("-std=c++17", "-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-std=c++17", "-O1", "-g1", "-fsanitize=thread")
READERS = ("bundle", "expr", "image", "node_digest", "plan", "sha256")


def build(output, *arguments, flags=FLAGS):
  """The path, or None where the compiler has no sanitizers."""
  done = subprocess.run(["g++", *flags, *arguments, "-o", str(output)], capture_output=True, text=True)
  if "cannot find" in done.stderr:
    return None
  assert done.returncode == 0, done.stderr
  return output


def build_fuzzer(folder):
  """The program of ``tests/custom_op/fuzz_main.cc``."""
  files = [ROOT / "tests" / "custom_op" / "fuzz_main.cc", *(SOURCES / f"{name}.cc" for name in READERS)]
  return build(folder / "fuzz", f"-I{SOURCES}", *map(str, files))


def build_ops(folder, sources=SOURCES, flags=FLAGS):
  """The whole library, to be loaded by a process that has the sanitizer's own (``preload``)."""
  files = [str(path) for path in sorted(sources.glob("*.cc"))]
  shared = ("-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,nodelete", f"-I{sources}", "-ldl")
  return build(folder / "libmirage_onnx_ops.so", *files, *shared, flags=flags)


def preload(library="libasan.so"):
  """The sanitizer of this compiler; libstdc++ too, or it does not find what throws exceptions."""
  ask = (["g++", f"-print-file-name={name}"] for name in (library, "libstdc++.so.6"))
  return ":".join(subprocess.run(a, capture_output=True, text=True).stdout.strip() for a in ask)
