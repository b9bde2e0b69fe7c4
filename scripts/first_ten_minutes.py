"""Run the README's first ten minutes as a new user does, and time every command.

    python scripts/first_ten_minutes.py --wheel dist/mirage_onnx-*.whl [--folder DIR] [--out RECORD.json]

Every command of the section is run by one bash, as it stands on the page, in an empty folder outside
of this repository with a cache of its own; only the package's name becomes the wheel's path. Ends with
1 at the first command that fails. Writes seconds by the clock and of the processors for each.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
SECTION = "## The first ten minutes"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.S | re.M)
#: A command, with the lines that a backslash or a here-document carries on.
_COMMAND = re.compile(r"^\$ ((?:.*<<'(\w+)'\n(?:.*\n)*?\2)|(?:(?:.*\\\n)*.*))$", re.M)


def commands(text):
  """The commands of the section, in order."""
  section = text.split(f"{SECTION}\n", 1)[1].split("\n## ", 1)[0]
  return [m[1] for block in _BLOCK.findall(section) for m in _COMMAND.finditer(block)]


def script(some, wheel):
  """One bash script of all commands, each followed by a line with its number and exit status."""
  named = [c.replace("'mirage-onnx[", f"'{wheel}[") for c in some]
  lines = [
    f'{c}\nstatus=$?; echo; echo "@@ {k} $status"; [ $status = 0 ] || exit 1' for k, c in enumerate(named)
  ]
  return "\n".join(lines)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--wheel", type=Path, required=True)
  parser.add_argument("--folder", type=Path, help="an empty folder (default: a temporary one)")
  parser.add_argument("--out", type=Path, help="where the record is written")
  given = parser.parse_args()
  some, rows = commands(README.read_text()), []
  with tempfile.TemporaryDirectory() as temporary:
    folder = given.folder or Path(temporary)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
      parser.error(f"{folder} is not empty")
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"MIRAGE_CACHE_DIR": str(folder / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "100"}
    began = last = time.monotonic()
    before = _used_s()
    bash = ["bash", "-c", script(some, given.wheel.resolve())]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(bash, cwd=folder, env=env, **pipes) as child:
      for line in child.stdout:
        if not (done := re.fullmatch(r"@@ (\d+) (\d+)\n", line)):
          print(line, end="", flush=True)
          continue
        now = time.monotonic()
        rows.append({"command": some[int(done[1])].splitlines()[0], "status": int(done[2]),
                     "seconds": round(now - last, 1)})  # fmt: skip
        print(f"-- {rows[-1]['seconds']:.1f} s, exit status {done[2]}: {rows[-1]['command']}", flush=True)
        last = now
  seconds = round(time.monotonic() - began, 1)
  record = {
    "date": datetime.now(UTC).isoformat(timespec="seconds"), "cores": len(os.sched_getaffinity(0)),
    "load": round(os.getloadavg()[2], 1), "seconds": seconds,
    "processor_seconds": round(_used_s() - before, 1), "commands": rows,
  }  # fmt: skip
  if given.out:
    given.out.write_text(json.dumps(record, indent=1) + "\n")
  used = record["processor_seconds"]
  print(f"{len(rows)} of {len(some)} commands in {seconds:.0f} s, {used:.0f} s of processors")
  return int(len(rows) != len(some) or any(r["status"] for r in rows))


def _used_s():
  """Seconds of the processors that ended children took."""
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


if __name__ == "__main__":
  sys.exit(main())
