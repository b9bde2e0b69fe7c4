"""ONNX Runtime's C# API compiled by Mono, from the source in an npm package, for the C# sample.

No .NET is in the registries that this project reaches. Mono is (Debian's ``mono-mcs`` and
``mono-runtime``), and npm has a package with onnxruntime's own C# files (for Unity, which compiles them
itself). Mono's compiler knows C# 7, so what is newer in these files is spelled as C# 7 has it: none of
that changes what a call does, but that ``using`` declarations are not disposed of at the end of a block.
"""

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

PACKAGE = "com.github.asus4.onnxruntime@0.4.9"
TOOLS = ("mcs", "mono", "npm")
#: (what C# 8 to 10 write, what C# 7 does)
_OLDER = (
  (r"\(([\w.]+) is not (?!null\b)(\w+)\)", r"(!(\1 is \2))"),
  (r"\bis not null\b", "!= null"),
  (r"\bis null\b", "== null"),
  (r"\busing var (\w+ =)", r"var \1"),
  (r"\bstatic (\w+ =>)", r"\1"),
  (r"([\w<>]+) (\w+) = new\(", r"\1 \2 = new \1("),
  (r"(where \w+ *: *)unmanaged\b", r"\1struct"),
  (r"(?m)^( *)(\w+\[\w+\]) = (\w+\[\w+\]) = (\w+);", r"\1\2 = \4; \3 = \4;"),
  (r"(?m)^(\s*)([\w.]+\.Span)\[(\w+)\] = (.*);$", r"\1{ var span_ = \2; span_[\3] = \4; }"),
)


def missing():
  """The tools that are not here."""
  return [tool for tool in TOOLS if not shutil.which(tool)]


def api(folder):
  """The assembly of onnxruntime's C# API, compiled in a folder that has room for it."""
  subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True)
  (packed,) = folder.glob("*.tgz")
  source = folder / "api"
  source.mkdir()
  with tarfile.open(packed) as archive:
    for member in archive:
      if re.fullmatch(r"package/Runtime/(?!Training/).*\.cs", member.name):
        text = archive.extractfile(member).read().decode("utf-8-sig")
        for newer, older in _OLDER:
          text = re.sub(newer, older, text)
        (source / Path(member.name).name).write_text(text)
  packed.unlink()
  files = sorted(map(str, source.glob("*.cs")))
  made = folder / "Microsoft.ML.OnnxRuntime.dll"
  _compile(["-target:library", "-unsafe", "-define:NETSTANDARD2_0", f"-out:{made}", *files])
  return made


def sample(source, assembly):
  """A program of one file, compiled beside the API that it calls."""
  made = assembly.with_name(f"{source.stem}.exe")
  _compile([f"-r:{assembly}", f"-out:{made}", str(source)])
  return made


def run(program, *arguments, native):
  """What a program prints, with the onnxruntime library of a wheel, which lies at ``native``."""
  folder = program.parent / "native"
  folder.mkdir(exist_ok=True)
  link = folder / "libonnxruntime.so"
  if not link.exists():
    link.symlink_to(native)
  env = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
  return subprocess.run(
    ["mono", str(program), *arguments], env=env, capture_output=True, text=True, check=False
  )


def _compile(arguments):
  done = subprocess.run(
    ["mcs", "-langversion:latest", *arguments], capture_output=True, text=True, check=False
  )
  if done.returncode:
    raise AssertionError("\n".join(x for x in done.stderr.splitlines() if "error" in x))
