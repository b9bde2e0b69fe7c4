"""An array module of its own, as strict as cupy: what numpy would do silently raises here.

``np.asarray`` and every numpy function refuse ``StrictArray``, and so do operators and indices with
a numpy array on the other side. As with cupy, numpy's ufuncs come back to the array's module, and
scipy's do not; with ``dispatches`` its functions come back too, but never ``np.asarray``.
"""

import sys
from types import ModuleType

import numpy as np
from scipy import special


class StrictArray:
  __hash__ = None
  dispatches = False

  def __init__(self, data):
    self._data = data

  def get(self):
    return self._data.copy()

  @property
  def shape(self):
    return self._data.shape

  @property
  def ndim(self):
    return self._data.ndim

  @property
  def size(self):
    return self._data.size

  @property
  def dtype(self):
    return self._data.dtype

  @property
  def T(self):  # noqa: N802
    return StrictArray(self._data.T)

  def __array__(self, *_, **__):
    raise TypeError("implicit conversion to a numpy array")

  def __array_function__(self, func, types, args, more):
    if not self.dispatches:
      raise TypeError(f"np.{func.__name__} of an array of another module")
    return wrap(func(*map(unwrap, args), **{k: unwrap(v) for k, v in more.items()}))

  def __array_ufunc__(self, ufunc, method, *args, **more):
    if getattr(np, ufunc.__name__, None) is not ufunc or method != "__call__":
      return NotImplemented
    return wrap(ufunc(*map(unwrap, args), **more))

  def __bool__(self):
    return bool(self._data)

  def __int__(self):
    return int(self._data)

  def __float__(self):
    return float(self._data)

  def __len__(self):
    return len(self._data)

  def __getitem__(self, key):
    return StrictArray(np.asarray(self._data[unwrap(key)]))

  def __setitem__(self, key, value):
    self._data[unwrap(key)] = unwrap(value)


def unwrap(x):
  if isinstance(x, list | tuple):
    return type(x)(map(unwrap, x))
  if isinstance(x, StrictArray):
    return x._data
  if isinstance(x, np.ndarray):
    raise TypeError("a numpy array meets an array of another module")
  return x


def wrap(x):
  if isinstance(x, tuple):
    return tuple(map(wrap, x))
  return StrictArray(np.asarray(x)) if isinstance(x, np.ndarray | np.generic) else x


def _method(name):
  def call(self, *args, **more):
    if more.keys() & {"initial", "where"}:
      raise TypeError(f"{name}() got an unexpected keyword argument, as in cupy")
    given = {k: unwrap(v) for k, v in more.items()}
    return wrap(getattr(self._data, name)(*map(unwrap, args), **given))

  call.__name__ = name
  return call


_METHODS = "reshape transpose take sum max min mean any all astype view copy ravel nonzero".split()
_OPERATORS = (
  "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul "
  "rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift lt le eq ne gt ge neg pos abs "
  "invert"
).split()
for _name in (*_METHODS, *(f"__{o}__" for o in _OPERATORS)):
  setattr(StrictArray, _name, _method(_name))


def _function(name, module=np):
  def call(*args, **more):
    given = {k: unwrap(v) for k, v in more.items()}
    return wrap(getattr(module, name)(*map(unwrap, args), **given))

  return call


def _asarray(x, *args, **more):
  return x if isinstance(x, StrictArray) else StrictArray(np.array(x, *args, **more))


_FUNCTIONS = (
  "where full zeros ones empty arange zeros_like ones_like full_like broadcast_to matmul maximum "
  "minimum exp sqrt log tanh concatenate stack"
).split()
#: Stands for cupy, and ``strictx.scipy.special`` for cupyx.scipy.special.
strict = ModuleType("strict")
strict.ndarray, strict.asarray, strict.array = StrictArray, _asarray, _asarray
for _name in _FUNCTIONS:
  setattr(strict, _name, _function(_name))
for _name in ("uint64", "uint32", "float64", "float32", "bool_", "inf", "nan"):
  setattr(strict, _name, getattr(np, _name))

_special = ModuleType("strictx.scipy.special")
for _name in ("erf", "expit"):
  setattr(_special, _name, _function(_name, special))
sys.modules[_special.__name__] = _special
