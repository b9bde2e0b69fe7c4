"""Defaults from a file: read where the command runs, checked by name, weaker than the command line."""

import pytest
from refused import refused
from typer.main import get_command

from mirage_onnx import cli, commands, machine_commands, model_commands
from mirage_onnx.config_file import read_config
from mirage_onnx.errors import Exit

assert commands.app is model_commands.app is machine_commands.app  # all verbs are there
VERBS = get_command(commands.app).commands


def found(folder, text, name="mirage.toml"):
  (folder / name).write_text(text)
  return read_config(folder, VERBS)


def test_nothing(tmp_path):
  assert not read_config(tmp_path, VERBS).defaults
  assert not found(tmp_path, "[tool.other]\nx = 1", "pyproject.toml").defaults
  assert not found(tmp_path, "no toml", "pyproject.toml").defaults  # not ours to judge


def test_names_are_those_of_the_command_line(tmp_path):
  text = '[optimize]\nbudget = 9\nfail-if-unchanged = true\nshapes = ["n=1"]\ncheck = false\n'
  text += "[inspect]\nall = true"
  config = found(tmp_path, text)
  assert config.source == "mirage.toml"
  given = {"budget": 9, "fail_if_unchanged": True, "shapes": ["n=1"], "check": False}
  assert config.defaults == {"optimize": given, "inspect": {"every": True}}


def test_own_file_before_the_projects(tmp_path):
  project = found(tmp_path, "[tool.mirage-onnx.optimize]\nfail_if_unchanged = true", "pyproject.toml")
  assert (project.source, project.defaults) == ("pyproject.toml", {"optimize": {"fail_if_unchanged": True}})
  assert found(tmp_path, "").defaults == {}


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("[optimise]", "no verb is called 'optimise'; there are optimize"),
    ("[optimize]\nbudgets = 1", "optimize has no option 'budgets'; it has budget"),
    ("[optimize]\njson = true", "has no option 'json'"),
    ("[optimize]\noutput = 'x'", "has no option 'output'"),
    ("optimize = 1", "optimize is no table"),
    ("[optimize.budget]\nx = 1", "optimize.budget is a table"),
    ("[optimize", "mirage.toml: "),
    ("a = " + "[" * 100_000, "mirage.toml: "),
  ],
)
def test_refusals(tmp_path, text, said):
  with refused("CONFIG_INVALID", said):
    found(tmp_path, text)


def test_not_utf8_and_no_table(tmp_path):
  (tmp_path / "mirage.toml").write_bytes(b"\xff")
  with refused("CONFIG_INVALID"):
    read_config(tmp_path, VERBS)
  (tmp_path / "mirage.toml").unlink()
  with refused("CONFIG_INVALID", "mirage-onnx is no table"):
    found(tmp_path, "[tool]\nmirage-onnx = 1", "pyproject.toml")


def test_the_command_line_wins(tmp_path, monkeypatch, capsys):
  """A model that is not there ends both, after the options were read."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "mirage.toml").write_text('[inspect]\ntarget = "nonsense"')
  assert cli.main(["inspect", "no.onnx"]) == Exit.INPUT
  assert "no target 'nonsense'" in capsys.readouterr().err
  assert cli.main(["inspect", "no.onnx", "--target", "h200"]) == Exit.INPUT
  assert "FILE_MISSING" in capsys.readouterr().err
  (tmp_path / "mirage.toml").write_text('[optimize]\nbudget = "soon"')
  assert cli.main(["optimize", "no.onnx"]) == Exit.INPUT
  assert "(defaults are of mirage.toml)" in capsys.readouterr().err
  for budget in ("1e9", '"1000h1000h1000h"'):  # a number and a text: both are read
    (tmp_path / "mirage.toml").write_text(f"[optimize]\nbudget = {budget}")
    assert cli.main(["optimize", "no.onnx"]) == Exit.INPUT
    assert "10000000 at most" in capsys.readouterr().err
  (tmp_path / "mirage.toml").write_text("[nonsense]")
  assert cli.main(["version"]) == Exit.INPUT
  assert "CONFIG_INVALID" in capsys.readouterr().err
