"""Arrays in the memory of an emulator library: copies between guard pages, with their bounds."""

import ctypes
from collections.abc import Collection, Mapping

import numpy as np

from mirage_onnx.emulator.failure import EmulationError


class Range(ctypes.Structure):
  """``emu::Range`` of host/entry.h."""

  _fields_ = (
    ("lo", ctypes.c_void_p),
    ("hi", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("writable", ctypes.c_int),
    ("predecessor_writes", ctypes.c_int),
  )


class PlacedTensors:
  """Copies of arrays; two names of one array share one copy.

  ``uninitialised``: names of arrays whose bytes count as never written, whatever they hold, unless
  another name of the same array is not among them (an output in the place of an input).
  """

  def __init__(
    self,
    library: ctypes.CDLL,
    arrays: Mapping[str, np.ndarray],
    uninitialised: Collection[str] = (),
  ) -> None:
    library.emu_map.restype = ctypes.c_void_p
    library.emu_map.argtypes = (ctypes.c_ulong, ctypes.c_int)
    library.emu_unmap.argtypes = (ctypes.c_void_p,)
    library.emu_damage.restype = ctypes.c_long
    library.emu_damage.argtypes = (ctypes.c_void_p, ctypes.c_ulong)
    self._library = library
    self._arrays = arrays
    self._homes: dict[tuple[int, int], int] = {}
    self.address: dict[str, int] = {}
    keys = {name: (a.ctypes.data, a.nbytes) for name, a in arrays.items()}
    empty = {keys[name] for name in uninitialised if name in keys}
    empty -= {key for name, key in keys.items() if name not in uninitialised}
    for name, array in arrays.items():
      if not array.flags.c_contiguous:
        raise EmulationError(f"tensor '{name}' is not contiguous")
      key = keys[name]
      if key not in self._homes:
        home = library.emu_map(array.nbytes, int(key not in empty))
        if not home:
          raise MemoryError(f"no memory for tensor '{name}'")
        ctypes.memmove(home, array.ctypes.data, array.nbytes)
        self._homes[key] = home
      self.address[name] = self._homes[key]

  def addresses(self, names: Collection[str]) -> set[int]:
    """Where these tensors lie; other names may lie there, too."""
    return {self.address[name] for name in names}

  def ranges(self, names: Collection[str], writable: set[int], written_before: set[int]) -> list[Range]:
    """The bounds of some tensors; the sets are addresses."""
    return [
      Range(
        at,
        at + self._arrays[name].nbytes,
        name.encode(),
        at in writable,
        at in written_before,
      )
      for name, at in self.address.items()
      if name in names
    ]

  def check_surroundings(self, kernel: str) -> None:
    """Raises if a plain store went past a tensor's end; where accesses are unchecked."""
    for name, at in self.address.items():
      size = self._arrays[name].nbytes
      byte = self._library.emu_damage(at, size)
      if byte:
        raise EmulationError(
          f"kernel {kernel}: a plain store wrote outside tensor '{name}', at its byte {byte} of {size}",
          kind="out_of_bounds",
          kernel=kernel,
        )

  def write_back(self) -> None:
    """Copies the results into the arrays, those that can be written."""
    writeable = {self.address[name] for name, array in self._arrays.items() if array.flags.writeable}
    for name, array in self._arrays.items():
      home = self.address[name]
      if array.flags.writeable:
        ctypes.memmove(array.ctypes.data, home, array.nbytes)
      elif home in writeable:
        continue
      elif ctypes.string_at(home, array.nbytes) != array.tobytes():
        raise EmulationError(f"a plain store wrote to the read-only tensor '{name}'", kind="read_only")

  def free(self) -> None:
    for home in self._homes.values():
      self._library.emu_unmap(home)
