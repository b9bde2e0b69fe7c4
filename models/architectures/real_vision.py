"""What is no plain transformer: convolutions, mixers, recommenders, blocks of diffusion models."""

import itertools

import torch
import transformers as tf
from real_common import First, noise
from real_export import Real
from torch import nn


def _image(cls, config, batch, size):
  def make():
    given = {"pixel_values": noise(batch, 3, size, size)}
    return First(cls(config()), *given), given

  return make


class Mixer(nn.Module):
  """MLP-Mixer B/16 (arXiv 2105.01601): tokens, then channels."""

  def __init__(self, tokens=196, width=768, layers=2):
    super().__init__()
    self.patch = nn.Conv2d(3, width, 16, 16)
    self.blocks = nn.ModuleList(
      nn.ModuleList([nn.LayerNorm(width), _mlp(tokens, 384), nn.LayerNorm(width), _mlp(width, 3072)])
      for _ in range(layers)
    )
    self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

  def forward(self, pixels):
    x = self.patch(pixels).flatten(2).transpose(1, 2)
    for before, tokens, between, channels in self.blocks:
      x = x + tokens(before(x).transpose(1, 2)).transpose(1, 2)
      x = x + channels(between(x))
    return self.head(self.norm(x).mean(1))


def _mlp(width, inner):
  return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Recommender(nn.Module):
  """DLRM (arXiv 1906.00091): embeddings, a bottom MLP, dot products of all pairs, a top MLP."""

  def __init__(self, tables=16, rows=20000, width=128):
    super().__init__()
    self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
    self.bottom = _layers(13, 512, 256, width)
    pairs = (tables + 1) * tables // 2
    self.top = _layers(pairs + width, 1024, 1024, 512, 1)
    self.register_buffer("rows", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

  def forward(self, dense, sparse):
    low = self.bottom(dense)
    parts = [low, *(table(sparse[:, i]) for i, table in enumerate(self.tables))]
    x = torch.stack(parts, 1)
    products = (x @ x.transpose(1, 2))[:, self.rows[0], self.rows[1]]
    return torch.sigmoid(self.top(torch.cat([low, products], 1)))


def _layers(*widths):
  pairs = itertools.pairwise(widths)
  return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))[:-1]


