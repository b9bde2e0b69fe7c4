"""One model of ``odd_models`` through loading, inspection and (some) optimizing; as ``model_case``."""

import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
  sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import model_case
from fuzz_answers import serve
from odd_models import made


def run_case(seed):
  file = made(seed)
  optimized = seed // 16 % model_case.OPTIMIZED_EVERY == 0
  run = partial(model_case.run_model, file, None, optimized)
  return model_case.answer(seed, file, "", run, optimized)


if __name__ == "__main__":
  serve(lambda: None, run_case, model_case.MEMORY_BYTES)
