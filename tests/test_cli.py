"""The command line: exit codes, one line per error, one JSON object, no traceback.

The API is a stand-in here: these tests are about what the command line does with its results.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from schema_text import REGION
from stand_in_api import REPORT
from typer.main import get_command

import mirage_onnx
from mirage_onnx import cli, commands, machine_commands, model_commands
from mirage_onnx.command_options import EXAMPLES
from mirage_onnx.errors import ERRORS, Exit, MirageError

ROOT = Path(__file__).parents[1]


assert commands.app is model_commands.app is machine_commands.app  # each has registered its verbs
VERBS = sorted(get_command(machine_commands.app).commands)
OPTIMIZE = ["optimize", "in.onnx", "-o", "out.onnx"]


def test_optimize(api, capsys):
  options = ["--target", "h200", "--budget", "9", "--margin", "0.1", "--external", "copy"]
  shapes = ["--shapes", "batch=8,1 seq=2", "--shapes", "n=3"]
  assert cli.main([*OPTIMIZE, *options, *shapes]) == Exit.DONE
  wanted = {"target": "h200", "budget_s": 9.0, "margin": 0.1, "external": "copy"}
  wanted["journal"] = Path("out.onnx.journal")
  wanted["shapes"] = {"batch": (1, 8), "seq": (2,), "n": (3,)}
  wanted["check"] = True
  wanted |= {"lock": Path("out.onnx.lock"), "locked": False}
  wanted |= {"page": None, "model_check": True, "profile": None, "steps": False, "workers": None}
  # The budget runs from where the command began, which the clock says.
  assert 0 < api.calls[0][2].pop("began") <= time.monotonic()
  assert api.calls == [("in.onnx", "out.onnx", wanted)]
  out, err = capsys.readouterr()
  assert out == "a library's own print\n"
  assert "warning: odd" in err and "3 nodes" in err and "regions: 0 replaced" in err


@pytest.mark.parametrize(
  ("given", "seconds"),
  [("9", 9), ("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("1.5H", 5400), ("2m 5s", None),
   ("10x", None), ("m", None), ("1..2s", None), ("", None), ("-5m", None)],
)  # fmt: skip
def test_budgets(api, capsys, given, seconds):
  code = cli.main([*OPTIMIZE, f"--budget={given}"])
  if seconds is None:
    assert code == Exit.INPUT and not api.calls
    assert "'--budget'" in capsys.readouterr().err
  else:
    assert api.calls[0][2]["budget_s"] == seconds


@pytest.mark.parametrize(
  ("given", "workers"),
  [("3", 3), ("auto", "auto"), ("ray://host:1", "ray://host:1"), ("²", "²"), ("9" * 5000, "9" * 5000)],
)  # fmt: skip
def test_workers(api, given, workers):
  assert cli.main([*OPTIMIZE, "--workers", given]) == Exit.DONE
  assert api.calls[0][2]["workers"] == workers


def test_optimize_json_is_all_of_stdout(api, capsys):
  assert cli.main([*OPTIMIZE, "--json"]) == Exit.DONE
  out, err = capsys.readouterr()
  assert json.loads(out) == REPORT
  assert "a library's own print" in err


def test_quiet_and_verbose(api, capsys):
  assert cli.main([*OPTIMIZE, "-q"]) == Exit.DONE
  assert capsys.readouterr().err == "warning: odd\n"
  assert cli.main([*OPTIMIZE, "-v"]) == Exit.DONE
  assert cli.main([*OPTIMIZE, "-v", "-q"]) == Exit.INPUT


def test_the_output_has_a_name(api):
  """Beside the input, never in its place."""
  assert cli.main(["optimize", "some/in.onnx"]) == Exit.DONE
  assert cli.main(["optimize", "weights"]) == Exit.DONE
  assert [call[1] for call in api.calls] == ["some/in.mirage.onnx", "weights.mirage.onnx"]
  assert api.calls[0][2]["journal"] == Path("some/in.mirage.onnx.journal")


def test_demo(api, capsys, tmp_path):
  """The commands that it names, one after the other; a user's own file is not replaced."""
  folder = tmp_path / "new"
  for _ in range(2):
    api.calls.clear()
    assert cli.main(["demo", str(folder)]) == Exit.DONE
    assert [call[:2] for call in api.calls] == [
      (str(folder / "mlp.onnx"), str(folder / "mlp.mirage.onnx"))
    ] * 3
  err = capsys.readouterr().err
  for verb in ("optimize", "diff", "verify"):
    assert f"$ mirage-onnx {verb} {folder / 'mlp.onnx'}" in err
  api.passed = False
  assert cli.main(["demo", str(folder)]) == Exit.CHECK_FAILED
  (folder / "mlp.onnx").write_bytes(b"mine")
  assert cli.main(["demo", str(folder)]) == Exit.INPUT
  assert (folder / "mlp.onnx").read_bytes() == b"mine"
  assert cli.main(["demo", str(folder / "mlp.onnx" / "below")]) == Exit.INPUT
  assert "OUTPUT_UNWRITABLE" in capsys.readouterr().err