class YoloHead(nn.Module):
  """A detection head without anchors over three levels: boxes from distributions, scores, strides."""

  def __init__(self, channels=(256, 512, 512), classes=80, bins=16):
    super().__init__()
    self.bins, self.classes = bins, classes

    def tower(c, out):
      return nn.Sequential(
        nn.Conv2d(c, c, 3, 1, 1),
        nn.BatchNorm2d(c),
        nn.SiLU(),
        nn.Conv2d(c, c, 3, 1, 1),
        nn.BatchNorm2d(c),
        nn.SiLU(),
        nn.Conv2d(c, out, 1),
      )

    self.boxes = nn.ModuleList(tower(c, 4 * bins) for c in channels)
    self.scores = nn.ModuleList(tower(c, classes) for c in channels)
    centres, strides = zip(*(_grid(640 // s, s) for s in (8, 16, 32)), strict=True)
    self.register_buffer("centres", torch.cat(centres))
    self.register_buffer("strides", torch.cat(strides))
    self.register_buffer("bin", torch.arange(bins).float())

  def forward(self, small, middle, large):
    levels = (small, middle, large)
    boxes = torch.cat([f(x).flatten(2) for f, x in zip(self.boxes, levels, strict=True)], 2)
    scores = torch.cat([f(x).flatten(2) for f, x in zip(self.scores, levels, strict=True)], 2)
    b, _, n = boxes.shape
    sides = (boxes.view(b, 4, self.bins, n).softmax(2) * self.bin[:, None]).sum(2).transpose(1, 2)
    low, high = self.centres - sides[..., :2], self.centres + sides[..., 2:]
    found = torch.cat([(low + high) / 2, high - low], -1) * self.strides[:, None]
    return torch.cat([found, scores.transpose(1, 2).sigmoid()], -1)


def _grid(n, stride):
  y, x = torch.meshgrid(torch.arange(n) + 0.5, torch.arange(n) + 0.5, indexing="ij")
  return torch.stack([x.flatten(), y.flatten()], -1), torch.full((n * n,), float(stride))


class Branches(nn.Module):
  """One of two feed-forward blocks, as the input says."""

  def __init__(self, width=768):
    super().__init__()
    self.norm, self.left, self.right = nn.LayerNorm(width), _mlp(width, 3072), _mlp(width, 768)

  def forward(self, x, chosen):
    y = torch.cond(chosen, lambda z: self.left(z), lambda z: self.right(z), (self.norm(x),))
    return x + y


def _unet():
  from diffusers.models.unets.unet_2d_blocks import CrossAttnDownBlock2D

  block = CrossAttnDownBlock2D(
    320,
    640,
    1280,
    num_layers=1,
    transformer_layers_per_block=1,
    num_attention_heads=10,
    cross_attention_dim=768,
    add_downsample=True,
    use_linear_projection=True,
  )
  given = {
    "hidden_states": noise(1, 320, 32, 32),
    "temb": noise(1, 1280),
    "encoder_hidden_states": noise(1, 77, 768),
  }
  return First(block, *given), given


def _dit():
  from diffusers import DiTTransformer2DModel

  model = DiTTransformer2DModel(num_layers=2, sample_size=32, num_attention_heads=16, attention_head_dim=72)
  given = {
    "hidden_states": noise(2, 4, 32, 32),
    "timestep": torch.tensor([10, 10]),
    "class_labels": torch.tensor([1, 2]),
  }
  return First(model, *given, return_dict=False), given


def _joint():
  """A block of a two-stream diffusion transformer (1536 wide, 1024 image and 154 text tokens)."""
  from diffusers.models.attention import JointTransformerBlock

  block = JointTransformerBlock(1536, 24, 64)
  return block, {
    "hidden_states": noise(1, 1024, 1536),
    "encoder_hidden_states": noise(1, 154, 1536),
    "temb": noise(1, 1536),
  }


def _recommender(batch):
  return lambda: (
    Recommender(),
    {"dense": noise(batch, 13), "sparse": torch.zeros((batch, 16), dtype=torch.int64)},
  )


VISION = (
  Real("resnet50_8", _image(tf.ResNetModel, tf.ResNetConfig, 8, 224)),
  Real(
    "resnet50_dynamic_fp32",
    _image(tf.ResNetModel, tf.ResNetConfig, 2, 224),
    "fp32",
    dynamic={"pixel_values": {0: "batch"}},
    sizes={"batch": 1},
  ),
  Real(
    "efficientnet_b0_4",
    _image(
      tf.EfficientNetModel,
      lambda: tf.EfficientNetConfig(
        width_coefficient=1.0, depth_coefficient=1.0, image_size=224, hidden_dim=1280
      ),
      4,
      224,
    ),
  ),
  Real("mobilenet_v2_fp32", _image(tf.MobileNetV2Model, tf.MobileNetV2Config, 1, 224), "fp32"),
  Real("mixer_b16", lambda: (Mixer(), {"pixels": noise(4, 3, 224, 224)})),
  Real("recommender_256", _recommender(256), limits={"sparse": 20000}),
  Real(
    "recommender_dynamic_fp32",
    _recommender(4),
    "fp32",
    {"sparse": 20000},
    {"dense": {0: "batch"}, "sparse": {0: "batch"}},
    {"batch": 64},
  ),
  Real(
    "yolo_head_640",
    lambda: (
      YoloHead(),
      {"small": noise(1, 256, 80, 80), "middle": noise(1, 512, 40, 40), "large": noise(1, 512, 20, 20)},
    ),
  ),
  Real(
    "branches",
    lambda: (Branches(), {"x": noise(1, 128, 768), "chosen": torch.tensor(True)}),
    limits={"chosen": 2},
  ),
  Real("unet_block", _unet),
  Real("dit_xl", _dit, limits={"timestep": 1000, "class_labels": 1000}),
  Real("joint_block_bf16", _joint, "bf16"),
)
