"""What the models of the table are, by name."""

DECODE, PREFILL, ENCODER, OTHER = "decode step", "prefill", "encoder", "cross-attending decoder"
DIFFUSION, QUANTIZED, PLAIN = "diffusion", "quantized", "no transformer"
#: Of ``models/architectures/exports.py``: NAME.EXPORTER.
EXPORT = "of another exporter"
KINDS = (DECODE, ENCODER, PREFILL, OTHER, DIFFUSION, QUANTIZED, PLAIN, EXPORT)

#: Part of a name -> kind; the first that is there.
_BY_PART = {
  "_int4": QUANTIZED, "_qdq": QUANTIZED, "_int8": QUANTIZED, "_decoder": OTHER, "_decode": DECODE,
  "_prefill": PREFILL, "unet": DIFFUSION, "dit_": DIFFUSION, "joint_": DIFFUSION,
  **dict.fromkeys(
    ("resnet", "efficientnet", "mobilenet", "convnext", "mixer_", "recommender", "yolo", "branches", "lstm",
     "loop"), PLAIN),
}  # fmt: skip


def kind_of(name):
  """One of ``KINDS``."""
  if any(name.endswith(f".{end}") or f".{end}" in name for end in ("torchscript", "dynamo", "genai")):
    return EXPORT
  return next((kind for part, kind in _BY_PART.items() if part in name), ENCODER)
