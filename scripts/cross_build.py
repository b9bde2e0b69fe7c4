"""Builds the custom-op library for other systems, with GNU's cross compilers or zig's, and looks at it.

    python scripts/cross_build.py [--with gnu|zig] [--zig PYTHON] [--session] [--out build/cross] [TARGET ...]

``gnu`` (as in CI): Debian's g++-aarch64-linux-gnu and g++-mingw-w64-x86-64-posix, half a minute. ``zig``: the
compiler of ziglang (PyPI), for glibc 2.28 on aarch64; ``--zig``: a Python that has it; default: that of
``scripts/build_wheels.sh``. What comes out has to be of the right machine and export what ONNX Runtime and
Python ask for. That for aarch64 runs in QEMU, that for Windows in Wine, if they are there (Debian's
qemu-user, wine64): it has to say of the bundle of an optimized model, and of a GPU, what this machine's
library says (``cross_try.cc``). ``--session``: a model also runs in Windows' own ONNX Runtime, of PyPI's
wheel, with and without the library, with no GPU and with a stand-in (``cross_session.cc``). Prints a row of
docs/compatibility.md for each; exit 1 where one is wrong.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "cpp" / "ort_custom_ops"


@dataclass(frozen=True)
class Target:
  """``machine``: its number in a library's header; ``options``: of the linker; ``gnu``: GNU's compiler.

  ``static``: what it takes to need no other library of the compiler. ``runs``: what runs its programs here.
  ``wheel``: pip's name of its system.
  """

  file: str
  machine: int
  zig: str
  gnu: str
  options: tuple[str, ...]
  static: tuple[str, ...]
  runs: tuple[str, ...]
  wheel: str


TARGETS = {
  "aarch64-linux-gnu": Target(
    "libmirage_onnx_ops.so", 183, "aarch64-linux-gnu.2.28", "aarch64-linux-gnu-g++",
    ("-Wl,-z,nodelete", "-Wl,--no-undefined", "-ldl", "-lpthread"),
    ("-static-libstdc++", "-static-libgcc", "-ldl"),
    ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"), "",  # QEMU 7.2 faults as it opens ONNX Runtime
  ),
  "x86_64-windows-gnu": Target(
    "mirage_onnx_ops.dll", 0x8664, "x86_64-windows-gnu", "x86_64-w64-mingw32-g++-posix", (), ("-static",),
    ("wine",), "win_amd64",
  ),
}  # fmt: skip
EXPORTS = (b"RegisterCustomOps", b"mirage_counters_json", b"mirage_counters_mark", b"mirage_hide_ops")


def sources():
  """What CMakeLists.txt makes the library of."""
  text = (SOURCES / "CMakeLists.txt").read_text()
  listed = text.partition("add_library(mirage_onnx_ops SHARED")[2].partition(")")[0]
  return [SOURCES / name for name in listed.split()]


def build(zig, name, folder):
  """The library, or what the compiler says; ``zig``: its Python, None for GNU's compiler."""
  target = TARGETS[name]
  made = folder / name / target.file
  made.parent.mkdir(parents=True, exist_ok=True)
  compiler = (
    [str(zig), "-m", "ziglang", "c++", "-target", target.zig] if zig else [target.gnu, *target.static]
  )
  command = [
    *compiler, "-shared", "-fPIC", "-std=c++17", "-O2", "-Wall",
    "-Wextra", "-Werror", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-s", "-o", str(made),
    *map(str, sources()), *target.options,
  ]  # fmt: skip
  if shutil.which(command[0]) is None:
    return made, f"there is no {command[0]}"
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  return made, "" if done.returncode == 0 else done.stderr.strip()[-600:]


def wrong(data, target):
  """What a library is not, or ""."""
  machine = TARGETS[target].machine
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


