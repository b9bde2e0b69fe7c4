"""The pages of docs/: all are in the site, every link leads somewhere, every command has its options."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import mirage_onnx.commands
import mirage_onnx.machine_commands
import mirage_onnx.model_commands  # all fill the app
from mirage_onnx.command_options import app
from mirage_onnx.targets import ARCHITECTURES, TARGETS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {p.relative_to(DOCS).as_posix(): p.read_text(encoding="utf-8") for p in sorted(DOCS.rglob("*.md"))}
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)


def test_every_page_is_in_the_site():
  nav = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
  assert sorted(nav) == sorted(PAGES)


def prose(text):
  return re.sub(r"(`+)[^\n]*?\1", "", FENCES.sub("", text))


@pytest.mark.parametrize("name", PAGES)
def test_links(name):
  for target in re.findall(r"(?<!\\)\[[^\]\\]*\]\(([^)\s]+)\)", prose(PAGES[name])):
    path = target.partition("#")[0]
    assert re.match(r"https?://", target) or not path or (DOCS / name).parent.joinpath(path).is_file(), target


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_programs(name):
  verbs = get_command(app).commands
  assert mirage_onnx.commands and mirage_onnx.model_commands and mirage_onnx.machine_commands
  for language, body in FENCES.findall(PAGES[name]):
    if language == "python":
      ast.parse(f"{{{body}}}" if body.startswith(" ") else body)  # a row of a table, or a program
    if language == "console":
      for verb, rest in re.findall(r"^\$ mirage-onnx (\w+)((?:.*\\\n)*.*)$", body, re.M):
        known = {o for p in verbs[verb].params for o in (*p.opts, *p.secondary_opts)}
        options = re.findall(r"(?<=\s)--?[a-z][\w-]*", rest.partition("#")[0])
        assert set(options) <= known, (verb, options)


def test_symbols_of_the_api_page():
  for dotted in re.findall(r"^::: ([\w.]+)$", PAGES["api.md"], re.M):
    module, name = dotted.rsplit(".", 1)
    found = __import__(module, fromlist=[name])
    assert (getattr(found, name).__doc__ or "").strip(), dotted


def test_verify_is_the_function_too(monkeypatch):
  """And the package, whose modules are imported from it."""
  import mirage_onnx.api
  from mirage_onnx.verify import Verdict

  assert Verdict and mirage_onnx.verify.__path__
  monkeypatch.setattr(mirage_onnx.api, "verify", lambda *a, **k: (a, k))
  assert mirage_onnx.verify("a", "b", seed=1) == (("a", "b"), {"seed": 1})
  command = [sys.executable, "-c", "import mirage_onnx; assert callable(mirage_onnx.verify)"]
  subprocess.run(command, check=True, cwd=ROOT)


def test_the_citation_has_the_version():
  text = (ROOT / "CITATION.cff").read_text()
  assert f"\nversion: {mirage_onnx.__version__}\n" in text
  assert "docs" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.slow
def test_the_site_builds(tmp_path):
  """As ``make docs``: with the tools that it has installed, or those of this environment."""
  beside = ROOT / "build/docs/bin/mkdocs"
  mkdocs = str(beside) if beside.exists() else shutil.which("mkdocs", path=str(Path(sys.executable).parent))
  if mkdocs is None:
    pytest.skip("mkdocs is not installed: make docs")
  command = [mkdocs, "build", "-q", "--strict", "-d", str(tmp_path / "site")]
  environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "site/paths/encoder/index.html").exists()


def test_the_page_names_every_row():
  page = (ROOT / "docs" / "compatibility.md").read_text()
  table = dict(re.findall(r"^\| (sm_\w+) \| ([^|]+) \|", page, re.MULTILINE))
  assert table.keys() == ARCHITECTURES.keys()
  for arch, names in table.items():
    assert {*names.split(", ")} == {t.name for t in TARGETS.values() if t.arch == arch}


def test_what_is_there_is_shown_by_files_that_are_there():
  """All 34 rows, each with tests or records (no. 32 is not there, with its reason)."""
  rows = re.findall(r"^\| ([\d+][^|]*) \| ([^|]+) \| (.+) \| ([^|]+) \|$", PAGES["features.md"], re.M)
  numbers = set()
  for number, _, _, shown in rows:
    if number != "+":
      first, *last = map(int, re.findall(r"\d+", number))
      numbers |= set(range(first, (last or [first])[-1] + 1))
    files = [] if shown == "-" else shown.split(", ")
    assert bool(files) == (number != "32")
    assert all((ROOT / f).is_file() for f in files), files
  assert numbers == set(range(1, 35))
