"""The Docker files: read by hadolint, and what a build would copy."""

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples/docker").glob("Dockerfile.*"))
#: Versions of Debian's packages: the mirrors drop old ones, so a pinned file stops building.
#: Versions of pip: what is installed is this folder, not a package of an index.
NOT_HERE = ("DL3008", "DL3013")
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))


def lint(path):
  ignored = [x for code in NOT_HERE for x in ("--ignore", code)]
  command = [HADOLINT, "--no-color", *ignored, str(path)]
  return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_hadolint(path, tmp_path):
  done = lint(path)
  assert (done.returncode, done.stdout + done.stderr) == (0, "")
  wrong = tmp_path / path.name
  wrong.write_text(path.read_text().replace("WORKDIR /src", "WORKDIR src"))
  assert "DL3000" in lint(wrong).stdout


def test_what_is_built_here_is_not_copied():
  """A library or an environment of the host would take the place of the image's own."""
  rules = [x for x in (ROOT / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")]
  for built in (".git", ".venv", "build", "dist", "out", "models/bert.onnx", "cpp/libx.so", ".mypy_cache"):
    assert any(fnmatch.fnmatch(built, rule.removeprefix("**/")) for rule in rules), built
  for needed in (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "cpp/ort_custom_ops/CMakeLists.txt",
    "mirage_onnx",
  ):
    assert (ROOT / needed).exists()
    assert not any(fnmatch.fnmatch(needed, rule.removeprefix("**/")) for rule in rules), needed


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_the_compilers_are_those_that_a_build_needs(path):
  """The same that ``make build`` asks for; cmake comes from the system here."""
  text = path.read_text()
  (packages,) = re.findall(r"apt-get install -y --no-install-recommends ([^\n\\]*)", text)
  assert {"g++", "cmake", "make"} <= set(packages.split())
  assert text.count("FROM ") == 1 and text.rstrip().endswith('ENTRYPOINT ["mirage-onnx"]')