def test_fail_if_unchanged(api, monkeypatch):
  assert cli.main([*OPTIMIZE, "--fail-if-unchanged"]) == Exit.UNCHANGED == 4
  assert cli.main(OPTIMIZE) == Exit.DONE
  monkeypatch.setitem(REPORT, "regions", [REGION])
  assert cli.main([*OPTIMIZE, "--fail-if-unchanged"]) == Exit.DONE


def test_events(api, capsys, tmp_path):
  path = tmp_path / "events.jsonl"
  assert cli.main([*OPTIMIZE, "--events", str(path), "-q"]) == Exit.DONE
  assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["Warned", "StageEnded"]
  assert "warning: odd" in capsys.readouterr().err
  assert cli.main([*OPTIMIZE, "--events", str(tmp_path)]) == Exit.INPUT
  assert "OUTPUT_UNWRITABLE" in capsys.readouterr().err


def test_trace(api, tmp_path):
  path = tmp_path / "trace.json"
  assert cli.main([*OPTIMIZE, "--trace", str(path), "-q"]) == Exit.DONE
  assert "warning" in {e["name"] for e in json.loads(path.read_text())}
  assert cli.main([*OPTIMIZE, "--trace", str(tmp_path)]) == Exit.INPUT


def test_report(api, capsys, tmp_path):
  path = tmp_path / "r.html"
  assert cli.main([*OPTIMIZE, "--report", str(path)]) == Exit.DONE
  assert api.calls[-1][2]["page"] == path and f"wrote {path}" in capsys.readouterr().err.replace("\n", "")
  model = tmp_path / "out.onnx"
  assert cli.main(["report", str(model)]) == Exit.DONE
  assert (tmp_path / "out.html").read_text() == "<!doctype html>" and api.calls[-1] == (str(model),)
  assert cli.main(["report", str(model), "-o", str(path)]) == Exit.DONE and path.exists()
  assert cli.main(["report", str(model), "-o", str(model)]) == Exit.INPUT
  assert cli.main(["report", str(model), "-o", str(tmp_path)]) == Exit.INPUT
  assert "OUTPUT_UNWRITABLE" in capsys.readouterr().err


def test_cache(capsys, tmp_path, monkeypatch):
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  (tmp_path / "results").mkdir()
  (tmp_path / "results" / "one").write_bytes(bytes(2_000_000))
  assert cli.main(["cache"]) == Exit.DONE
  out = capsys.readouterr().out.splitlines()
  assert out[0] == str(tmp_path) and out[1].split()[:5] == ["1", "files", "2.0", "MB", "results:"]
  assert cli.main(["cache", "--clear", "--json"]) == Exit.DONE
  found = json.loads(capsys.readouterr().out)
  assert found["folder"] == str(tmp_path) and not any(k["files"] for k in found["kinds"])
  assert not (tmp_path / "results" / "one").exists()


def test_dry_run_writes_nothing(api):
  assert cli.main(["optimize", "in.onnx", "--dry-run"]) == Exit.DONE
  assert cli.main([*OPTIMIZE, "--dry-run"]) == Exit.DONE
  assert [call[1] for call in api.calls] == [None, None]


