"""Writes docs/errors.md from the catalogue in mirage_onnx/errors.py; ``--check`` only compares."""

import sys
from pathlib import Path

from mirage_onnx.errors import ERRORS, REJECTIONS, Exit
from mirage_onnx.remedies import remedy

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"

EXITS = {
  Exit.DONE: "done, whether the model was changed or not",
  Exit.CHECK_FAILED: "a check failed: two models differ, or a kernel is not what its record says",
  Exit.INPUT: "usage or input error",
  Exit.INTERNAL: "internal error: one line, and the path of a log file with the traceback",
  Exit.UNCHANGED: "no region was replaced; only with `--fail-if-unchanged`",
  Exit.INTERRUPTED: "interrupted: once keeps the best found so far, twice writes nothing",
}


def page():
  """The whole page."""
  parts = [
    "# Exit codes, errors and refusals",
    "Generated from `mirage_onnx/errors.py` by `scripts/write_error_docs.py`.",
    "## Exit codes",
    _table(("exit", "meaning"), [(str(int(code)), text) for code, text in EXITS.items()]),
    "## Errors",
    "An error ends a command with one line, `error: CODE: what was found; what to do`. In "
    "Python it is a `mirage_onnx.MirageError` with the same `code`.",
    _table(
      ("code", "meaning", "what to do", "exit"),
      [(f"`{code}`", entry.meaning, entry.advice, str(int(entry.exit))) for code, entry in ERRORS.items()],
    ),
    "## Refusals",
    "A refusal says why a node, a region or a candidate was left as it is. The optimized "
    "model is right and complete without it.",
    _table(
      ("code", "meaning", "what you can do"),
      [(f'<a id="{code.lower()}"></a>`{code}`', text, remedy(code)) for code, text in REJECTIONS.items()],
    ),
  ]
  return "\n\n".join(parts) + "\n"


def _table(head, rows):
  lines = [head, ("---",) * len(head), *rows]
  return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines)


def main():
  """Write or check the page."""
  text = page()
  if "--check" not in sys.argv[1:]:
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    return 0
  if PAGE.exists() and PAGE.read_text() == text:
    return 0
  print("docs/errors.md is out of date: run python scripts/write_error_docs.py", file=sys.stderr)
  return 1


if __name__ == "__main__":
  sys.exit(main())
