"""A command of ``optimum-cli`` (optimum-onnx): ``optimum-cli mirage --onnx_model IN -o OUT``.

Optimum finds commands in files of its namespace ``optimum.commands.register``; examples/optimum has the file
to put there. It is no part of the wheel: a folder named ``optimum`` would look like that library where it is
not installed.
"""

import shutil
from argparse import ArgumentParser
from pathlib import Path

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo

from mirage_onnx.api import optimize


class MirageCommand(BaseOptimumCLICommand):
  """Optimizes every model of a folder that ``optimum-cli export onnx`` has written, and copies the rest."""

  COMMAND = CommandInfo(name="mirage", help="Superoptimize ONNX models into verified CUDA kernels.")

  @staticmethod
  def parse_args(parser: ArgumentParser) -> None:
    parser.add_argument("--onnx_model", type=Path, required=True, help="folder with the models to optimize")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the results")
    parser.add_argument("--target", help="h200, or local: the present GPU, where kernels are timed")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds a model")

  def run(self) -> None:
    source, output = self.args.onnx_model, self.args.output
    models = sorted(source.glob("*.onnx"))
    if not models or output.resolve() == source.resolve():
      raise SystemExit(f"error: there is no .onnx file in {source}, or it is the output folder")
    output.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
      if path.is_file() and not _is_weights(path, models) and path.suffix != ".onnx":
        shutil.copy2(path, output / path.name)
    for path in models:
      found = optimize(
        path, output / path.name, target=self.args.target, budget_s=self.args.budget, external="copy"
      ).report["found"]
      replaced = found["by_result"].get("REPLACED", {"instances": 0})["instances"]
      print(f"{path.name}: {replaced} regions replaced")


def _is_weights(path: Path, models: list[Path]) -> bool:
  """Whether a file looks like one of external data: those are written anew."""
  return any(path.name.startswith(m.name) for m in models) or path.name.endswith(("_data", ".data"))
