"""What a branch for a decoder's steps costs each run: predictions have to save more, or nothing is replaced.

The host makes the condition out of shapes and gives the ``If`` its values. No table of operators has that,
and a whole model that is timed (``racing.py``) has it anyway.
"""

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.steps_apart import is_apart
from mirage_onnx.pipeline import Options, Run, refused, with_these

#: Microseconds of a run of ONNX Runtime that has a branch beside one that has none: 5 to 31 of a layer, 18
#: and 23 of four, on an H100 and an H200 (``branch`` less ``ort`` in bench/results/*/genai_*.json).
BRANCH_US = 25.0


def paying(run: Run, loaded: LoadedModel, options: Options) -> Run:
  """``run`` itself, unless what it replaces in steps is predicted to save less than their branch costs."""
  chosen_by_time = options.measure or options.every or options.lock is not None or options.margin < 0
  if chosen_by_time or run.times is None or loaded.nested is None or not is_apart(loaded.nested):
    return run
  saved_us = run.times.before_us - run.times.after_us
  if not run.chosen or saved_us > BRANCH_US:
    return run
  why = f"all that is replaced in steps saves {saved_us:.1f} us, and their branch takes {BRANCH_US:.0f}"
  gone = {i: Rejection("NOT_FASTER", why, c.region.nodes) for i, (c, _) in enumerate(run.chosen)}
  return refused(with_these(run, loaded, options, ()), run, gone)
