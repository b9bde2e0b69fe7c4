"""What a child process is asked to do in tests: to answer, to fail, to crash or never to end."""

import os
import signal
import time

from mirage_onnx.custom_op.child import serve


def work(request, at):
  at("the first step")
  at(f"the step {request}")
  match request:
    case "fail":
      raise ValueError("two\nlines")
    case "crash":
      os.kill(os.getpid(), signal.SIGSEGV)
    case "exit":
      os._exit(7)
    case "hang":
      time.sleep(600)
    case "late":
      time.sleep(3)
    case "print":
      print("noise on stdout")
  return (request, 3)


if __name__ == "__main__":
  serve(work)