@pytest.mark.parametrize(
  "arguments",
  [
    [],
    ["frobnicate"],
    ["optimize"],
    [*OPTIMIZE, "--budget", "0"],
    [*OPTIMIZE, "--budget", "soon"],
    [*OPTIMIZE, "--margin", "1"],
    [*OPTIMIZE, "--margin", "-0.1"],
    [*OPTIMIZE, "--nonsense"],
    [*OPTIMIZE, "--report", "-"],
    [*OPTIMIZE, "--events", "-"],
    [*OPTIMIZE, "--no-steps", "--room", "64"],
    ["explain", "in.onnx", "k0", "--svg", "-"],
    [*OPTIMIZE, "--shapes", "batch"],
    ["verify", "a.onnx"],
    ["bench", "a.onnx"],
    ["diff", "a.onnx"],
    ["bench", "a.onnx", "b.onnx", "--seconds", "long"],
    ["inspect"],
    ["explain", "in.onnx"],
    ["explain", "in.onnx", "k0", "--budget", "-1"],
    ["verify", "a.onnx", "b.onnx", "--rtol", "-1"],
    ["verify", "a.onnx", "b.onnx", "--provider", "tpu"],
  ],
)
def test_usage_errors(api, capsys, arguments):
  assert cli.main(arguments) == Exit.INPUT
  out, err = capsys.readouterr()
  assert out == "" and api.calls == []
  if arguments:
    assert err.startswith("error: OPTION_INVALID: ") and err.count("\n") == 1
  else:
    assert "optimize" in err


@pytest.mark.parametrize("code", [code for code in ERRORS if code != "INTERNAL"])
def test_an_error_is_one_line_with_its_code(api, capsys, code):
  api.error = MirageError(code, "what was\nfound")
  assert cli.main(OPTIMIZE) == ERRORS[code].exit
  out, err = capsys.readouterr()
  assert err == f"error: {code}: what was found; {ERRORS[code].advice}\n" and out == ""


def test_error_as_json(api, capsys):
  code, entry = next(iter(ERRORS.items()))
  api.error = MirageError(code, "bytes")
  assert cli.main([*OPTIMIZE, "--json"]) == Exit.INPUT
  found = json.loads(capsys.readouterr().out)
  assert found["schema"] == 1
  assert found["error"] == {"code": code, "detail": "bytes", "advice": entry.advice, "log": None}


@pytest.mark.parametrize("error", [ValueError("odd\nvalue"), MirageError("INTERNAL", "odd")])
def test_internal_error_names_its_log(api, capsys, tmp_path, error):
  api.error = error
  assert cli.main(OPTIMIZE) == Exit.INTERNAL
  err = capsys.readouterr().err
  (log,) = (tmp_path / "logs").iterdir()
  assert err.startswith("error: INTERNAL: ") and err.count("\n") == 1 and str(log) in err
  assert "Traceback" not in err
  assert "Traceback" in log.read_text() and "odd" in log.read_text()


def test_log_goes_elsewhere_where_its_folder_cannot_be_made(api, capsys, tmp_path, monkeypatch):
  (tmp_path / "file").touch()
  monkeypatch.setenv("MIRAGE_LOG_DIR", str(tmp_path / "file" / "logs"))
  monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
  api.error = ValueError("odd")
  assert cli.main(OPTIMIZE) == Exit.INTERNAL
  (log,) = tmp_path.glob("error-*.log")
  assert str(log) in capsys.readouterr().err


def test_interrupt(api, capsys):
  api.error = KeyboardInterrupt()
  assert cli.main(OPTIMIZE) == Exit.INTERRUPTED
  assert capsys.readouterr().err == "interrupted\n"


def test_version_schema_env(capsys):
  assert cli.main(["version"]) == Exit.DONE
  assert capsys.readouterr().out == f"mirage-onnx {mirage_onnx.__version__}\n"
  assert cli.main(["--version"]) == Exit.DONE
  assert capsys.readouterr().out == f"mirage-onnx {mirage_onnx.__version__}\n"
  assert cli.main(["schema"]) == Exit.DONE
  assert json.loads(capsys.readouterr().out)["$ref"] == "#/$defs/Report"
  assert cli.main(["schema", "verify"]) == Exit.DONE
  assert json.loads(capsys.readouterr().out)["$ref"] == "#/$defs/VerifyReport"
  assert cli.main(["schema", "explain"]) == Exit.DONE
  assert json.loads(capsys.readouterr().out)["$ref"] == "#/$defs/ExplainReport"
  assert cli.main(["env", "--json"]) == Exit.DONE
  facts = json.loads(capsys.readouterr().out)
  assert facts["packages"]["onnxruntime"] and "gpus" in facts and "log folder" in facts
  assert cli.main(["env"]) == Exit.DONE
  out = capsys.readouterr().out
  assert "numpy" in out and out.splitlines()[-1].split()[:2] == ["verdict", facts["verdict"].split()[0]]


