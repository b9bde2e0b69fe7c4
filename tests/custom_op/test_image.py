"""Images: what is no whole cubin, or says other things than the plan, is refused before the driver."""

import struct
import time

import numpy as np
import pytest
from cubin_images import Compiled, cubin_image

from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.custom_op import Bundle, Variant, const, launches, write_bundle
from mirage_onnx.target import H200
from tests.custom_op.host import hosted, replace_launch, run

IMAGE = cubin_image({"first": Compiled((8, 8, 4), 96), "second": Compiled((8,), 128, 4, shared=512)})
SECTIONS = struct.unpack_from("<Q", IMAGE, 40)[0]
COUNT = struct.unpack_from("<H", IMAGE, 60)[0]


def put(at, form, *values, image=IMAGE):
  data = struct.pack(form, *values)
  return image[:at] + data + image[at + len(data) :]


def header(image, name):
  """Place of the header of a section."""
  table = struct.unpack_from("<Q", image, SECTIONS + 64 + 24)[0]
  for i in range(COUNT):
    at = SECTIONS + 64 * i
    start = table + struct.unpack_from("<I", image, at)[0]
    if image[start : image.index(b"\0", start)] == name.encode():
      return at
  raise AssertionError(name)


def place(name):
  """Where the bytes of a section begin."""
  return struct.unpack_from("<Q", IMAGE, header(IMAGE, name) + 24)[0]


def test_what_an_image_says(native):
  assert native.image(IMAGE) == (True, "first 96 1 8 8 4\nsecond 128 4 8\n")


def test_what_nvrtc_makes(native):
  """The numbers of the attributes are not documented: this is where they are known from."""
  text = """
extern "C" __global__ void __launch_bounds__(96) one(const float* a, float* o, int n) {
  __shared__ float s[33];
  s[threadIdx.x % 33] = a[0];
  __syncthreads();
  o[threadIdx.x] = s[n];
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128) two(float* o, long long n) {
  o[n] = 1;
}
extern "C" __global__ void __launch_bounds__(32) none() {}
"""
  image = compile_cubin(text, H200, name="one").image
  assert native.image(image) == (True, "none 32 1\none 96 1 8 8 4\ntwo 128 4 8 8\n")
  for size in range(0, len(image), 7):
    assert not native.image(image[:size])[0], size


NAMES = place(".shstrtab")
SYMBOLS = place(".symtab")


@pytest.mark.parametrize(
  ("image", "reason"),
  [
    (b"", "it is no ELF file"),
    (b"\x50\xed\x55\xba" + IMAGE[4:], "it is no ELF file"),  # a fat binary
    (b".version 8.0\n.target sm_90\n\0" + bytes(100), "it is no ELF file"),  # PTX
    (put(4, "<B", 1), "it is not 64-bit little-endian ELF"),
    (put(5, "<B", 2), "it is not 64-bit little-endian ELF"),
    (put(6, "<B", 0), "it is not 64-bit little-endian ELF"),
    (put(18, "<H", 62), "it is no executable for NVIDIA's machine"),
    (put(16, "<H", 1), "it is no executable for NVIDIA's machine"),
    (put(58, "<H", 63), "its headers have unknown sizes"),
    (put(32, "<Q", len(IMAGE) - 8, image=put(56, "<H", 1)), "its table of segments is out of bounds"),
    (put(32, "<Q", SECTIONS, image=put(56, "<H", 9)), "segment 1 is out of bounds"),
    (put(32, "<Q", 2**64 - 8, image=put(56, "<H", 1)), "its table of segments is out of bounds"),
    (put(40, "<Q", 2**64 - 64), "its table of sections is out of bounds"),
    (put(40, "<Q", len(IMAGE) - 64), "its table of sections is out of bounds"),
    (put(60, "<H", 0), "its table of sections is out of bounds"),
    (put(60, "<H", COUNT + 1), "its table of sections is out of bounds"),
    (put(62, "<H", COUNT), "its names of sections are out of bounds"),
    (put(62, "<H", 3), "its names of sections are out of bounds"),
    (put(SECTIONS + 64, "<I", 1 << 20), "its names of sections are out of bounds"),
    (put(header(IMAGE, ".symtab") + 32, "<Q", 2**63), "section 3 is out of bounds"),
    (put(header(IMAGE, ".symtab") + 40, "<I", 99), "section 3 links to none"),
    (put(header(IMAGE, ".symtab") + 40, "<I", 4), "section .symtab is damaged"),
    (put(header(IMAGE, ".symtab") + 56, "<Q", 0), "section .symtab is damaged"),
    (put(header(IMAGE, ".symtab") + 32, "<Q", 71), "section .symtab is damaged"),
    (put(SYMBOLS + 24, "<I", 1 << 20), "section .symtab is damaged"),
    (put(SYMBOLS + 24 + 6, "<H", COUNT), "section .symtab is damaged"),
    (put(SYMBOLS + 24 + 16, "<Q", 17), "section .symtab is damaged"),
    (put(NAMES + IMAGE[NAMES:].index(b".strtab"), "<7s", b".ptx\0ab"), "it holds PTX"),
    (put(header(IMAGE, ".text.first") + 32, "<Q", 0), "section .symtab is damaged"),
    (put(header(IMAGE, ".text.second"), "<I", IMAGE[NAMES:].index(b".text.first")), "it has two sections"),
  ],
)  # fmt: skip
def test_what_is_no_whole_image(native, image, reason):
  accepted, text = native.image(image)
  assert not accepted
  assert reason in text


