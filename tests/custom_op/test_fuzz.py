"""Hostile bytes against the C++ parsers, with the compiler's sanitizers watching."""

import subprocess
from pathlib import Path

import pytest

from mirage_onnx.custom_op import Bundle, const, dim, write_bundle
from mirage_onnx.custom_op.plan import Equal

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "cpp" / "ort_custom_ops"
ITERATIONS = 20_000


@pytest.mark.slow  # the sanitized build takes ten seconds
def test_parsers_survive_mutated_input(models, tmp_path):
  program = tmp_path / "fuzz"
  files = [HERE / "fuzz_main.cc", *(SOURCES / f"{n}.cc" for n in ("bundle", "expr", "plan"))]
  flags = ["-std=c++17", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
  build = ["g++", *flags, f"-I{SOURCES}", *map(str, files), str(SOURCES / "sha256.cc")]
  built = subprocess.run([*build, "-o", str(program)], capture_output=True, text=True)
  if "cannot find" in built.stderr:
    pytest.skip("this compiler has no sanitizer runtime")
  assert built.returncode == 0, built.stderr
  plans = (
    models.add_plan(equal=(Equal(dim(0, 0) * dim(1, 0), const(4)),)).to_text(),
    models.add_plan(workspace=dim(0, 0).ceildiv(7) * (dim(1, 0) + const(1))).to_text(),
  )
  seeds = [write_bundle(Bundle((b"cubin", b""), plans, ({"a": 1},))), *map(str.encode, plans)]
  paths = []
  for number, seed in enumerate(seeds):
    path = tmp_path / f"seed{number}"
    path.write_bytes(seed)
    paths.append(str(path))
  done = subprocess.run([str(program), str(ITERATIONS), *paths], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr[-2000:]
  # Some mutants must still be plans, or the evaluator has not been reached at all.
  assert int(done.stdout) > ITERATIONS // 100
