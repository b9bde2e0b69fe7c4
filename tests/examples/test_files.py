"""Samples that cannot run here say so, and name only what there is: options, extras, files."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

import mirage_onnx.commands  # fills the app
from mirage_onnx.command_options import app

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TEXTS = {p.relative_to(EXAMPLES).as_posix(): p for p in EXAMPLES.rglob("*") if p.is_file()}


def options_of(verb):
  assert mirage_onnx.commands
  return {o for p in get_command(app).commands[verb].params for o in (*p.opts, *p.secondary_opts)}


@pytest.mark.parametrize("name", ["docker/Dockerfile.cpu", "docker/Dockerfile.cuda", "github/optimize.yml"])
def test_commands(name):
  text = TEXTS[name].read_text()
  lines = re.findall(r"(?:mirage-onnx|mirage-onnx:cpu|mirage-onnx:cuda) (optimize|verify)([^\n]*)", text)
  assert lines
  for verb, rest in lines:
    assert set(re.findall(r"(?<=\s)--?[a-z][\w-]*", rest)) <= options_of(verb)
  extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
  assert set(re.findall(r"pip install [^\n]*\[(\w+)\]", text)) <= set(extras) and "pip install" in text


def test_every_sample_has_its_row():
  """Tested with which version on which day, or untested and why."""
  page = (ROOT / "docs/integrations.md").read_text()
  rows = re.findall(r"^\| .*?examples/([\w/.]+).*$", page, re.M)
  folders = {name.split("/")[0] for name in TEXTS if "/" in name}
  assert {row.split("/")[0] for row in rows} == folders
  for line in page.splitlines():
    if line.startswith("| ") and "examples/" in line:
      assert re.search(r"tested with .*\d{4}-\d\d-\d\d|untested: ", line), line
