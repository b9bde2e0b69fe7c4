"""PTX of a kernel as steps."""

import re

from mirage_onnx.compiler.machine.steps import MachineStep, WgmmaStep

_LINE = re.compile(r"^(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s*(.*);$")
_REGISTER = re.compile(r"%[a-z]+\d+")
_LABEL = re.compile(r"^(\$\w+):$")
_PRODUCT = re.compile(r"^wgmma\.mma_async\.\S*\.m64n(\d+)k\d+\.")
_BRACES = re.compile(r"\{([^}]*)\}")
#: Instructions without a result in a register.
_NONE = (
  "st.", "bra", "bar.", "barrier.", "cp.", "fence", "membar", "wgmma.", "red.", "prefetch", "mbarrier.init",
  "mbarrier.inval", "ret", "exit", "griddepcontrol", "trap", "stmatrix", "setmaxnreg", "call", "discard",
)  # fmt: skip


def ptx_steps(ptx: str, kernel: str) -> list[MachineStep]:
  """The instructions of the entry ``kernel``."""
  body = ptx[ptx.index(f".entry {kernel}(") :].partition("\n{")[2]
  lines = []
  for line in body.splitlines():
    text = line.strip()
    if line == "}":
      break
    if text and not text.startswith(("//", ".")):
      lines.append(text)
  labels: dict[str, int] = {}
  texts: list[str] = []
  for text in lines:
    if found := _LABEL.match(text):
      labels[found[1]] = len(texts)
    elif _LINE.match(text):
      texts.append(text)
  return [_step(text, labels) for text in texts]


def _step(text: str, labels: dict[str, int]) -> MachineStep:
  found = _LINE.match(text)
  assert found is not None
  name, operands = found.groups()
  may = text.startswith("@")
  if product := _PRODUCT.match(name):
    groups = [tuple(_REGISTER.findall(g)) for g in _BRACES.findall(operands)]
    a = groups[1] if len(groups) > 1 else ()
    return MachineStep(groups[0], product=WgmmaStep(int(product[1]), a, groups[0]))
  if name.startswith("wgmma.commit"):
    return MachineStep(commits=True)
  if name.startswith("wgmma.wait_group"):
    return MachineStep(ends=int(operands))
  if name.startswith("bra"):
    return MachineStep(to=(labels[operands.strip()],), falls=may)
  if name in ("ret", "exit"):
    return MachineStep(falls=may)
  if name.startswith(_NONE):
    return MachineStep()
  first, _, rest = operands.partition("}") if operands.startswith("{") else operands.partition(",")
  writes, reads = tuple(_REGISTER.findall(first)), _REGISTER.findall(rest)
  moved = name.startswith("mov.") and len(writes) == len(reads) == 1
  plain = name.startswith("ld.") or (name.startswith("mov.") and not reads)
  return MachineStep(writes, reads[0] if moved else None, plain, may)
