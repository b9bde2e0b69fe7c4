"""Sessions on a GPU that is not there: the emulated driver, for a device of any kind."""

from dataclasses import replace

from mirage_onnx.custom_op.session import InferenceSession
from mirage_onnx.emulator.driver import Driver
from mirage_onnx.target import H200


def host_session(model, capability):
  driver = Driver(replace(H200, capability=capability))
  return InferenceSession(model, providers=["CPUExecutionProvider"], ep="host", driver=str(driver.path))
