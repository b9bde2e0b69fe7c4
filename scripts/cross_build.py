"""Builds the custom-op library for other systems, with the compiler of ziglang (PyPI), and looks at it.

    python scripts/cross_build.py [--zig PYTHON] [--out build/cross] [TARGET ...]

``--zig``: a Python that has ziglang; default: that of ``scripts/build_wheels.sh``. What comes out has to be
of the right machine and export what ONNX Runtime and Python ask for; it cannot be run here. Prints a row of
docs/compatibility.md for each; exit 1 where one is wrong.
"""

import argparse
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "cpp" / "ort_custom_ops"
#: Zig's name of a target -> (file, the machine's number in its header, options of the linker).
TARGETS = {
  "aarch64-linux-gnu.2.28": (
    "libmirage_onnx_ops.so",
    183,
    ("-Wl,-z,nodelete", "-Wl,--no-undefined", "-ldl", "-lpthread"),
  ),
  "x86_64-windows-gnu": ("mirage_onnx_ops.dll", 0x8664, ()),
}
EXPORTS = (b"RegisterCustomOps", b"mirage_counters_json", b"mirage_counters_mark", b"mirage_hide_ops")


def sources():
  """What CMakeLists.txt makes the library of."""
  text = (SOURCES / "CMakeLists.txt").read_text()
  listed = text.partition("add_library(mirage_onnx_ops SHARED")[2].partition(")")[0]
  return [SOURCES / name for name in listed.split()]


def build(zig, target, folder):
  """The library, or what the compiler says."""
  name, _, options = TARGETS[target]
  made = folder / target / name
  made.parent.mkdir(parents=True, exist_ok=True)
  command = [
    str(zig), "-m", "ziglang", "c++", "-target", target, "-shared", "-fPIC", "-std=c++17", "-O2", "-Wall",
    "-Wextra", "-Werror", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-s", "-o", str(made),
    *map(str, sources()), *options,
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  return made, "" if done.returncode == 0 else done.stderr.strip()[-600:]


def wrong(data, target):
  """What a library is not, or ""."""
  machine = TARGETS[target][1]
  if data[:4] == b"\x7fELF":
    found = struct.unpack_from("<H", data, 18)[0]
  elif data[:2] == b"MZ":
    found = struct.unpack_from("<H", data, struct.unpack_from("<I", data, 60)[0] + 4)[0]
  else:
    return "no library"
  if found != machine:
    return f"machine {found}, not {machine}"
  missing = [e.decode() for e in EXPORTS if b"\0" + e + b"\0" not in data]
  return f"does not export {', '.join(missing)}" if missing else ""


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--zig", type=Path, default=ROOT / "build" / "wheel-tools" / "bin" / "python")
  parser.add_argument("--out", type=Path, default=ROOT / "build" / "cross")
  parser.add_argument("targets", nargs="*", default=list(TARGETS))
  options = parser.parse_args()
  bad = 0
  for target in options.targets:
    made, said = build(options.zig, target, options.out)
    said = said or wrong(made.read_bytes(), target)
    bad += bool(said)
    print(f"| {target} | {said or f'{made.stat().st_size >> 10} KiB, exports what it has to'} |", flush=True)
  return int(bad > 0)


if __name__ == "__main__":
  sys.exit(main())
