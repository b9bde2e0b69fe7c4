"""The README's first ten minutes: the commands that the script finds, and how it runs them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import first_ten_minutes
import pytest
from typer.main import get_command

import mirage_onnx.commands  # these fill the app
import mirage_onnx.machine_commands
import mirage_onnx.model_commands
from mirage_onnx.command_options import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_commands_of_the_page():
  """From the install to two verified models; files of Python are whole, and compile."""
  found = first_ten_minutes.commands(TEXT)
  assert found[0].startswith("python3 -m venv") and "pip install 'mirage-onnx[cpu]'" in found
  verbs = [c.split()[1] for c in found if c.startswith("mirage-onnx ")]
  assert verbs[:2] == ["env", "demo"] and verbs.count("optimize") == verbs.count("verify") == 2
  files = [c for c in found if c.startswith("cat > ")]
  assert len(files) == 2
  for file in files:
    compile(re.fullmatch(r"cat > \S+ <<'END'\n(.*)END", file, re.S)[1], "page", "exec")


def test_options_of_the_page():
  assert mirage_onnx.commands and mirage_onnx.machine_commands and mirage_onnx.model_commands
  for command in first_ten_minutes.commands(TEXT):
    if command.startswith("mirage-onnx "):
      verb = get_command(app).commands[command.split()[1]]
      known = {o for p in verb.params for o in (*p.opts, *p.secondary_opts)}
      assert set(re.findall(r"(?<=\s)--?[a-z][\w-]*", command)) <= known, command


PAGE = """# x
## The first ten minutes
<!-- not run: elsewhere -->

```console
$ cat > a.txt <<'END'
$ not a command
END
$ grep -c not \\
    a.txt
output
$ echo 'mirage-onnx[cpu]'
{more}```
text
## Behind
```console
$ false
```
"""


def test_what_is_a_command():
  assert first_ten_minutes.commands(PAGE.format(more="")) == [
    "cat > a.txt <<'END'\n$ not a command\nEND", "grep -c not \\\n    a.txt", "echo 'mirage-onnx[cpu]'",
  ]  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_a_run(tmp_path, fails):
  page, record = tmp_path / "README.md", tmp_path / "record.json"
  page.write_text(PAGE.format(more="$ false\n$ echo never\n" if fails else ""))
  code = (
    "import sys, first_ten_minutes as f; from pathlib import Path; "
    "f.README = Path(sys.argv.pop(1)); sys.exit(f.main())"
  )
  command = [sys.executable, "-c", code, str(page), "--wheel", str(tmp_path / "w.whl"), "--out", str(record)]
  env = {"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"}
  done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
  assert done.returncode == int(fails), done.stderr + done.stdout
  assert f"{tmp_path / 'w.whl'}[cpu]\n" in done.stdout and "never" not in done.stdout.splitlines()
  rows = json.loads(record.read_text())["commands"]
  assert [r["status"] for r in rows] == [0, 0, 0, *([1] if fails else [])]