def ran(name, made, folder, session):
  """What the library did in an emulator: (wrong, note); neither where there is none."""
  target = TARGETS[name]
  if shutil.which(target.runs[0]) is None:
    return "", ""
  from mirage_onnx.custom_op.library import get_library_path

  here, there = Here(folder, "g++", ("-ldl",), ()), Here(folder, target.gnu, target.static, target.runs)
  original, optimized, bundle = models(folder)
  note = f", says in {target.runs[0]} of a bundle what this machine's says"
  own = {"WINEPREFIX": str((folder / "wine").resolve()), "WINEDEBUG": "-all"}
  try:
    if (
      target.runs[0] == "wine"
      and subprocess.run(  # Debian's is a script, also without what it starts
        ("wine", "cmd", "/c", "exit", "0"),
        capture_output=True,
        timeout=300,
        check=False,
        env=os.environ | own,
      ).returncode
    ):
      return "", "; wine does not start here"
    sides = (here, library_of(), get_library_path()), (there, "", made)
    pairs = [[side.said("cross_try.cc", ours, bundle) for side, _, ours in sides]]
    if session and target.wheel:
      sides = sides[0], (there, library_of(folder, target.wheel), made)
      pairs.append([
        side.said("cross_session.cc", runtime, ours, original, optimized, side.stand_in())
        for side, runtime, ours in sides
      ])  # fmt: skip
      note += ", and runs a model there in ONNX Runtime's own build"
  except (subprocess.TimeoutExpired, OSError) as error:  # the emulator may not start in a container
    return "", f"; {target.runs[0]} did not run it ({type(error).__name__})"
  wrong = [b[-600:] for a, b in pairs if a != b or not a.endswith("exit 0")]
  return (wrong[0], "") if wrong else ("", note)


def models(folder):
  """A model, what is made of it for two GPUs, and the bundle of that."""
  import mirage_onnx
  from mirage_onnx.rewrite.model import BUNDLE_NAME

  original, made, bundle = ROOT / "models" / "rmsnorm_linear.onnx", folder / "made.onnx", folder / "bundle"
  model = mirage_onnx.optimize(original, target="h200,a100").model
  made.write_bytes(model.SerializeToString())
  bundle.write_bytes(next(i.raw_data for i in model.graph.initializer if i.name == BUNDLE_NAME))
  return original, made, bundle


def library_of(folder=None, wheel=""):
  """ONNX Runtime's library, of this environment's version: its own, or that of a wheel for another system."""
  found = Path(importlib.util.find_spec("onnxruntime").origin).parent / "capi"
  if wheel:
    place = folder / wheel
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--upgrade"]
    wanted = f"onnxruntime=={importlib.metadata.version('onnxruntime')}"
    subprocess.run([*command, f"--platform={wheel}", "--target", place, wanted], check=True)
    found = place / "onnxruntime" / "capi"
  names = re.compile(r"libonnxruntime\.so\.[\d.]+|onnxruntime\.dll")
  return next(p for p in sorted(found.iterdir()) if names.fullmatch(p.name))


@dataclass(frozen=True)
class Here:
  """Programs of a compiler, and what runs them on this machine."""

  folder: Path
  compiler: str
  options: tuple[str, ...]
  runs: tuple[str, ...]

  def made(self, name, *what):
    """A program or a library."""
    made = self.folder / f"{self.compiler}-{name}"
    common = [self.compiler, "-std=c++17", "-O1", f"-I{SOURCES}", "-o", made]
    subprocess.run([*common, *what, *self.options], check=True)
    return made

  def stand_in(self):
    """A driver that takes NVRTC's images; their kernels do nothing."""
    sources = ROOT / "tests" / "custom_op" / "standin_driver.cc", SOURCES / "image.cc"
    return self.made("driver.dll", "-shared", "-fPIC", "-DSTANDIN_IMAGES", *sources)

  def said(self, source, *arguments):
    """What a program beside this file prints."""
    program = self.made(f"{source}.exe", Path(__file__).with_name(source))
    surroundings = os.environ | {"WINEPREFIX": str(self.folder.resolve() / "wine"), "WINEDEBUG": "-all"}
    command = [*self.runs, program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=surroundings)
    return done.stdout.replace("\r", "") + f"exit {done.returncode}"


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--with", dest="compiler", choices=("gnu", "zig"), default="gnu")
  parser.add_argument("--zig", type=Path, default=ROOT / "build" / "wheel-tools" / "bin" / "python")
  parser.add_argument("--out", type=Path, default=ROOT / "build" / "cross")
  parser.add_argument("--session", action="store_true", help="run a model, too: downloads onnxruntime")
  parser.add_argument("targets", nargs="*", default=list(TARGETS))
  options = parser.parse_args()
  bad = 0
  for target in options.targets:
    made, said = build(options.zig if options.compiler == "zig" else None, target, options.out)
    said, note = said or wrong(made.read_bytes(), target), ""
    if not said:
      said, note = ran(target, made, options.out, options.session)
    bad += bool(said)
    print(
      f"| {target} | {said or f'{made.stat().st_size >> 10} KiB, exports what it has to{note}'} |", flush=True
    )
  return int(bad > 0)


if __name__ == "__main__":
  sys.exit(main())
