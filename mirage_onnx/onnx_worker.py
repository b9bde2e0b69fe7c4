"""The program of the process in which onnx's own C++ works on a model that nobody trusts.

Its checks and its shape inference end the process at models that no list names, or count for ever
(``onnx_process``, the other end, says what becomes of that). Requests and answers are lists of bytes:

- ``check``, seconds, opset, version of the IR, nodes... -> ``refused`` with the index and the reason,
  or ``ok``
- ``infer``, seconds, strict, followed, a model -> ``ok`` with the model, ``refused`` or ``failed`` with
  the reason

Behind an answer are the seconds of processor time that it took.
"""

import gc
import importlib
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage_onnx.worker_process import receive_parts, send_parts, worker_streams

#: Address space of a request: so much, and so many bytes for each of its own.
SPACE_BYTES, SPACE_TIMES = 1 << 30, 16


def native() -> tuple[Any, Any]:
  """The parts of onnx in C++ that check and that infer, without its Python, which takes 0.2 s to import.

  The package is there as a name only, in whose folder the module is found. Where an onnx has its parts
  elsewhere, it is imported as a whole.
  """
  spec = importlib.util.find_spec("onnx")
  if spec is not None and "onnx" not in sys.modules:
    sys.modules["onnx"] = importlib.util.module_from_spec(spec)  # not run
    try:
      found = importlib.import_module("onnx.onnx_cpp2py_export")
      return found.checker, found.shape_inference
    except (ImportError, AttributeError):
      for name in [n for n in sys.modules if n.partition(".")[0] == "onnx"]:
        del sys.modules[name]
  return importlib.import_module("onnx.checker").C, importlib.import_module("onnx.shape_inference").C


_CHECKER, _INFERENCE = native()


def serve() -> None:
  """Requests until stdin ends; a request ends the process when its seconds are over."""
  requests, answers = worker_streams()
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  gc.freeze()
  own = _own_space()
  while True:
    try:
      kind, seconds, *parts = receive_parts(requests)
    except EOFError:
      return
    _limit_space(own + SPACE_BYTES + SPACE_TIMES * sum(map(len, parts)))
    signal.setitimer(signal.ITIMER_PROF, float(seconds))
    start = time.process_time()
    try:
      found = _WORK[kind](parts)
    except _CHECKER.ValidationError as error:  # what a model says of itself, e.g. a recursive function
      found = [b"refused", _text(error)]
    except Exception as error:  # of some operators onnx takes what they lack, or a size as it stands
      found = [b"failed", _text(error)]
    signal.setitimer(signal.ITIMER_PROF, 0.0)
    try:
      send_parts(answers, [*found, repr(time.process_time() - start).encode()])
    except BrokenPipeError:
      os._exit(1)


def _text(error: Exception) -> bytes:
  return (str(error) or type(error).__name__).encode(errors="replace")


def _check(parts: Sequence[bytes]) -> list[bytes]:
  opset, ir_version, *nodes = parts
  context = _CHECKER.CheckerContext()
  context.ir_version = int(ir_version)
  context.opset_imports = {"": int(opset)}
  for index, node in enumerate(nodes):
    try:
      _CHECKER.check_node(node, context, _CHECKER.LexicalScopeContext())
    except (_CHECKER.ValidationError, ValueError) as error:
      return [b"refused", _text(error), str(index).encode()]
  return [b"ok"]


def _infer(parts: Sequence[bytes]) -> list[bytes]:
  strict, followed, model = parts
  # check the types, strict mode, follow the data
  return [b"ok", _INFERENCE.infer_shapes(model, bool(int(strict)), bool(int(strict)), bool(int(followed)))]


_WORK = {b"check": _check, b"infer": _infer}


def _own_space() -> int:
  """Bytes of address space of the process; 0 where the kernel does not say."""
  try:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
  except (OSError, ValueError, IndexError):
    return 0
  return pages * resource.getpagesize()


def _limit_space(size: int) -> None:
  _, most = resource.getrlimit(resource.RLIMIT_AS)
  if most == resource.RLIM_INFINITY or size < most:
    resource.setrlimit(resource.RLIMIT_AS, (size, most))


if __name__ == "__main__":
  serve()
