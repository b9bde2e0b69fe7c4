"""The verbs that look at models, with a stand-in for the API, as in ``test_cli.py``."""

import json
from pathlib import Path

from mirage_onnx import cli
from mirage_onnx.errors import Exit


def test_verify(api, capsys):
  arguments = ["verify", "a.onnx", "b.onnx"]
  assert cli.main([*arguments, "--rtol", "0.01", "--seed", "3"]) == Exit.DONE
  default = {"provider": None, "emulate": None, "inputs": None, "bisect": False, "shapes": {}}
  ((*models, given),) = api.calls
  assert callable(given.pop("tell"))
  assert (models, given) == (["a.onnx", "b.onnx"], {"seed": 3, "rtol": 0.01, **default})
  out, err = capsys.readouterr()
  assert out == "" and "least atol" in err and "emulated" in err and "passed" in err
  api.passed = False
  assert cli.main([*arguments, "--json", "--provider", "cuda"]) == Exit.CHECK_FAILED
  out, err = capsys.readouterr()
  assert json.loads(out)["passed"] is False and "FAILED" in err
  options = ["--emulate", "--inputs", "in.npz", "--bisect", "--provider", "cpu"]
  options += ["--shapes", "n=1..3:1"]
  cli.main([*arguments, *options])
  cli.main([*arguments, "--no-emulate"])
  assert all(callable(call[2].pop("tell")) for call in api.calls[1:])
  given = {"seed": 0, "provider": "cpu", "rtol": None, "emulate": True, "bisect": True}
  assert api.calls[-2][2] == {**given, "inputs": Path("in.npz"), "shapes": {"n": (1, 2, 3)}}
  assert api.calls[-1][2]["emulate"] is False


def test_bench(api, capsys):
  arguments = ["bench", "a.onnx", "b.onnx", "--provider", "cpu", "--seconds", "2", "--shapes", "n=3"]
  assert cli.main(arguments) == Exit.DONE
  options = {"provider": "cpu", "seconds": 2.0, "seed": 0, "shapes": {"n": (3,)}}
  assert api.calls == [("a.onnx", "b.onnx", options)]
  assert "B is faster" in capsys.readouterr().out
  assert cli.main([*arguments, "--fail-under", "1.1"]) == Exit.DONE
  assert cli.main([*arguments, "--fail-under", "9"]) == Exit.CHECK_FAILED
  assert "is less than --fail-under 9" in capsys.readouterr().err
  assert cli.main([*arguments, "--fail-under", "nan"]) == Exit.INPUT
  api.passed = False
  assert cli.main([*arguments, "--json"]) == Exit.CHECK_FAILED
  assert json.loads(capsys.readouterr().out)["rows"][0]["speedup"] == 0.8


def test_diff(api, capsys):
  assert cli.main(["diff", "a.onnx", "b.onnx"]) == Exit.DONE
  assert "the models have the same graph" in capsys.readouterr().out
  assert cli.main(["diff", "a.onnx", "b.onnx", "--json"]) == Exit.DONE
  assert json.loads(capsys.readouterr().out)["unchanged"] == 3
  assert api.calls == [("a.onnx", "b.onnx")] * 2


def test_inspect(api, capsys):
  assert cli.main(["inspect", "in.onnx"]) == Exit.DONE
  out, err = capsys.readouterr()
  assert "k0" in out and "gain" in out and err == ""
  more = ["--all", "--target", "h200", "--shapes", "n=3", "--json"]
  assert cli.main(["inspect", "in.onnx", *more]) == Exit.DONE
  out, err = capsys.readouterr()
  assert json.loads(out)["regions"][0]["key"] == "k0" and "library" in err
  none = {"target": None, "every": False, "shapes": {}}
  given = {"target": "h200", "every": True, "shapes": {"n": (3,)}}
  assert api.calls == [("in.onnx", none), ("in.onnx", given)]


def test_explain(api, capsys, tmp_path):
  dot, cuda = tmp_path / "x.dot", tmp_path / "x.cu"
  svg = tmp_path / "x.svg"
  files = ["--dot", str(dot), "--cuda", str(cuda), "--svg", str(svg)]
  assert cli.main(["explain", "in.onnx", "k0", *files, "--budget", "9", "--shapes", "n=3"]) == Exit.DONE
  out, err = capsys.readouterr()
  assert "where it stops" in out and err == ""
  assert svg.read_text() == "<svg/>\n"
  assert dot.read_text().startswith("digraph") and "PTX_KERNEL" in cuda.read_text()
  assert api.calls == [("in.onnx", "k0", {"target": None, "budget_s": 9.0, "shapes": {"n": (3,)}})]
  assert cli.main(["explain", "in.onnx", "k0", "--json"]) == Exit.DONE
  assert json.loads(capsys.readouterr().out)["chosen"]["proof"]["draws"] == 3


def test_explain_without_a_kernel_writes_no_file(api, capsys, tmp_path):
  api.passed = False
  dot = tmp_path / "x.dot"
  assert cli.main(["explain", "in.onnx", "k0"]) == Exit.DONE
  assert cli.main(["explain", "in.onnx", "k0", "--dot", str(dot)]) == Exit.CHECK_FAILED
  assert capsys.readouterr().err == f"{dot} is not written: no kernel was found\n"
  assert not dot.exists()


def test_explain_into_a_folder_that_is_not_there(api, capsys, tmp_path):
  path = tmp_path / "none" / "x.cu"
  assert cli.main(["explain", "in.onnx", "k0", "--cuda", str(path)]) == Exit.INPUT
  assert capsys.readouterr().err.startswith("error: OUTPUT_UNWRITABLE: ")
