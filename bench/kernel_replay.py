"""Every kernel of a corpus, generated again: the same bytes as recorded, or what differs.

    python bench/kernel_replay.py [GROUP ...]      compare with bench/replay; exit 1 if anything differs
    python bench/kernel_replay.py --diff REVISION  and show how, against the texts of that commit
    python bench/kernel_replay.py --write FOLDER   the texts of this tree, one file a kernel
    python bench/kernel_replay.py --accept         record what this tree makes of the same entries
    python bench/kernel_replay.py --collect GROUP  other entries of a group (``replay_corpus.py``)

A change of the code generator's house must leave every line as it is. A line that is meant to
change is looked at with ``--diff`` first (text) or is there already (launch, refusal, prediction).
The texts depend on nothing but the entry, so two trees need no common history.
"""

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from replay_record import FOLDER, HEADERS, headers, made, read_group, read_record, write_group

#: What is shown of the differences, unless a folder is asked for.
SHOWN, SHOWN_LINES = 20, 40


def generated(entries, jobs):
  """What this tree makes of each entry, in their order."""
  if jobs == 1 or len(entries) < 2 * jobs:
    return [made(e) for e in entries]
  with ProcessPoolExecutor(jobs) as pool:
    return list(pool.map(made, entries, chunksize=8))


def differences(entries, found):
  """(entry, kernel, recorded line, line of this tree) wherever these differ."""
  for entry, kernels in zip(entries, found, strict=True):
    lines = [m.line for m in kernels]
    for k in range(max(len(lines), len(entry.made))):
      was, now = (x[k] if k < len(x) else "no kernel" for x in (entry.made, lines))
      if was != now:
        yield entry, k, was, now


def header_differences(folder=FOLDER):
  """Lines about device headers that are not those recorded."""
  path = folder / f"{HEADERS}.txt"
  was = dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}
  now = dict(headers())
  return [
    f"header {n}: {'is new' if n not in was else 'is gone' if n not in now else 'differs'}"
    for n in sorted({*was, *now})
    if was.get(n) != now.get(n)
  ]


def what_differs(was, now):
  """In a word: text, launch, cost, refusal."""
  if not (was[:64].isalnum() and now[:64].isalnum()):
    return "refusal"
  (text, cost), (other, now_cost) = was.split("; "), now.split("; ")
  kinds = [("text", text[:64] != other[:64]), ("launch", text[64:] != other[64:]), ("cost", cost != now_cost)]
  return " and ".join(kind for kind, differs in kinds if differs)


def file_of(folder, entry, kernel):
  return folder / f"{entry.name}.k{kernel}.cu"


def write_texts(folder, entries, found):
  """One file a kernel; a refusal is its text."""
  for entry, kernels in zip(entries, found, strict=True):
    for k, m in enumerate(kernels):
      path = file_of(folder, entry, k)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(m.text or f"{m.line}\n")


def texts_at(revision, groups, folder):
  """The texts that the tree of another commit makes of the entries of this tree."""
  tree, texts = folder / "tree", folder / "texts"
  tree.mkdir()
  packed = subprocess.run(
    ["git", "archive", revision, "mirage_onnx"], cwd=ROOT, check=True, stdout=subprocess.PIPE
  )
  subprocess.run(["tar", "-x", "-C", tree], input=packed.stdout, check=True)
  bench = tree / "bench"
  bench.mkdir()
  for name in ("kernel_replay.py", "replay_record.py"):
    (bench / name).write_bytes((ROOT / "bench" / name).read_bytes())
  command = [sys.executable, bench / "kernel_replay.py", "--folder", FOLDER, "--write", texts, *groups]
  environment = {**os.environ, "PYTHONPATH": str(tree)}
  subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
  return texts


def show_diffs(old, different, found, entries):
  """Unified differences against the files below ``old``."""
  at = {e.name: m for e, m in zip(entries, found, strict=True)}
  for entry, k in different:
    path = file_of(old, entry, k)
    was = path.read_text() if path.exists() else ""
    now = at[entry.name][k].text or f"{at[entry.name][k].line}\n" if k < len(at[entry.name]) else ""
    name = f"{entry.name} k{k}"
    lines = list(difflib.unified_diff(was.splitlines(), now.splitlines(), name, name, lineterm="", n=2))
    print(*lines[:SHOWN_LINES], sep="\n")
    if len(lines) > SHOWN_LINES:
      print(f"... {len(lines) - SHOWN_LINES} lines more")


def accept(folder, entries, found):
  """Record what this tree makes of these entries, group by group."""
  now = {e.name: tuple(m.line for m in kernels) for e, kernels in zip(entries, found, strict=True)}
  for group in {e.group for e in entries}:
    path = folder / f"{group}.jsonl"
    write_group(path, [replace(e, made=now[e.name]) for e in read_group(path)])
  (folder / f"{HEADERS}.txt").write_text("".join(f"{name} {digest}\n" for name, digest in headers()))


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("groups", nargs="*", metavar="GROUP", help="files of bench/replay; default: all")
  parser.add_argument("--diff", metavar="REVISION|FOLDER", help="show how the texts differ from those")
  parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the texts")
  parser.add_argument("--accept", action="store_true", help="record the present outcome")
  parser.add_argument("--collect", nargs="*", metavar="MODEL.onnx", help="find the entries anew")
  parser.add_argument("--jobs", type=int, default=os.cpu_count())
  parser.add_argument("--folder", type=Path, default=FOLDER, help="of the record")
  options = parser.parse_args()
  if options.collect is not None:
    from replay_corpus import collect

    collect(options.folder, options.groups, [Path(p) for p in options.collect])
  start, groups = time.monotonic(), tuple(options.groups)
  entries = read_record(options.folder, groups)
  found = generated(entries, options.jobs)
  kernels = sum(map(len, found))
  print(f"{kernels} kernels of {len(entries)} entries in {time.monotonic() - start:.1f} s")
  if options.write:
    write_texts(options.write, entries, found)
  if options.accept or options.collect is not None:
    accept(options.folder, entries, found)
    return 0
  different = list(differences(entries, found))
  lines = header_differences(options.folder)
  print(*lines, sep="\n", end="\n" if lines else "")
  kinds = Counter(what_differs(was, now) for _, _, was, now in different)
  for entry, k, was, now in different[:SHOWN]:
    print(f"{entry.name} k{k}: {what_differs(was, now)}\n  - {was}\n  + {now}")
  if options.diff:
    with tempfile.TemporaryDirectory() as folder:
      old = Path(options.diff)
      old = old if old.is_dir() else texts_at(options.diff, groups, Path(folder))
      show_diffs(old, [(e, k) for e, k, *_ in different], found, entries)
  counted = ", ".join(f"{n} in {kind}" for kind, n in kinds.most_common())
  print(f"{len(different)} kernels differ: {counted}" if different else "every kernel is the one recorded")
  return 1 if different or lines else 0


if __name__ == "__main__":
  sys.exit(main())
