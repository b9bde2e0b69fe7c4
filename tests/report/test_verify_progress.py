"""Where ``verify`` is, in a line now and then."""

import io

from rich.console import Console

from mirage_onnx.custom_op.steps import SessionStep
from mirage_onnx.report.pace import PLAIN_EVERY_S
from mirage_onnx.report.verify_progress import VerifyProgress


def test_a_line_now_and_then():
  now, out = [0.0], io.StringIO()
  with VerifyProgress(Console(file=out, width=160), clock=lambda: now[0]) as tell:
    tell(SessionStep.OPEN, "the original")
    for _ in range(3):
      tell(SessionStep.RUN, "normal 1")
      now[0] += PLAIN_EVERY_S / 2
      for _ in range(500):
        tell(SessionStep.LAUNCH, "")
  assert out.getvalue().splitlines() == [
    "  verify: both models on input normal 1, 501 kernels emulated, 0:05",
  ]


def test_a_live_line_on_a_terminal():
  now, out = [0.0], io.StringIO()
  with VerifyProgress(Console(file=out, force_terminal=True, width=80), clock=lambda: now[0]) as tell:
    now[0] = 65.0
    tell(SessionStep.NODE, "mirage/1/[/x]")
  assert "verify: custom node mirage/1/[/x], 1:05" in out.getvalue()
