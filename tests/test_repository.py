"""Rules about the repository as a whole."""

import ast
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import fields
from pathlib import Path

import longest_files
import pytest
import stand_ins
import write_error_docs
from golden_texts import GOLDEN, read_texts

from mirage_onnx.errors import ERRORS, REJECTIONS, Exit

ROOT = Path(__file__).parents[1]
MAX_TOTAL_BYTES = 16 << 20
MAX_MODEL_BYTES = 500_000
MAX_LINES = 400

#: An absolute path of somebody's machine.
MACHINE_PATH = re.compile(rb"(?:^|[^A-Za-z0-9_.~-])/(?:work|root|home)/[A-Za-z0-9_.-]+", re.M)

#: Names of fused operators, however they are spelled. The search knows none of them. The short ones
#: also occur inside other words ("exploration").
FUSED = re.compile(
  r"(?:rms|layer|batch|group)[_ -]?norm|swish|attention|soft[_ -]?max|rotary|gelu"
  r"|(?<![a-z])(?:silu|mlp|lora|qkv)(?![a-z])",
  re.I,
)
PATTERN_FREE = ("superopt", "cost", "lower", "codegen", "tune")


def repository_files():
  if shutil.which("git") is None or not (ROOT / ".git").exists():
    pytest.skip("not a git checkout")
  command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
  names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
  paths = (ROOT / name.decode() for name in names.split(b"\0") if name)
  return [path for path in paths if path.is_file()]


def name(path):
  return path.relative_to(ROOT).as_posix()


def test_long_files_are_there():
  """Nobody would see that one was moved: only the order of the tests hangs on it."""
  assert all((longest_files.ROOT / f).is_file() for f in longest_files.LONGEST)
  assert all(longest_files.seconds(longest_files.ROOT / f) for f in longest_files.LONGEST)


def test_size():
  sizes = {name(path): path.stat().st_size for path in repository_files()}
  largest = sorted(sizes, key=sizes.__getitem__)[-5:]
  assert sum(sizes.values()) < MAX_TOTAL_BYTES, f"the largest: {largest}"
  models = {k: v for k, v in sizes.items() if k.endswith(".onnx")}
  assert {k: v for k, v in models.items() if v >= MAX_MODEL_BYTES} == {}


def test_no_machine_path():
  found = {name(p): m[0] for p in repository_files() if (m := MACHINE_PATH.search(p.read_bytes()))}
  assert found == {}


def test_short_files():
  lengths = {
    name(path): len(path.read_text().splitlines()) for path in repository_files() if path.suffix == ".py"
  }
  assert {k: v for k, v in lengths.items() if v > MAX_LINES} == {}


@pytest.mark.parametrize("text", ["RMSNorm", "rms_norm", "fused-silu", "LoRA", "a softmax", "MLP1"])
def test_fused_names_are_recognised(text):
  assert FUSED.search(text)
  assert not FUSED.search("exploration of a normal form")


def test_no_fused_operator_names():
  found = []
  for path in repository_files():
    parts = path.relative_to(ROOT).parts
    if parts[0] != "mirage_onnx" or parts[1] not in PATTERN_FREE:
      continue
    lines = enumerate(path.read_text().splitlines(), 1)
    found += [f"{name(path)}:{n}: {line.strip()}" for n, line in lines if FUSED.search(line)]
    found += [name(path)] if FUSED.search(path.name) else []
  assert found == []


def test_lowering_and_costs_have_no_text():
  """What of a kernel is C++ stands in codegen: below it there are no calls, no types, no writer."""
  text = re.compile(r"ptx::|::\w+\(|const int |float\* |\.cuda\b|\bWriter\b")
  found = []
  for path in repository_files():
    parts = path.relative_to(ROOT).parts
    if parts[0] == "mirage_onnx" and parts[1] in ("lower", "cost"):
      found += [f"{name(path)}: {line}" for line in path.read_text().splitlines() if text.search(line)]
  assert found == []
  assert text.search('f"const int {name} = ptx::warp();"')


def taken_for(call, known):
  """The class that a bare namespace stands for: the first that has all of its names."""
  names = {k.arg for k in call.keywords}
  return next((c for c, own in known.items() if names and None not in names and names <= own), "")


def namespaces(text, known):
  """(line, class) of each bare namespace in the place of an object of a known class."""
  calls = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
  found = ((n.lineno, taken_for(n, known)) for n in calls if n.func.id == "SimpleNamespace")
  return [(line, of) for line, of in found if of]


def test_stand_ins_are_of_the_classes_that_they_stand_for():
  """A class had got an attribute that a test's namespace lacked: only the whole suite had seen it."""
  known = {
    c.__name__: {n for n in dir(c) if n[0] != "_"} | {f.name for f in fields(c)} for c in stand_ins.CLASSES
  }
  text = "SimpleNamespace(nodes=1, outputs=2)\nSimpleNamespace(candidate=SimpleNamespace(predicted_us=1.0))"
  assert [line for line, _ in namespaces(text, known)] == [1, 2, 2]
  assert not namespaces("SimpleNamespace(returncode=0, nodes=1)", known)
  tests = (p for p in repository_files() if p.suffix == ".py" and name(p).startswith("tests/"))
  found = [
    f"{name(p)}:{line} stands for a {of}" for p in tests for line, of in namespaces(p.read_text(), known)
  ]
  assert found == [], "tests/support/stand_ins.py makes them"


def test_error_page_is_current():
  text = write_error_docs.PAGE.read_text()
  assert text == write_error_docs.page(), "run python scripts/write_error_docs.py"
  missing = [code for code in (*ERRORS, *REJECTIONS) if f"`{code}`" not in text]
  assert missing == []
  assert set(write_error_docs.EXITS) == set(Exit)


def test_every_code_is_provoked():
  """Each code is quoted in a test, which is where the thing it stands for is made to happen.

  The tests of the report only show codes.
  """
  tests = (ROOT / "tests").rglob("*.py")
  provoking = [p for p in tests if p != Path(__file__) and p.parent.name != "report"]
  text = "\n".join(path.read_text() for path in provoking)
  quoted = set(re.findall(r"""["']([A-Z][A-Z0-9_]+)\b""", text))
  assert sorted({*ERRORS, *REJECTIONS} - quoted) == []


def test_golden_texts_are_used():
  """A golden text belongs to a test or, by its folder, to a helper."""
  tests = [
    f"{path.stem}/{test}_"
    for path in (ROOT / "tests").rglob("test_*.py")
    for test in re.findall(r"def (test_\w+)", path.read_text())
  ]
  folders = "emulator exotic fragile goldens graphs primitives programs readme rewritten rules "
  folders += "saved term"
  tests += [f"{folder}/" for folder in folders.split()]
  assert [t for t in read_texts(GOLDEN) if not f"{t}_".startswith(tuple(tests))] == []


def test_a_name_is_of_one_class():
  """Those of one module only begin with an underscore, and may be in several."""
  found = Counter(
    node.name
    for path in (ROOT / "mirage_onnx").rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
  )
  assert [n for n, count in found.items() if count > 1] == [], "two classes of one name"


def test_no_global_carries_a_result():
  """What a function leaves in its module for another to find."""
  package = ROOT / "mirage_onnx"
  found = {
    f"{path.relative_to(package)} {n}"
    for path in package.rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Global)
    for n in node.names
  }
  assert not found