INFO = place(".nv.info.first")  # three parameters of 4 + 12 bytes, threads, the total


@pytest.mark.parametrize(
  "image",
  [
    put(header(IMAGE, ".nv.info.first") + 32, "<Q", 0),  # no attributes
    put(header(IMAGE, ".nv.info.first") + 4, "<I", 8),  # no bytes
    put(INFO, f"<{3 * 16}s", bytes(48)),  # parameters zeroed
    put(INFO, "<68s", bytes(68)),
    put(INFO + 2, "<H", 60000),
    put(INFO + 8, "<H", 1),  # two parameters 1
    put(INFO + 10, "<H", 8),  # two at one place
    put(INFO + 12, "<I", 0),  # of no bytes
    put(INFO + 48 + 4, "<I", 0),  # no threads
    put(INFO + 48 + 8, "<I", 2),  # a plane of threads
    put(INFO + 48 + 16 + 2, "<H", 400),  # parameters that are not told
  ],
)  # fmt: skip
def test_a_kernel_that_does_not_say_what_it_takes_is_none(native, image):
  assert native.image(image) == (True, "second 128 4 8\n")


def test_every_bit_of_the_headers_is_read_within_bounds(native):
  for at in (*range(64), *range(SECTIONS, len(IMAGE)), *range(INFO, INFO + 68)):
    for bit in range(8):
      native.image(put(at, "<B", IMAGE[at] ^ 1 << bit))


def standin_session(models, driver, plan, change):
  (cubin,) = (models.standin_cubin((plan,), standin_add=[8, 8, 8, 4]),)
  return hosted(models.add(write_bundle(Bundle((change(cubin),), (plan.to_text(),)))), driver)


def test_launches_are_compared_with_the_image(models, driver):
  plain = models.add_plan()
  cases = {
    "kernel standin_add is compiled for 32 threads, the plan has 64": {"block": 64},
    "kernel standin_add is compiled for 32 threads, the plan has 31": {"block": 31},
    "kernel standin_add is compiled for 1 blocks in a cluster, the plan has 2": {"cluster": 2},
  }
  for message, fields in cases.items():
    text = replace_launch(models, **fields).to_text()
    cubin = models.standin_cubin((plain,), standin_add=[8, 8, 8, 4])
    with pytest.raises(Exception, match=message):
      hosted(models.add(write_bundle(Bundle((cubin,), (text,)))), driver)
  text = b"STANDIN\nstandin_add 8 8 8 4\nend\n\0"
  shared = cubin_image({"standin_add": Compiled((8, 8, 8, 4), shared=200_000)}, {".standin": text})
  text = replace_launch(models, smem_bytes=100_000).to_text()
  with pytest.raises(Exception, match="has 200000 bytes of shared memory, and the plan adds 100000"):
    hosted(models.add(write_bundle(Bundle((shared,), (text,)))), driver)


def test_what_the_present_device_gives_a_block(models, driver, monkeypatch):
  """One of 99 KiB takes no launch of 100, and one without clusters none of a cluster."""
  text = replace_launch(models, smem_bytes=100 * 1024).to_text()

  def made():
    cubin = models.standin_cubin((models.add_plan(),), standin_add=[8, 8, 8, 4])
    return hosted(models.add(write_bundle(Bundle((cubin,), (text,)))), driver)

  monkeypatch.setenv("STANDIN_SHARED", str(99 * 1024))
  with pytest.raises(Exception, match="the plan adds 102400: the device gives a block 101376") as refused:
    made()
  assert "standin_add has " in str(refused.value)
  monkeypatch.setenv("STANDIN_SHARED", str(100 * 1024))
  made()
  clustered = replace_launch(models, cluster=2)
  cubin = models.standin_cubin((clustered,), standin_add=[8, 8, 8, 4])
  model = models.add(write_bundle(Bundle((cubin,), (clustered.to_text(),))))
  hosted(model, driver)
  monkeypatch.setenv("STANDIN_CLUSTERS", "0")
  with pytest.warns(RuntimeWarning, match="standin_add is of clusters of 2, and the device has none"):
    assert launches(hosted(model, driver)) == {"node0": 0}  # its bodies run
  monkeypatch.setenv("STANDIN_FAIL", "cuDeviceGetAttribute")
  with pytest.raises(Exception, match=r"CUDA_ERROR_UNKNOWN \(999\)"):
    hosted(model, driver)


