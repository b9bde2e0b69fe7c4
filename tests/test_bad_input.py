"""What people get wrong, through the command line, from a folder of their own.

One line with the right code, the right exit code, no traceback, and all in the folder as it was.
"""

import io
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from small_models import Net

from mirage_onnx import cli
from mirage_onnx.errors import Exit
from mirage_onnx.report.text_file import write_text

OPTION = "OPTION_INVALID"
#: Arguments, the code, and words of the line.
#: No file can have this name.
LONG = f"{'x' * 300}.onnx"
CASES = (
  ("optimize", "Missing argument 'IN.onnx'", OPTION),
  ("optimize m.onnx m.onnx", "unexpected extra argument", OPTION),
  ("optimize no.onnx", "'no.onnx' does not exist", "FILE_MISSING"),
  ("optimize link.onnx", "does not exist", "FILE_MISSING"),
  ("optimize folder", "folder: it has no genai_config.json", "FOLDER_INVALID"),
  ("optimize .", "it has no genai_config.json", "FOLDER_INVALID"),
  ("explain folder n0", "'folder' is a folder, not a file", "FILE_UNREADABLE"),
  ("optimize pipe", "is not a file", "FILE_UNREADABLE"),
  (f"optimize {LONG}", "does not exist", "FILE_MISSING"),
  (f"inspect {LONG}", "does not exist", "FILE_MISSING"),
  (f"verify m.onnx {LONG}", "does not exist", "FILE_MISSING"),
  (f"optimize m.onnx -o {LONG}", "is too long", "OUTPUT_UNWRITABLE"),
  (f"optimize m.onnx -o {'d' * 5000}/x.onnx", "there is no folder", "OUTPUT_UNWRITABLE"),
  (f"optimize m.onnx --report {LONG}", "is too long", "OUTPUT_UNWRITABLE"),
  (f"explain m.onnx n0 --svg {LONG}", "is too long", "OUTPUT_UNWRITABLE"),
  ("optimize \udcff.onnx", "rename it", "FILE_UNREADABLE"),
  ("verify m.onnx \udcff.onnx", "rename it", "FILE_UNREADABLE"),
  ("optimize m.onnx -o \udcff.out", "is not UTF-8", "OUTPUT_UNWRITABLE"),
  ("optimize empty.onnx", "is empty", "NOT_ONNX"),
  ("optimize text.onnx", "is not a protobuf message", "NOT_ONNX"),
  ("optimize cut.onnx", "or is cut off", "NOT_ONNX"),
  ("optimize zip.onnx", "is not a protobuf message", "NOT_ONNX"),
  ("optimize lost.onnx", "", "EXTERNAL_DATA_MISSING"),
  ("optimize m.onnx -o folder", "folder is a folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx -o .", ". is a folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx -o /", "/ is a folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx -o -", "a model is not written to stdout", OPTION),
  ("explain m.onnx n0 --svg none/x.svg", "none is no folder that can be written to", "OUTPUT_UNWRITABLE"),
  ("explain m.onnx n0 --dot folder", "it is a folder", "OUTPUT_UNWRITABLE"),
  ("explain m.onnx n0 --cuda m.onnx", "m.onnx is a model of this run", OPTION),
  ("optimize m.onnx -o none/o.onnx", "there is no folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx -o text.onnx/o.onnx", "there is no folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx -o pipe", "is not a regular file", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx -o m.onnx", "is the input", "OUTPUT_IS_INPUT"),
  ("optimize m.onnx -o ./m.onnx", "is the input", "OUTPUT_IS_INPUT"),
  ("optimize external.onnx -o external.data", "is the input, or holds its weights", "OUTPUT_IS_INPUT"),
  ("optimize m.onnx --budget 0", "must be more than 0", OPTION),
  ("optimize m.onnx --budget -1", "must be more than 0", OPTION),
  ("optimize m.onnx --budget nan", "must be more than 0", OPTION),
  ("optimize m.onnx --budget inf", "10000000 at most", OPTION),
  ("optimize m.onnx --budget soon", "'--budget'", OPTION),
  ("optimize m.onnx --budget 10q", "10m and 1h30m are", OPTION),
  ("optimize m.onnx --locked", "there is no m.mirage.onnx.lock", "LOCK_MISSING"),
  ("optimize m.onnx -o text.onnx --locked", "there is no text.onnx.lock", "LOCK_MISSING"),
  ("optimize m.onnx --locked --dry-run", "exclude each other", OPTION),
  ("optimize m.onnx --margin 1", "less than 1", OPTION),
  ("optimize m.onnx --margin nan", "less than 1", OPTION),
  ("optimize m.onnx --target h200,", "a comma stands between two names", OPTION),
  ("optimize m.onnx --target cpu", "known: h200, h100, a100-40gb", "TARGET_UNKNOWN"),
  ("optimize m.onnx --external none", "'--external'", OPTION),
  ("optimize external.onnx -o folder/o.onnx --external keep", "can only be kept", OPTION),
  ("optimize m.onnx --shapes rows", "is not of the form", OPTION),
  ("optimize m.onnx --shapes rows=0", "is not of the form", OPTION),
  ("optimize m.onnx --shapes rows=9..3", "is not of the form", OPTION),
  ("optimize m.onnx --shapes rows=1..100000:1", "has more than 4096 sizes", OPTION),
  ("optimize m.onnx --shapes rows=1..9:0", "is not of the form", OPTION),
  ("optimize m.onnx --shapes rows=1 --shapes rows=2", "are given twice", OPTION),
  ("optimize m.onnx --shapes cols=1", "no dynamic dimension is called 'cols'; there are: rows", OPTION),
  ("optimize m.onnx -v -q", "exclude each other", OPTION),
  ("optimize m.onnx --events folder", "folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx --nonsense", "No such option", OPTION),
  ("verify m.onnx", "Missing argument", OPTION),
  ("verify m.onnx no.onnx", "'no.onnx' does not exist", "FILE_MISSING"),
  ("verify m.onnx folder", "'folder' is a folder, not a file", "FILE_UNREADABLE"),
  ("verify m.onnx text.onnx", "", "NOT_ONNX"),
  ("verify m.onnx other.onnx", "", "SHAPES_DIFFER"),
  ("verify m.onnx m.onnx --seed -1", "must not be negative", OPTION),
  ("verify m.onnx m.onnx --rtol -1", "must not be negative", OPTION),
  ("verify m.onnx m.onnx --rtol nan", "must not be negative", OPTION),
  ("verify m.onnx m.onnx --provider tpu", "'--provider'", OPTION),
  ("verify m.onnx m.onnx --provider cuda --emulate", "CPU provider", OPTION),
  ("verify m.onnx m.onnx --shapes cols=1", "no dynamic dimension is called 'cols'; there are: rows", OPTION),
  ("verify m.onnx m.onnx --inputs no.npz", "does not exist", "FILE_MISSING"),
  ("verify m.onnx m.onnx --inputs text.onnx", "is no .npz file", "INPUTS_INVALID"),
  ("verify m.onnx m.onnx --inputs names.npz", "is missing", "INPUTS_INVALID"),
  ("verify m.onnx m.onnx --inputs types.npz", "is float64, not float16", "INPUTS_INVALID"),
  ("verify m.onnx m.onnx --inputs objects.npz", "", "INPUTS_INVALID"),
  ("bench m.onnx", "Missing argument", OPTION),
  ("bench m.onnx no.onnx", "does not exist", "FILE_MISSING"),
  ("bench m.onnx folder", "is a folder, not a file", "FILE_UNREADABLE"),
  ("bench m.onnx m.onnx --seconds 0", "more than 0", OPTION),
  ("bench m.onnx m.onnx --seconds nan", "more than 0", OPTION),
  ("bench m.onnx m.onnx --seed -3", "must not be negative", OPTION),
  ("bench m.onnx m.onnx --shapes cols=2", "no dynamic dimension is called 'cols'", OPTION),
  ("diff m.onnx no.onnx", "does not exist", "FILE_MISSING"),
  ("diff m.onnx folder", "is a folder, not a file", "FILE_UNREADABLE"),
  ("diff text.onnx m.onnx", "", "NOT_ONNX"),
  ("inspect no.onnx", "does not exist", "FILE_MISSING"),
  ("inspect m.onnx --target cpu", "known: h200, h100, a100-40gb", "TARGET_UNKNOWN"),
  ("inspect m.onnx --shapes cols=1", "there are: rows", OPTION),
  ("explain m.onnx nothing", "no region or node 'nothing'", "REGION_UNKNOWN"),
  ("explain m.onnx nothing --budget inf", "10000000 at most", OPTION),
  ("optimize m.onnx --report folder", "it is a folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx --report none/r.html", "no folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx --report m.onnx", "is a model of this run", OPTION),
  ("optimize m.onnx --trace folder", "folder", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx --trace m.onnx", "is a model of this run", OPTION),
  ("optimize m.onnx --events ./m.onnx", "is a model of this run", OPTION),
  ("optimize m.onnx --events o.onnx -o o.onnx", "is a model of this run", OPTION),
  ("optimize m.onnx --events m.mirage.onnx.lock", "is a model of this run", OPTION),
  ("optimize m.onnx --events x --trace x", "asked for twice", OPTION),
  ("optimize external.onnx --events external.data", "no text", "OUTPUT_UNWRITABLE"),
  ("optimize external.onnx --report external.data", "no text", "OUTPUT_UNWRITABLE"),
  ("optimize m.onnx --trace hard.onnx", "no text", "OUTPUT_UNWRITABLE"),
  ("explain external.onnx n0 --svg external.data", "no text", "OUTPUT_UNWRITABLE"),
  ("explain m.onnx n0 --svg x --cuda x", "asked for twice", OPTION),
  ("report no.onnx", "does not exist", "FILE_MISSING"),
  ("report text.onnx", "", "NOT_ONNX"),
  ("report m.onnx", "holds no record", "REPORT_MISSING"),
  ("report m.onnx -o m.onnx", "is a model of this run", OPTION),
  ("report m.onnx --node-data m.onnx", "is a model of this run", OPTION),
  ("report m.onnx -o other.onnx", "no text", "OUTPUT_UNWRITABLE"),
  ("tune", "Missing argument", OPTION),
  ("tune no.onnx", "does not exist", "FILE_MISSING"),
  ("tune folder", "is a folder, not a file", "FILE_UNREADABLE"),
  ("tune text.onnx", "", "NOT_ONNX"),
  ("tune m.onnx", "holds no record", "REPORT_MISSING"),
  ("tune m.onnx --budget 0", "more than 0", OPTION),
  ("tune m.onnx --budget inf", "10000000 at most", OPTION),
  ("tune m.onnx --shapes rows", "", OPTION),
  ("reduce m.onnx", "Missing argument", OPTION),
  ("reduce m.onnx -- false", "has no {}", OPTION),
  ("reduce m.onnx -- nobody-has-this {}", "cannot be run", OPTION),
  ("reduce m.onnx -- true {}", "ends with exit code 0", "NOT_FAILING"),
  ("reduce m.onnx --match words -- false {}", "does not print 'words'", "NOT_FAILING"),
  ("reduce m.onnx --budget 0s -- false {}", "more than 0", OPTION),
  ("reduce m.onnx -o m.onnx -- false {}", "is the input", "OUTPUT_IS_INPUT"),
  ("reduce m.onnx -o none/o.onnx -- false {}", "no folder", "OUTPUT_UNWRITABLE"),
  ("reduce no.onnx -- false {}", "does not exist", "FILE_MISSING"),
  ("reduce text.onnx -- false {}", "", "NOT_ONNX"),
  ("reduce lost.onnx -- false {}", "", "EXTERNAL_DATA_MISSING"),
  ("demo text.onnx", "text.onnx", "OUTPUT_UNWRITABLE"),
  ("schema nothing", "is not one of", OPTION),
  ("frobnicate", "No such command", OPTION),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  made = tmp_path_factory.mktemp("own")
  net = Net()
  model = net.model(net.MatMul(net.rms(net.input("rows", 64)), net.weight(64, 64)))
  onnx.save(model, made / "m.onnx")
  more = {"save_as_external_data": True, "size_threshold": 64}
  for name in ("external", "lost"):
    onnx.save(onnx.load(made / "m.onnx"), made / f"{name}.onnx", location=f"{name}.data", **more)
  (made / "lost.data").unlink()
  (made / "\udcff.onnx").hardlink_to(made / "m.onnx")  # a byte that is no UTF-8
  (made / "hard.onnx").hardlink_to(made / "m.onnx")
  other = Net()
  onnx.save(other.model(other.Relu(other.input(3, 5))), made / "other.onnx")
  (made / "folder").mkdir()
  (made / "empty.onnx").touch()
  (made / "text.onnx").write_text("hello\n")
  (made / "cut.onnx").write_bytes((made / "m.onnx").read_bytes()[:1000])
  (made / "zip.onnx").write_bytes(b"PK\x03\x04 and so on")
  (made / "link.onnx").symlink_to("nowhere")
  os.mkfifo(made / "pipe")
  x = model.graph.input[0].name
  np.savez(made / "names.npz", y=np.ones((8, 64), np.float16))
  np.savez(made / "types.npz", **{x: np.ones((8, 64))})
  np.savez(made / "objects.npz", **{x: np.array([{}], object)})
  return made


def contents(folder):
  return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


@pytest.mark.parametrize(
  ("arguments", "words", "code"), CASES, ids=[c[0].replace("\udcff", "ff") for c in CASES]
)
def test_one_line(folder, monkeypatch, capfd, arguments, words, code):
  monkeypatch.chdir(folder)
  before = contents(folder)
  assert cli.main(arguments.split()) == Exit.INPUT
  out, err = capfd.readouterr()
  *stages, line = err.splitlines()
  assert line.startswith(f"error: {code}: ") and words in line and out == ""
  assert all(s.split()[0] in ("importer", "match", "verify:") for s in stages)  # done before it was known
  assert contents(folder) == before


def test_there_are_many():
  assert len(CASES) >= 60 and len({c[2] for c in CASES}) >= 11


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
  "command",
  [
    "inspect m.onnx --json",
    "inspect m.onnx",
    "version",
    "--version",
    "env",
    "schema",
    "cache",
    "--help",
    "optimize --help",
    "optimize m.onnx -q --json --dry-run",
  ],
)
def test_stdout_that_takes_nothing(folder, command, unbuffered):
  """One line, whether Python hands on each write or keeps it; no traceback, nothing at the exit."""
  line = f"'{sys.executable}' -m mirage_onnx {command} >/dev/full"
  environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
  done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, env=environment)
  assert done.returncode == Exit.INPUT, done.stderr
  assert done.stderr.splitlines()[-1].startswith("error: OUTPUT_UNWRITABLE: stdout: No space left on device;")
  assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&-", "1>&- 2>&-"])
def test_closed_streams(folder, closed):
  command = f"'{sys.executable}' -m mirage_onnx inspect m.onnx {closed}"
  done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
  assert done.returncode == Exit.DONE and "error" not in done.stderr


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["tables", "json"])
def test_a_terminal_without_utf8(folder, monkeypatch, more):
  stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
  monkeypatch.setattr(sys, "stdout", stdout)
  assert cli.main(["inspect", str(folder / "m.onnx"), *more]) == Exit.DONE
  text = stdout.buffer.getvalue().decode("ascii")
  assert json.loads(text)["schema"] == 1 if more else "\\xb5s predicted" in text


@pytest.mark.parametrize("option", ["--events", "--trace"])
def test_events_that_nobody_can_write(folder, monkeypatch, capsys, option):
  """The disk is full: the run goes on, and is told at its end."""
  monkeypatch.chdir(folder)
  assert cli.main(["optimize", "other.onnx", "--dry-run", "--json", option, "/dev/full"]) == Exit.INPUT
  told = capsys.readouterr()
  assert told.err.splitlines()[-1].startswith(
    "error: OUTPUT_UNWRITABLE: /dev/full: No space left on device: it"
  )
  assert json.loads(told.out.splitlines()[0])["regions"] is not None


def test_a_text_through_a_link(tmp_path):
  """The link stays, and what it names is replaced."""
  kept = tmp_path / "elsewhere" / "kept.html"
  kept.parent.mkdir()
  kept.write_text("old")
  link = tmp_path / "link.html"
  link.symlink_to(kept)
  write_text(link, "new")
  assert link.is_symlink() and kept.read_text() == "new"
  assert [p.name for p in kept.parent.iterdir()] == ["kept.html"]
