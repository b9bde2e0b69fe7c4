// fp32 functions and reductions. Maximum and minimum propagate NaN, as ONNX and numpy do.
// Reductions add in a fixed order, so a result does not depend on timing.
// Needs ptx.cuh, included before.
#pragma once

PTX_DEVICE float infinity() { return ptx::bits_to_f32(0x7f800000u); }

PTX_DEVICE float square(float x) { return x * x; }
// exp(-x) overflows to infinity for very negative x, whose reciprocal is the right 0.
PTX_DEVICE float sigmoid(float x) { return ptx::rcp(1.0f + expf(-x)); }

// sin and cos through fp64, because sinf and cosf keep a table on the stack for large arguments.
// |error| <= 1e-7 + 2e-16 |x|: x = n pi/2 + r, then the polynomials of fdlibm on |r| <= pi/4 (held
// there, so that the result stays in [-1, 1] even where x is too large for r to mean anything).
PTX_DEVICE float sine_of_quadrant(double x, int shift) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double n = (x * 0.63661977236758134308 + kRound) - kRound;
  double r = x - n * 1.57079632679489661923;
  if (r > 0.7853981633974483) r = 0.7853981633974483;
  if (r < -0.7853981633974483) r = -0.7853981633974483;
  const double z = r * r;
  const int quadrant = static_cast<int>((static_cast<long long>(n) + shift) & 3);
  const double s = r + r * z * (-0.166666666416265235595 + z * 0.0083333293858894631756 +
                                z * z * (-0.000198393348360966317347 +
                                         z * 0.0000027183114939898219064));
  const double c = 1.0 - z * 0.499999997251031003120 + z * z * 0.0416666233237390631894 +
                   z * z * z * (-0.00138867637746099294692 + z * 0.0000243904487962774090654);
  const double v = quadrant % 2 == 0 ? s : c;
  return static_cast<float>(quadrant < 2 ? v : -v);
}
PTX_DEVICE float sine(float x) { return sine_of_quadrant(x, 0); }
PTX_DEVICE float cosine(float x) { return sine_of_quadrant(x, 1); }

struct Sum {
  static PTX_DEVICE float neutral() { return 0.0f; }
  static PTX_DEVICE float combine(float a, float b) { return a + b; }
};
struct Max {
  static PTX_DEVICE float neutral() { return -infinity(); }
  static PTX_DEVICE float combine(float a, float b) { return ptx::max_nan(a, b); }
};

// Over the four lanes of a quad, the result in each.
template <class R>
PTX_DEVICE float quad_reduce(float v) {
  v = R::combine(v, ptx::shfl_xor(v, 1));
  return R::combine(v, ptx::shfl_xor(v, 2));
}

// Over the warp, or each segment of `Lanes` lanes of it, the result in every lane.
template <class R, int Lanes = 32>
PTX_DEVICE float warp_reduce(float v) {
#pragma unroll
  for (int mask = Lanes / 2; mask > 0; mask /= 2) v = R::combine(v, ptx::shfl_xor(v, mask));
  return v;
}

// Over `Parts` partial tiles that lie `Pitch` floats apart, at one place.
template <class R, int Parts, int Pitch>
PTX_DEVICE float parts_reduce(const float* part) {
  float v = part[0];
#pragma unroll
  for (int p = 1; p < Parts; ++p) v = R::combine(v, part[p * Pitch]);
  return v;
}

// Over the blocks of the cluster, at one place of the shared memory of each.
template <class R, int Ranks>
PTX_DEVICE float cluster_reduce(const float* part) {
  float v = ptx::dsmem_ld(part, 0);
#pragma unroll
  for (int r = 1; r < Ranks; ++r) v = R::combine(v, ptx::dsmem_ld(part, r));
  return v;
}
