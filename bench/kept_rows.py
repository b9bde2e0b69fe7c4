"""Answers by seed, kept in a file: a run that was stopped goes on where it was."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf


def kept_rows(seeds, path, ask, *, jobs, together, deadline=inf):
  """The rows of all seeds, in order; new ones are appended to ``path`` as they come.

  ``ask(batch)`` yields rows of at most ``together`` seeds, ``jobs`` batches at a time. What is
  not begun at the ``deadline`` (of time.monotonic) is left out.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = path.read_text().splitlines() if path.exists() else []
  known = {row["seed"]: row for row in map(json.loads, lines)}
  todo = [s for s in seeds if s not in known]

  with path.open("a") as file:

    def work(batch):
      if time.monotonic() > deadline:
        return
      for row in ask(batch):
        known[row["seed"]] = row
        file.write(json.dumps(row) + "\n")
        file.flush()
        if len(known) % 500 == 0:
          print(f"{len(known)} seeds", file=sys.stderr)

    with ThreadPoolExecutor(jobs) as pool:
      list(pool.map(work, (todo[i : i + together] for i in range(0, len(todo), together))))
  return [known[s] for s in seeds if s in known]
