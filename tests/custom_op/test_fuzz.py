"""Hostile bytes against the C++ parsers, with the compiler's sanitizers watching."""

import subprocess
import sys
from pathlib import Path

import damaged_files
import odd_files
import pytest
from damaged_files import accepted, corpus, judged
from graph_types import ODD

from mirage_onnx.custom_op import Bundle, const, dim, write_bundle
from mirage_onnx.custom_op.plan import Equal
from tests.support.sanitized import build_fuzzer

HERE = Path(__file__).resolve().parent
ITERATIONS = 20_000
FILES = 3_000  # of each kind; bench/library_fuzz.py runs more

pytestmark = pytest.mark.slow  # the sanitized build takes ten seconds


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
  program = build_fuzzer(tmp_path_factory.mktemp("fuzz"))
  if program is None:
    pytest.skip("this compiler has no sanitizer runtime")
  return program


def test_parsers_survive_mutated_input(fuzzer, models, tmp_path):
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
  done = subprocess.run([str(fuzzer), str(ITERATIONS), *paths], capture_output=True, text=True, timeout=120)
  assert done.returncode == 0, done.stderr[-2000:]
  # Some mutants must still be plans, or the evaluator has not been reached at all.
  assert int(done.stdout) > ITERATIONS // 100


@pytest.mark.parametrize("source", [damaged_files, odd_files], ids=["damaged", "odd"])
@pytest.mark.parametrize("kind", ["P", "B", "N", "I"])
def test_files_are_judged_alike(fuzzer, tmp_path, kind, source):
  """One table of rules: both readers take the same files and say the same of the others."""
  count = FILES if source is damaged_files else FILES // 10
  files = [(kind, source.made(kind, seed)) for seed in range(count)]
  path = tmp_path / "corpus"
  path.write_bytes(corpus(files))
  command = [str(fuzzer), "judge", str(path)]
  done = subprocess.run(command, capture_output=True, timeout=120)
  assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
  said = done.stdout.decode("latin-1").split("\n")[:-1]
  assert len(said) == count
  for seed, (found, (_, data)) in enumerate(zip(said, files, strict=True)):
    ours = judged(kind, data)
    assert ours is None or found.removeprefix("bundle: ") == ours, (kind, seed)
  assert count // 10 < accepted(said) < count * 9 // 10
  assert len({reason.rpartition(":")[2] for reason in said}) > 8  # many rules, not only the first


@pytest.mark.parametrize("first", [0, ODD])
def test_graphs_of_other_types(ops_library, driver, first):
  """Refused, or right; in a process of its own. bench/library_fuzz.py runs them under the sanitizers."""
  script = HERE.parents[1] / "tests" / "support" / "graph_types.py"
  command = [sys.executable, str(script), str(first), "150", str(ops_library), driver]
  done = subprocess.run(command, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, (done.stdout, done.stderr[-300:])
  right, creation, in_run, _ = map(int, done.stdout.split())
  assert min(right, creation, in_run) > (3 if first == 0 else 0)