def test_a_cluster_that_the_device_cannot_hold(models, driver, driver_log, old_driver, monkeypatch):
  """As a small part of a GPU: it is refused with the session, not by launches of every run; bodies run."""
  plan = replace_launch(models, cluster=16)
  cubin = models.standin_cubin((plan,), standin_add=[8, 8, 8, 4])
  model = models.add(write_bundle(Bundle((cubin,), (plan.to_text(),))))
  hosted(model, driver)
  monkeypatch.setenv("STANDIN_CLUSTER", "8")
  message = "the device holds no cluster of 16 blocks of kernel standin_add"
  with pytest.warns(RuntimeWarning, match=message) as warned:
    assert launches(hosted(model, driver)) == {"node0": 0}
  assert "CUDA_ERROR" not in str(warned[0].message) and not driver_log("launch")
  monkeypatch.setenv("STANDIN_FAIL", "cuOccupancyMaxActiveClusters")
  with pytest.warns(RuntimeWarning, match=message + r": CUDA_ERROR_UNKNOWN \(999\)"):
    hosted(model, driver)
  hosted(model, old_driver("STANDIN_NO_OCCUPANCY"))  # whoever lacks the question is not asked


def test_a_bundle_of_16_mib_is_judged_in_a_second(models, driver):
  """Its images were hashed again for each of 4096 launches: 48 s."""
  launch = models.add_plan().variants[0].launches[0]
  variants = [Variant((launch,) * 64, const(0)) for _ in range(63)] + [Variant((launch,) * 64)]
  plan = models.add_plan(variants=tuple(variants))
  text = b"STANDIN\nstandin_add 8 8 8 4\nend\n\0" + models.tag.encode()
  kernel = {"standin_add": Compiled((8, 8, 8, 4))}
  large = [cubin_image(kernel, {".standin": text, ".fill": bytes([i]) * (1 << 20)}) for i in range(15)]
  data = write_bundle(Bundle(tuple(large), (plan.to_text(),)))
  assert len(data) > 15 << 20
  for bundle, nodes in ((data, 1), (data, 8), (data[:-1] + b"x", 1)):
    model = models.add(bundle, nodes=nodes)
    began = time.process_time()
    try:
      session = hosted(model, driver)
      assert bundle is data and len(launches(session)) == nodes
    except Exception as error:
      assert bundle is not data and "SHA-256" in str(error)
    assert time.process_time() - began < 1


def test_the_driver_is_not_given_a_damaged_image(models, driver, driver_log):
  for change, message in (
    (lambda image: image[: len(image) // 2], "cubin 0 is no image to be loaded: "),
    (lambda image: b"STANDIN\n" + image, "cubin 0 is no image to be loaded: it is no ELF file"),
    (lambda image: image.replace(b".nv.info.standin_add", b".nv.info.standin_sub"),
     "cubin 0 has no kernel standin_add that says what it takes"),
  ):  # fmt: skip
    with pytest.raises(Exception, match=message):
      standin_session(models, driver, models.add_plan(), change)
  assert len(driver_log("function")) == 0
  standin_session(models, driver, models.add_plan(), lambda image: image)
  assert len(driver_log("function")) == 1


def test_a_driver_without_parameter_info_is_served_from_the_image(models, vectors, old_driver):
  """Without cuKernelGetParamInfo a plan of other arguments made the driver read beyond an array."""
  driver = old_driver("STANDIN_OLD")
  session = standin_session(models, driver, models.add_plan(), lambda image: image)
  np.testing.assert_array_equal(run(session, vectors), vectors["a"] + vectors["b"])
  assert launches(session) == {"node0": 1}
  args = models.add_plan().variants[0].launches[0].args
  with pytest.raises(Exception, match="kernel standin_add does not take 3 arguments"):
    standin_session(models, driver, replace_launch(models, args=args[:3]), lambda image: image)
