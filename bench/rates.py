"""The rates of a profile (``mirage_onnx/targets/rows.py``), measured on this machine's GPU, as a record.

    python3 bench/rates.py OUT.json

What is measured and how: ``mirage_onnx/tune/rates.py`` (the verb ``mirage-onnx calibrate``).
"""

import json
import sys
from pathlib import Path

import msgspec
from protocol import facts

from mirage_onnx.tune.device import Gpu, present_gpu
from mirage_onnx.tune.rates import measure_rates


def main():
  present = present_gpu()
  target = present.target
  found = {**facts(), "present": str(present), **msgspec.to_builtins(measure_rates(Gpu(target)))}
  Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
  print({k: found[k] for k in ("present", "launch_us", "ramp_us", "stream_tbps", "mma_tflops")})


if __name__ == "__main__":
  main()
