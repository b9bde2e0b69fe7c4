"""Odd models in the wire format of protobuf, written by hand."""

import struct

from odd_base import HUGE, F, plain, raw
from onnx import ModelProto, TensorProto


def varint(value):
  value &= (1 << 64) - 1
  out = bytearray()
  while True:
    out.append(value & 127 | (128 if value > 127 else 0))
    value >>= 7
    if not value:
      return bytes(out)


def overlong(value, size):
  found = bytearray(varint(value))
  while len(found) < size:
    found[-1] |= 128
    found.append(0)
  return bytes(found)


def key(number, kind):
  return varint(number << 3 | kind)


def chunk(number, data):
  return key(number, 2) + varint(len(data)) + data


def wire(rng):
  """Fields that protobuf allows and no writer makes."""
  found = plain(rng)
  data = raw(found)
  what = rng.randrange(11)
  if what == 0:  # parts of a message are merged
    return data + raw(plain(rng))
  if what == 1:  # unknown fields, groups
    extra = (
      key(rng.choice((99, 1000, 536870911)), 3) + chunk(5, b"x") + key(rng.choice((99, 1000, 536870911)), 4)
    )
    return data + extra if rng.random() < 0.5 else extra + data
  if what == 2:
    depth = rng.choice((10, 90, 101, 5000))
    return data + key(99, 3) * depth + key(99, 4) * depth
  if what == 3:
    return data + key(1, 0) + overlong(rng.choice(HUGE), rng.choice((2, 9, 10, 11, 12)))
  if what == 4:
    return data + key(7, 2) + varint(rng.choice(HUGE)) + b"abc"
  if what == 5:  # a graph in a graph's place, twice
    return (
      raw(ModelProto(ir_version=8))
      + chunk(7, raw(found.graph)) * rng.choice((2, 3))
      + chunk(8, raw(found.opset_import[0]))
    )
  if what == 6:
    found.graph.initializer[0].data_type = rng.choice(
      (0, 8, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 99, -1)
    )
    if rng.random() < 0.5:
      found.graph.initializer[0].ClearField("raw_data")
    return raw(found)
  if what == 7:
    return data[:-2] + varint(rng.choice(HUGE)) + data[-2:]
  if what == 8:  # ints as floats of another wire type
    t = TensorProto(name="w", dims=[64, 8], data_type=F)
    body = raw(t) + key(4, rng.choice((0, 1, 2, 5))) + struct.pack("<d", 1.5)
    return raw(ModelProto(ir_version=8)) + chunk(7, raw(found.graph) + chunk(5, body))
  if what == 9:
    found.ir_version = rng.choice(HUGE)
    for o in found.opset_import:
      o.version = rng.choice((*HUGE, 20))
    return raw(found)
  return b"".join(chunk(n, raw(m)) for n, m in ((8, found.opset_import[0]), (7, found.graph)))
