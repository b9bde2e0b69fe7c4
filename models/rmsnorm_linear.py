"""transformers' LlamaRMSNorm followed by a linear layer without bias, of any size, fp16.

Without arguments it writes the small instance `rmsnorm_linear.onnx` and its packed form.
`scale_rmsnorm_linear.py` writes the same graph at another size without torch.
"""

import argparse
from pathlib import Path

import torch
from export import FOLDER, export, fill, write_packed
from transformers.models.llama.modeling_llama import LlamaRMSNorm

SMALL = FOLDER / "rmsnorm_linear.onnx"


class RMSNormLinear(torch.nn.Module):
  """norm, then projection."""

  def __init__(self, hidden, out):
    super().__init__()
    self.norm = LlamaRMSNorm(hidden, eps=1e-6)
    self.linear = torch.nn.Linear(hidden, out, bias=False)

  def forward(self, x):
    """Return linear(norm(x))."""
    return self.linear(self.norm(x))


def main():
  """Parse the sizes and export."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--hidden", type=int, default=64)
  parser.add_argument("--out", type=int, default=64)
  parser.add_argument("--batch", type=int, default=8)
  parser.add_argument("-o", "--output", type=Path, default=SMALL)
  options = parser.parse_args()
  module = RMSNormLinear(options.hidden, options.out).half()
  fill(module)
  generator = torch.Generator().manual_seed(8)
  x = torch.randn((options.batch, options.hidden), generator=generator).half()
  export(module, {"x": x}, ["y"], options.output, max_bytes=2_000_000_000)
  if options.output == SMALL:
    write_packed(SMALL, module)


if __name__ == "__main__":
  main()
