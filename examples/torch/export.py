"""A torch module becomes an optimized model: export and ``mirage_onnx.optimize`` are one line each."""

import torch

import mirage_onnx


class GatedLayer(torch.nn.Module):
  def __init__(self, width: int = 1024) -> None:
    super().__init__()
    self.norm = torch.nn.RMSNorm(width)
    self.gate = torch.nn.Linear(width, width, bias=False)
    self.up = torch.nn.Linear(width, width, bias=False)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    y = self.norm(x)
    return torch.nn.functional.silu(self.gate(y)) * self.up(y)


def main() -> None:
  x = torch.randn(8, 1024, dtype=torch.float16)
  program = torch.onnx.export(GatedLayer().half().eval(), (x,), dynamo=True)
  result = mirage_onnx.optimize(program, "layer.onnx", target="h200")
  print(result.report["found"])


if __name__ == "__main__":
  main()
