"""The keys of what is kept: all source that decides is in them, at any depth."""

import ast
import shutil

import pytest

from mirage_onnx import source_digest as sources
from mirage_onnx.source_digest import PACKAGE, source_digest

LISTS = {
  "search": (sources.SEARCH_SOURCES, ("superopt/search.py", "superopt/unit_worker.py")),
  "proof": (
    (*sources.PROOF_SOURCES, *sources.SEARCH_SOURCES),
    ("searching.py", "verify/prover.py"),
  ),
}  # fmt: skip


@pytest.fixture
def tree(tmp_path):
  """A copy of the package that may be changed."""
  copy = tmp_path / "mirage_onnx"
  shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
  return copy


def imported(start):
  """The modules of the package that these import, and what those import, wherever it stands."""
  found, todo = set(), [PACKAGE / s for s in start]
  while todo:
    path = todo.pop()
    if path in found:
      continue
    found.add(path)
    for node in ast.walk(ast.parse(path.read_text())):
      names = []
      if isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
      elif isinstance(node, ast.Import):
        names = [a.name for a in node.names]
      for name in names:
        head, *rest = name.split(".")
        if head == "mirage_onnx" and rest:
          at = PACKAGE.joinpath(*rest)
          todo += [p for p in (at.with_suffix(".py"), at / "__init__.py") if p.is_file()]
  return {p.relative_to(PACKAGE).as_posix() for p in found}


@pytest.mark.parametrize("name", LISTS)
def test_all_that_decides_is_listed(name):
  parts, start = LISTS[name]
  others = {m for m in imported(start) if not any(m == p or m.startswith(f"{p}/") for p in parts)}
  assert not others, f"part of no key: {sorted(others)}"


@pytest.mark.parametrize(
  ("parts", "new"),
  [
    (sources.SEARCH_SOURCES, "superopt/algebra/rules/new.py"),
    (sources.SEARCH_SOURCES, "ir/tables/new.py"),
    (sources.PROOF_SOURCES, "verify/field/new.py"),
    (sources.PROOF_SOURCES, "match/a/new.py"),
    (sources.EMULATION_SOURCES, "emulator/host/sm100/new.h"),
    (sources.EMULATION_SOURCES, "codegen/device/sm100/new.cuh"),
    (sources.HEADER_SOURCES, "codegen/device/sm100/new.cuh"),
    (sources.MACHINE_SOURCES, "compiler/machine/new.py"),
  ],
)
def test_a_file_in_a_subfolder_changes_the_key(tree, parts, new):
  before = source_digest(*parts, package=tree)
  assert before == source_digest(*parts)
  path = tree / new
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("")
  sources.forget()
  added = source_digest(*parts, package=tree)
  path.write_text("# other\n")
  sources.forget()
  assert len({before, added, source_digest(*parts, package=tree)}) == 3


def test_a_table_of_a_target_is_source(tree):
  before = source_digest(*sources.SEARCH_SOURCES, package=tree)
  (tree / "ir" / "rates.json").write_text("{}")
  (tree / "ir" / "notes.txt").write_text("decides nothing")
  sources.forget()
  assert source_digest(*sources.SEARCH_SOURCES, package=tree) != before


@pytest.mark.parametrize(
  "parts",
  [sources.SEARCH_SOURCES, sources.PROOF_SOURCES, sources.EMULATION_SOURCES, sources.HEADER_SOURCES],
)
def test_a_part_that_has_moved_is_missed(tree, parts):
  for part in parts:
    moved = tree / part
    moved.rename(tree / "elsewhere")
    sources.forget()
    with pytest.raises(FileNotFoundError, match=r"part of a key"):
      source_digest(*parts, package=tree)
    (tree / "elsewhere").rename(moved)
