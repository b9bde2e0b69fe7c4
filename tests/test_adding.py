"""The recipes of docs/adding.md, followed in a copy of the tree: what they say is all that there is to do."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_onnx.custom_op.library import PATH_VARIABLE, get_library_path

ROOT = Path(__file__).resolve().parents[1]
RECIPES = (ROOT / "docs" / "adding.md").read_text()
_BLOCK = re.compile(r"<!-- (row|file): ([^ ,]+)(?:, (\w+))? -->\n\n```(?:python|cuda)\n(.*?)```", re.S)


def steps(title):
  """What the chapter says is to be done: (row or file, path, table, text)."""
  chapter = RECIPES.split(f"## {title}\n")[1].split("\n## ")[0]
  return _BLOCK.findall(chapter)


@pytest.fixture
def tree(tmp_path):
  for folder in ("mirage_onnx", "tests", "models", "bench"):
    shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so"))  # compiled, too
  shutil.copy(ROOT / "pyproject.toml", tmp_path)
  (tmp_path / "docs").mkdir()
  shutil.copy(ROOT / "docs" / "data_sheets.md", tmp_path / "docs")
  return tmp_path


def follow(tree, title):
  """Do what the chapter says; the files of the tree that changed, and those that are new."""
  changed, new = set(), set()
  for kind, name, table, text in steps(title):
    path = tree / name
    if kind == "file":
      assert not path.exists()
      path.write_text(text)
      new.add(name)
    else:
      whole = path.read_text()
      (head,) = re.findall(rf"^{table}\b.*[{{(]\n", whole, re.M)
      path.write_text(whole.replace(head, f"{head}{text.rstrip().rstrip(',')},\n"))
      changed.add(name)
  return changed, new


def passes(tree, *arguments):
  """pytest in the tree, which is the one that is imported."""
  conftest = tree / "conftest.py"
  conftest.write_text(
    "import sys\n"
    "sys.meta_path[:] = [m for m in sys.meta_path if 'Scikit' not in type(m).__name__]\n"
    f"sys.path.insert(0, {str(tree)!r})\n"
    "import mirage_onnx\n"
    f"assert mirage_onnx.__file__.startswith({str(tree)!r})\n"
  )
  environment = {**os.environ, "PYTHONPATH": str(tree), PATH_VARIABLE: get_library_path()}
  run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
  done = subprocess.run(run, cwd=tree, env=environment, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
  return int(re.search(r"(\d+) passed", done.stdout)[1])


def test_an_elementwise_function_is_a_row_and_its_test(tree):
  changed, new = follow(tree, "An elementwise function")
  assert changed == {"mirage_onnx/ir/functions.py"}
  assert new == {"tests/test_atan.py"}
  of_the_row = ("tests/ir/test_functions.py", "tests/ir/test_interval.py", "tests/verify/test_rounding.py",
                "tests/verify/test_field.py")  # fmt: skip
  assert passes(tree, "-k", "atan", *of_the_row) >= 6
  assert passes(tree, *new) == 1


@pytest.mark.slow
def test_without_the_row_its_test_fails(tree):
  (name,) = [n for kind, n, _, _ in steps("An elementwise function") if kind == "file"]
  follow_only = [text for kind, _, _, text in steps("An elementwise function") if kind == "file"]
  (tree / name).write_text(follow_only[0])
  with pytest.raises(AssertionError, match="1 failed"):
    passes(tree, name)


def test_a_block_operator_is_a_row_and_its_test(tree):
  changed, new = follow(tree, "A block operator")
  assert changed == {"mirage_onnx/ir/block_ops.py"}
  assert new == {"tests/codegen/test_run_sum.py"}
  assert passes(tree, *new) == 1
  of_the_table = (
    "tests/ir/test_block_ops.py",
    "tests/ir/test_spec.py",
    "tests/lower/test_lowering.py",
  )
  assert passes(tree, "-m", "not slow", *of_the_table) > 10


def test_an_instruction_is_a_row_its_function_and_the_twin(tree):
  changed, new = follow(tree, "An instruction of tensor cores")
  assert changed == {"mirage_onnx/instructions/rows.py"}
  header, twin, own = (
    "codegen/device/ptx_mma8.cuh",
    "emulator/host/ptx_mma8.cuh",
    "tests/codegen/tiled/test_mma8.py",
  )
  assert new == {f"mirage_onnx/{header}", f"mirage_onnx/{twin}", own}
  assert passes(tree, own) == 6
  of_the_table = "tests/emulator/test_headers.py", "tests/codegen/test_rules.py"
  assert passes(tree, "-m", "not slow", *of_the_table) > 20


@pytest.mark.slow
@pytest.mark.parametrize("left_out", ["ptx_mma8.cuh", "rows.py"])
def test_without_the_function_or_the_row_its_test_fails(tree, left_out):
  """Each of the files is needed."""
  before = (tree / "mirage_onnx/instructions/rows.py").read_text()
  follow(tree, "An instruction of tensor cores")
  if left_out == "rows.py":
    (tree / "mirage_onnx/instructions/rows.py").write_text(before)
  else:
    (tree / "mirage_onnx/emulator/host" / left_out).unlink()
  with pytest.raises(AssertionError, match="failed"):
    passes(tree, "tests/codegen/tiled/test_mma8.py")


def test_a_kind_without_rules_cannot_be_imported(tree):
  """The message names a stage that the recipe names, and the kind."""
  kinds = tree / "mirage_onnx" / "ir" / "block_ops.py"
  kinds.write_text(kinds.read_text().replace('  LOAD = "', '  SCAN = "all sums so far"\n  LOAD = "', 1))
  stages = {
    m
    for path in (ROOT / "mirage_onnx").rglob("*.py")
    for m in re.findall(r'= covered\(\s*"([^"]+)"', path.read_text())
  }
  assert len(stages) == 5
  for stage in stages:
    assert f"`{stage}`" in RECIPES
    module = f"mirage_onnx.{stage.removesuffix('.py').replace('/', '.')}"
    code = (
      f"import sys; sys.path.insert(0, {str(tree)!r}); sys.meta_path[:] = sys.meta_path[-3:]; import {module}"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    named = re.fullmatch(
      r"mirage_onnx\.ir\.rows\.MissingRowError: (\S+) lacks a row for SCAN \(docs/adding\.md\)", last
    )
    assert named and named[1] in stages, done.stderr


@pytest.mark.slow
def test_a_gpu_is_a_row_and_its_test(tree):
  changed, new = follow(tree, "A GPU")
  assert changed == {"mirage_onnx/targets/rows.py"}
  assert new == {"tests/targets/test_half.py"}
  assert passes(tree, "-k", "half", "tests/targets") >= 5
  # Choices for GPUs whose rows are as they were (test_plausible) are so, too.
  assert passes(tree, "-m", "not slow", "-k", "not half and not plausible", "tests/targets") > 50


@pytest.mark.slow
def test_every_rule_and_kernel_is_as_before(tree):
  """With the row, the tests of all other functions and the recorded kernels."""
  follow(tree, "An elementwise function")
  assert (
    passes(tree, "-m", "not slow", "tests/codegen/test_elementwise.py", "tests/bench/test_kernel_replay.py")
    > 40
  )
