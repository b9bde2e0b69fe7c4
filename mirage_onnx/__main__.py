"""``python -m mirage_onnx``, and the command: Ctrl-C has its exit code from the first import to the last."""

import os
import signal
import sys

#: ``errors.Exit.INTERRUPTED``, before anything is imported.
_INTERRUPTED = 130


def main() -> int:
  """Run one command and return its exit code."""
  try:
    from mirage_onnx.cli import main as run

    code = run()
  except KeyboardInterrupt:  # while that was imported
    print("interrupted", file=sys.stderr)
    code = _INTERRUPTED
  if callable(signal.getsignal(signal.SIGINT)):
    # Python would tell of each module that it takes down just then.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code))
  return code


if __name__ == "__main__":
  sys.exit(main())