@pytest.mark.parametrize(
  ("words", "found"), [("mirage-onnx opt", "optimize"), ("mirage-onnx bench --sec", "--seconds")]
)
def test_completion(words, found):
  """As a shell asks for it, in a process of its own."""
  asked = {"_MIRAGE_ONNX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
  command = [sys.executable, "-c", "import sys; from mirage_onnx.cli import main; sys.exit(main())"]
  done = subprocess.run(command, cwd=ROOT, env={**os.environ, **asked}, capture_output=True, text=True)
  assert (done.stdout.split(), done.stderr) == ([found], "")


@pytest.mark.parametrize("verb", VERBS)
def test_help_ends_with_an_example(verb, capsys):
  """One that has only options that there are; what comes behind ``--`` is another command."""
  assert cli.main([verb, "--help"]) == Exit.DONE
  out = capsys.readouterr().out
  assert " ".join(out.split()).endswith(f"Example: {EXAMPLES[verb]}")
  program, name, *words = shlex.split(EXAMPLES[verb].partition(" -- ")[0])
  assert (program, name) == ("mirage-onnx", verb)
  assert all(w in out for w in words if w.startswith("--"))


def test_every_verb_has_an_example():
  assert set(VERBS) <= set(EXAMPLES)


def test_public_names():
  assert "optimize" in dir(mirage_onnx)
  with pytest.raises(AttributeError, match="nothing_here"):
    mirage_onnx.nothing_here  # noqa: B018
  assert "verify" in dir(mirage_onnx)
  light = "import sys, mirage_onnx; sys.exit('numpy' in sys.modules or 'onnx' in sys.modules)"
  subprocess.run([sys.executable, "-c", light], check=True, cwd=ROOT)


BEGINNING = """
import sys
class Begun:
  def find_spec(self, name, *_):
    if name == "mirage_onnx.cli":
      raise KeyboardInterrupt
sys.meta_path.insert(0, Begun())
from mirage_onnx.__main__ import main
sys.exit(main())
"""


def test_ctrl_c_before_anything_is_imported():
  done = subprocess.run([sys.executable, "-c", BEGINNING], cwd=ROOT, capture_output=True, text=True)
  assert (done.returncode, done.stderr) == (Exit.INTERRUPTED, "interrupted\n")


SLEEPER = """
import sys, time, types
api = types.ModuleType("mirage_onnx.api")
def optimize(*a, stop, **k):
    print("ready", file=sys.stderr, flush=True)
    while not stop():
        time.sleep(0.01)
    print("asked", file=sys.stderr, flush=True)
    time.sleep(60)
api.optimize = optimize
sys.modules["mirage_onnx.api"] = api
from mirage_onnx.cli import main
sys.exit(main(["optimize", "in.onnx", "--dry-run"]))
"""


@pytest.mark.usefixtures("hears_interrupts")
def test_ctrl_c_in_a_real_process():
  process = subprocess.Popen([sys.executable, "-c", SLEEPER], cwd=ROOT, stderr=subprocess.PIPE, text=True)
  assert process.stderr.readline() == "ready\n"
  process.send_signal(signal.SIGINT)  # asks to stop and keep the best, which this one cannot
  assert process.stderr.readline() == "asked\n"
  time.sleep(0.5)  # a signal between the write and its return has the line written again
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  assert process.stderr.read() == "interrupted\n"
  assert process.wait() == Exit.INTERRUPTED


def test_reader_that_stops_early():
  command = f"{sys.executable} -m mirage_onnx schema | head -c 1"
  done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=os.environ, capture_output=True, text=True)
  assert (done.stdout, done.stderr) == ("{", "")


def test_public_api_takes_these_arguments():
  """The stand-in above has the signatures of the real thing."""
  import inspect

  api = pytest.importorskip("mirage_onnx.api")
  inspect.signature(api.optimize).bind(
    "in", None, target=None, budget_s=None, margin=0.2, emit=None, journal=None, stop=None
  )
  inspect.signature(api.diff).bind("a", "b")
  inspect.signature(api.bench).bind("a", "b", provider=None, seconds=1.0, seed=0, shapes=None)
  inspect.signature(api.verify).bind(
    "a", "b", seed=0, provider="cpu", rtol=0.1, emulate=True, inputs=None, bisect=True
  )
  inspect.signature(api.inspect).bind("in", target=None, every=True)
  inspect.signature(api.explain).bind("in", "k0", target=None, budget_s=None)
