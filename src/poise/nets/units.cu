// Levels of a ResNet for images of 32 x 32 pixels, in as few kernels as possible: units.py compiles this once for
// each WIDTH, the number of channels: 16, 32 or 64, on maps of 512 / WIDTH pixels a side.
//
// A unit is a 3x3 convolution with what lies between it and the one before: batch norm, shortcut, ReLU. A block of 8
// warps takes IMAGES images; their maps stay in shared memory while each of the 9 taps reads them. Every sum over a
// batch is left as one partial sum per block, which the next kernel adds up in their order: the same input gives the
// same bytes, whatever else the device does meanwhile.

typedef unsigned int u32;
typedef unsigned short u16;  // holds a bf16

constexpr int C = WIDTH, N = IMAGES;
constexpr int SIDE = 512 / C, PIXELS = SIDE * SIDE, VECTORS = C / 8;  // a vector: 8 channels of a pixel, 16 bytes
constexpr int OWN = N * PIXELS * VECTORS / 256, HALF = OWN < 4 ? OWN : 4;  // of a thread; at a time, of several maps
// A map with a border of zeros; 16 bytes between its pixels, so that 8 of them in a row lie in 8 groups of banks.
constexpr int ROW = SIDE + 2, STEP = C + 8, BORDERED = ROW * ROW * STEP;
// How warps share a convolution: each has 16 output channels and TILES times 16 pixels, so many of them at a time.
constexpr int GROUPS = C / 16, LINES = 8 / GROUPS, TILES = N * PIXELS / 16 / LINES;
constexpr int MOST_TILES = TILES < 4 ? TILES : 4, UNIT_TILES = C == 16 ? 2 : MOST_TILES;
// How they share the gradient of the weights: 16 x 16 channels each; warps that are left over share its pixels.
constexpr int SQUARES = GROUPS * GROUPS, SHARES = SQUARES < 8 ? 8 / SQUARES : 1, ROUNDS = SQUARES < 8 ? 1 : SQUARES / 8;
constexpr int STEPS = N * PIXELS / 16 / SHARES;
// Where these sums are small, each block leaves those of its images at once; elsewhere they have a kernel of their own.
constexpr bool TOGETHER = C == 16;
constexpr int STAGE = 16 * 20;  // floats in which a warp turns its fragment

#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < count; i++)

struct Table { const void* at[64]; };  // one pointer for each unit

#ifndef EMULATED
#define SHARED extern __shared__ __align__(128) unsigned char shared[]
#define BLOCK __syncthreads()
#define WARP __syncwarp()
__device__ __forceinline__ float low(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float a, float b) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(b), "f"(a));
  return d;
}
#define MATRIX(kind) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4" kind ".shared.b16 {%0,%1,%2,%3}, [%4];" \
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((u32)__cvta_generic_to_shared(p)) : "memory")
__device__ __forceinline__ void matrix(u32 (&r)[4], const u16* p) { MATRIX(""); }
__device__ __forceinline__ void matrix_turned(u32 (&r)[4], const u16* p) { MATRIX(".trans"); }
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
               "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Loads exactly here: left to itself, the compiler loads long before, and runs out of registers.
__device__ __forceinline__ uint4 fetch(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ float across(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
#endif

__device__ __forceinline__ float real(float v) { return v; }
__device__ __forceinline__ float real(u16 v) { return low(v); }

__device__ __forceinline__ void spread(uint4 v, float (&f)[8]) {
  f[0] = low(v.x); f[1] = high(v.x); f[2] = low(v.y); f[3] = high(v.y);
  f[4] = low(v.z); f[5] = high(v.z); f[6] = low(v.w); f[7] = high(v.w);
}

__device__ __forceinline__ uint4 gather(const float (&f)[8]) {
  uint4 v;
  v.x = pack(f[0], f[1]); v.y = pack(f[2], f[3]); v.z = pack(f[4], f[5]); v.w = pack(f[6], f[7]);
  return v;
}

// relu(scale x + shift) of a vector: scales, and C values behind them shifts.
__device__ __forceinline__ uint4 activated(uint4 v, const float* k) {
  float f[8];
  spread(v, f);
  EACH(j, 8) f[j] = fmaxf(f[j] * k[j] + k[C + j], 0.f);
  return gather(f);
}

// Where a pixel lies in bordered maps: with an offset of ROW + 1 pixels, itself; without, what its first tap reads.
__device__ __forceinline__ int corner(int pixel) {
  const int q = pixel % PIXELS;
  return pixel / PIXELS * BORDERED + (q / SIDE * ROW + q % SIDE) * STEP;
}
constexpr int CENTRE = (ROW + 1) * STEP;

// Where a vector lies in maps without a border: swizzled, for the same reason that bordered ones have gaps.
__device__ __forceinline__ int inner(int pixel, int vector) {
  return pixel * C + (vector ^ (pixel / (8 / VECTORS) & (VECTORS - 1))) * 8;
}

// The vectors of this block's images, which are fewer in the last block of a batch that N does not divide.
__device__ __forceinline__ int known(int block, int batch) {
  return (N == 1 || (block + 1) * N <= batch ? N : batch - block * N) * PIXELS * VECTORS;
}

__device__ __forceinline__ bool inside(int at, int limit) { return N == 1 || at < limit; }

// Where a thread loads from for a vector: beyond the last image from some other place, so that there is no branch.
__device__ __forceinline__ int safe(int at, int limit) { return inside(at, limit) ? at : at % (PIXELS * VECTORS); }

__device__ __forceinline__ void clear_border(u16* tile) {
  for (int i = threadIdx.x; i < N * 4 * (SIDE + 1) * VECTORS; i += 256) {
    const int e = i / VECTORS % (4 * (SIDE + 1)), at = e % (SIDE + 1), side = e / (SIDE + 1), far = SIDE + 1;
    const int row = side == 0 ? 0 : side == 1 ? at : side == 2 ? far : at + 1;
    const int column = side == 0 ? at : side == 1 ? far : side == 2 ? at + 1 : 0;
    const int image = i / VECTORS / (4 * (SIDE + 1));
    *(uint4*)(tile + image * BORDERED + (row * ROW + column) * STEP + i % VECTORS * 8) = make_uint4(0, 0, 0, 0);
  }
}

// A 3x3 convolution of the tile; `with(i, t, group, acc)` takes 16 pixels x 16 channels at a time, the i-th of MT
// for all of which `prepare(i, t)` was called before: what it loads arrives together.
template <int MT, class P, class F> __device__ __forceinline__ void convolve(
    const u16* tile, const uint2* __restrict__ weights, P prepare, F with) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp % GROUPS, first = warp / GROUPS * TILES;
  weights += group * 2 * 32 + lane;
  for (int begin = first; begin < first + TILES; begin += MT) {
    const u16* at[MT];
    float acc[MT][2][4];
    EACH(t, MT) {
      at[t] = tile + corner((begin + t) * 16 + lane % 16) + lane / 16 * 8;
      EACH(i, 8) acc[t][i / 4][i % 4] = 0.f;
    }
    EACH(tap, 9) {
      EACH(k, C / 16) {
        const uint2* b = weights + (tap * (C / 16) + k) * (C / 8) * 32;
        const uint2 b0 = b[0], b1 = b[32];
        EACH(t, MT) {
          u32 a[4];
          matrix(a, at[t] + (tap / 3 * ROW + tap % 3) * STEP + k * 16);
          multiply(acc[t][0], a, b0.x, b0.y);
          multiply(acc[t][1], a, b1.x, b1.y);
        }
      }
    }
    EACH(t, MT) prepare(t, begin + t);
    EACH(t, MT) with(t, begin + t, group, acc[t]);
  }
}

// A warp's fragment of 16 pixels x 16 channels as one vector for each lane: of pixel lane / 2, the first or last 8.
__device__ __forceinline__ void turn(float* stage, const float (&acc)[2][4], float (&out)[8]) {
  const int lane = threadIdx.x % 32;
  EACH(i, 4) {  // 20 floats a row: no two lanes of a quarter warp meet in a bank
    float* to = stage + (lane / 4 + i % 2 * 8) * 20 + i / 2 * 8 + lane % 4 * 2;
    *(float2*)to = make_float2(acc[i / 2][i % 2 * 2], acc[i / 2][i % 2 * 2 + 1]);
  }
  WARP;
  const float* from = stage + lane / 2 * 20 + lane % 2 * 8;
  EACH(i, 2) *(float4*)(out + i * 4) = *(const float4*)(from + i * 4);
  WARP;
}

// Both sums of each channel over what the blocks of another kernel left, divided by the count: returned to thread
// 0 to 2 C - 1, and for all in scratch[512 ...].
__device__ __forceinline__ void add_up(const float* __restrict__ sums, int parts, float count, float* scratch) {
  const int channel = threadIdx.x % C, line = threadIdx.x / C;
  float one = 0.f, two = 0.f;
#pragma unroll 8
  for (int i = line; i < parts; i += 256 / C) {
    one += sums[i * C + channel];
    two += sums[(parts + i) * C + channel];
  }
  scratch[line * 2 * C + channel] = one;
  scratch[line * 2 * C + C + channel] = two;
  BLOCK;
  if (threadIdx.x < 2 * C) {
    float total = 0.f;
    for (int i = 0; i < 256 / C; i++) total += scratch[i * 2 * C + threadIdx.x];
    scratch[512 + threadIdx.x] = total / count;
  }
  BLOCK;
}

// Leave the sums of this block: each lane has two of each of its 8 channels, those of a vector as `turn` gives it.
__device__ __forceinline__ void leave_sums(float (&one)[8], float (&two)[8], float* scratch, float* sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* mine = scratch + warp / GROUPS * 2 * C + warp % GROUPS * 16 + lane * 8;
  EACH(j, 8)
#pragma unroll
    for (int mask = 2; mask < 32; mask *= 2) {
      one[j] += across(one[j], mask);
      two[j] += across(two[j], mask);
    }
  BLOCK;
  if (lane < 2)
    EACH(j, 8) {
      mine[j] = one[j];
      mine[C + j] = two[j];
    }
  BLOCK;
  if (threadIdx.x < 2 * C) {
    float total = 0.f;
    for (int i = 0; i < LINES; i++) total += scratch[i * 2 * C + threadIdx.x];
    sums[(threadIdx.x / C * gridDim.x + blockIdx.x) * C + threadIdx.x % C] = total;
  }
}

// What is between shared memory's maps and its end.
struct Scratch {
  float *stage, *sums, *factors;
  __device__ Scratch(void* behind) : stage((float*)behind), sums(stage + 8 * STAGE), factors(sums + 512 + 2 * C) {}
};

// Forward -------------------------------------------------------------------------------------------------------------

// Weights of all units, float or bf16, [out, tap, in], as the fragments of matrix instructions, [tap, k / 16, n / 8,
// lane]: for the convolution, and for its gradient by the input. Two vectors of each unit (scale and shift of a norm,
// or the bias of a folded one) lie one after the other.
template <class T> __global__ void pack_weights(
    Table weights, Table ones, Table others, uint2* ahead, uint2* back, float* vectors) {
  const int unit = blockIdx.x, tap = blockIdx.y;
  const T *from = (const T*)weights.at[unit], *one = (const T*)ones.at[unit], *other = (const T*)others.at[unit];
  if (tap == 0 && threadIdx.x < C) {
    vectors[unit * 2 * C + threadIdx.x] = real(one[threadIdx.x]);
    vectors[unit * 2 * C + C + threadIdx.x] = other == nullptr ? 0.f : real(other[threadIdx.x]);
  }
  for (int i = threadIdx.x; i < C * C / 4 && from != nullptr; i += 256) {
    const int lane = i % 32, n = i / 32 % (C / 8) * 8 + lane / 4, k = i / 32 / (C / 8) * 16 + lane % 4 * 2;
    const int to = (unit * 9 + tap) * (C * C / 4) + i;
    float f[4], g[4];
    EACH(j, 4) {
      const int row = k + j % 2 + j / 2 * 8;
      f[j] = real(from[(n * 9 + tap) * C + row]);
      g[j] = real(from[(row * 9 + 8 - tap) * C + n]);
    }
    ahead[to] = make_uint2(pack(f[0], f[1]), pack(f[2], f[3]));
    if (back != nullptr) back[to] = make_uint2(pack(g[0], g[1]), pack(g[2], g[3]));
  }
}

// y = the input of this convolution, c = its output, with sums for the norm behind it. What y is says the mode:
// PLAIN: x itself. NORM: relu(norm(x)) of the raw output x before. JOIN: norm(x) + shortcut, then ReLU if `relu`; y is
// kept. END: the same, and no convolution. START: nothing, x is the output c. The norm's running statistics are moved.
enum { PLAIN, NORM, JOIN, END, START };
template <int MODE> __global__ __launch_bounds__(256, 2) void unit_forward(
    const uint4* __restrict__ x, const uint4* __restrict__ shortcut, uint4* y, uint4* c,
    const uint2* __restrict__ weights, const float* __restrict__ sums_in, const float* __restrict__ affine,
    float* stats, float* running_mean, float* running_variance, const float* __restrict__ centre, float* sums_out,
    float eps, float momentum, int relu, int batch) {
  SHARED;
  u16* tile = (u16*)shared;
  const Scratch own(tile + N * BORDERED);
  const int tid = threadIdx.x, lane = tid % 32, limit = known(blockIdx.x, batch);
  const long base = (long)blockIdx.x * (N * PIXELS * VECTORS);
  constexpr bool ADDS = MODE == JOIN || MODE == END, NORMS = ADDS || MODE == NORM, CONVOLVES = MODE < END;
  uint4 v[OWN], s[OWN];
  EACH(i, OWN) {
    const int at = safe(i * 256 + tid, limit);
    if (MODE != START) v[i] = x[base + at];
    if (ADDS) s[i] = shortcut[base + at];
  }
  if (CONVOLVES) clear_border(tile);
  if (NORMS) {
    const int parts = gridDim.x;
    const float count = (float)batch * PIXELS;
    add_up(sums_in, parts, count, own.sums);
    if (tid < C) {
      const float off = own.sums[512 + tid], variance = fmaxf(own.sums[512 + C + tid] - off * off, 0.f);
      const float mean = sums_in[2 * parts * C + tid] + off, inverse = 1.f / sqrtf(variance + eps);
      const float scale = affine[tid] * inverse;
      own.factors[tid] = scale;
      own.factors[C + tid] = affine[C + tid] - mean * scale;
      if (blockIdx.x == 0) {
        stats[tid] = mean;
        stats[C + tid] = inverse;
        running_mean[tid] += momentum * (mean - running_mean[tid]);
        running_variance[tid] += momentum * (variance * (count / (count - 1.f)) - running_variance[tid]);
      }
    }
    BLOCK;
  }
  if (MODE != START) EACH(i, OWN) {
    const int at = i * 256 + tid, channel = at % VECTORS * 8;
    if (NORMS) {
      float f[8], g[8];
      spread(v[i], f);
      if (ADDS) spread(s[i], g);
      EACH(j, 8) {
        f[j] = f[j] * own.factors[channel + j] + own.factors[C + channel + j];
        if (ADDS) f[j] += g[j];
        if (!ADDS || relu) f[j] = fmaxf(f[j], 0.f);
      }
      v[i] = gather(f);
      if (ADDS && inside(at, limit)) y[base + at] = v[i];
    }
    if (CONVOLVES) *(uint4*)(tile + CENTRE + corner(at / VECTORS) + channel) = v[i];
  }
  if constexpr (MODE != END) {
    BLOCK;
    const int vector = tid / 32 % GROUPS * 2 + lane % 2, line = tid / 32 / GROUPS;
    float one[8] = {}, two[8] = {}, middle[8];
    EACH(j, 8) middle[j] = centre[vector * 8 + j];
    auto count = [&](int at, uint4 rounded) {  // the norm is that of what the next unit reads
      float f[8];
      spread(rounded, f);
      EACH(j, 8) {
        const float off = inside(at, limit) ? f[j] - middle[j] : 0.f;
        one[j] += off;
        two[j] += off * off;
      }
    };
    if constexpr (MODE == START)
      for (int t = line * TILES; t < (line + 1) * TILES; t++) {
        const int at = (t * 16 + lane / 2) * VECTORS + vector;
        count(at, x[base + safe(at, limit)]);
      }
    else
      convolve<UNIT_TILES>(tile, weights, [](int, int) {}, [&](int, int t, int, const float (&acc)[2][4]) {
        float f[8];
        const int at = (t * 16 + lane / 2) * VECTORS + vector;
        turn(own.stage + tid / 32 * STAGE, acc, f);
        const uint4 rounded = gather(f);
        if (inside(at, limit)) c[base + at] = rounded;
        count(at, rounded);
      });
    leave_sums(one, two, own.sums, sums_out);
    // What was subtracted: the running mean itself moves before every block of the next unit has read it.
    if (blockIdx.x == 0 && tid < C) sums_out[2 * gridDim.x * C + tid] = centre[tid];
  }
}

// Backward ------------------------------------------------------------------------------------------------------------

// Add products of input and gradient to a warp's 16 x 16 channels, of all taps.
__device__ __forceinline__ void add_products(const u16* tile, const u16* input, int round, float (&acc)[9][2][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, square = round * 8 + warp % (8 / SHARES);
  const int out = square / GROUPS * 16, in = square % GROUPS * 16, begin = warp / (8 / SHARES) * STEPS;
  for (int step = begin; step < begin + STEPS; step++) {
    u32 a[4], b[4];
    matrix_turned(b, input + inner(step * 16 + lane % 16, in / 8 + lane / 16));
    const u16* from = tile + corner(step * 16 + lane % 8 + lane / 16 * 8) + out + lane / 8 % 2 * 8;
    EACH(tap, 9) {
      matrix_turned(a, from + ((2 - tap / 3) * ROW + 2 - tap % 3) * STEP);
      multiply(acc[tap][0], a, b[0], b[1]);
      multiply(acc[tap][1], a, b[2], b[3]);
    }
  }
}

// Leave those of this block, [out, tap, in], added up over the warps that shared them, by way of shared memory.
__device__ __forceinline__ void leave_products(const float (&acc)[9][2][4], int round, float* all, float* sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  BLOCK;
  EACH(i, 72) all[(warp * 72 + i) * 32 + lane] = acc[i / 8][i / 4 % 2][i % 4];
  BLOCK;
  for (int i = threadIdx.x; i < 8 / SHARES * 36 * 32; i += 256) {  // two neighbours at a time
    const int l = i % 32, r = i / 32 % 36 * 2, which = i / (32 * 36), square = round * 8 + which;
    float2 total = make_float2(0.f, 0.f);
    for (int share = 0; share < SHARES; share++) {
      const float* from = all + ((share * (8 / SHARES) + which) * 72 + r) * 32 + l;
      total.x += from[0];
      total.y += from[32];
    }
    const int out = square / GROUPS * 16 + l / 4 + r % 4 / 2 * 8, in = square % GROUPS * 16 + r / 4 % 2 * 8 + l % 4 * 2;
    *(float2*)(sums + (out * 9 + r / 8) * C + in) = total;
  }
}

// g is the gradient of the norm's output, where a ReLU let it pass, with its sums. Leaves that of the unit before,
// g_out, with sums, and the gradients of this norm's scales. What the convolution's input was says the mode:
// HIDDEN: relu(norm(lower)). JOINED: `before`, which has a gradient, `extra`, as a shortcut too; there was a ReLU if
// `relu`. FIRST: the same, and there is no unit before. BEGIN: no convolution either: g is the gradient of `before`.
// LAST: nothing more is wanted than to_raw, the gradient of c. Elsewhere it is kept for unit_weights, unless TOGETHER.
enum { HIDDEN, JOINED, FIRST, BEGIN, LAST };
template <int MODE> __global__ __launch_bounds__(256, 2) void unit_backward(
    const uint4* __restrict__ g, const uint4* __restrict__ c, const uint4* __restrict__ before,
    const uint4* __restrict__ extra, const uint4* __restrict__ lower, const uint2* __restrict__ weights,
    const float* __restrict__ sums_in, const float* __restrict__ stats, const float* __restrict__ affine,
    const float* __restrict__ stats_lower, const float* __restrict__ affine_lower, uint4* g_out, float* sums_out,
    float* to_affine, uint4* to_raw, float* products, int relu, int batch) {
  SHARED;
  u16 *tile = (u16*)shared, *input = tile + N * BORDERED;
  const Scratch own(input + N * PIXELS * C);
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, limit = known(blockIdx.x, batch);
  const long base = (long)blockIdx.x * (N * PIXELS * VECTORS);
  if (MODE != FIRST && MODE != LAST && tid < C) {  // so that (x - mean) inverse is a product and a sum
    own.factors[5 * C + tid] = stats_lower[C + tid];
    own.factors[6 * C + tid] = -stats_lower[tid] * stats_lower[C + tid];
  }
  if constexpr (MODE != BEGIN) {
    uint4 vg[HALF], vc[HALF], vb[HALF];
    auto load = [&](int half) {
      EACH(i, HALF) {
        const long at = base + safe((half * HALF + i) * 256 + tid, limit);
        vg[i] = g[at];
        vc[i] = c[at];
        if (MODE != LAST) vb[i] = before[at];
      }
    };
    load(0);
    const float count = (float)batch * PIXELS;
    clear_border(tile);
    add_up(sums_in, gridDim.x, count, own.sums);
    if (tid < C) {
      // The gradient of x in norm(x) = scale (x - mean) inverse + shift is k0 g + k1 x + k2.
      const float m1 = own.sums[512 + tid], m2 = own.sums[512 + C + tid], mean = stats[tid], inverse = stats[C + tid];
      const float k0 = affine[tid] * inverse, k1 = -k0 * m2 * inverse;
      own.factors[tid] = k0;
      own.factors[C + tid] = k1;
      own.factors[2 * C + tid] = -k0 * m1 - k1 * mean;
      if (MODE == HIDDEN) {
        const float scale = affine_lower[tid] * stats_lower[C + tid];
        own.factors[3 * C + tid] = scale;
        own.factors[4 * C + tid] = affine_lower[C + tid] - stats_lower[tid] * scale;
      }
      if (blockIdx.x == 0) {
        to_affine[tid] = m2 * count;
        to_affine[C + tid] = m1 * count;
      }
    }
    BLOCK;
    EACH(half, OWN / HALF) {
      EACH(i, HALF) {
        const int at = (half * HALF + i) * 256 + tid;
        const float* k = own.factors + at % VECTORS * 8;
        float f[8], h[8];
        spread(vg[i], f);
        spread(vc[i], h);
        EACH(j, 8) f[j] = inside(at, limit) ? f[j] * k[j] + (h[j] * k[C + j] + k[2 * C + j]) : 0.f;
        const uint4 rounded = gather(f);
        if ((MODE == LAST || !TOGETHER) && inside(at, limit)) to_raw[base + at] = rounded;
        if (MODE == LAST) continue;
        *(uint4*)(tile + CENTRE + corner(at / VECTORS) + at % VECTORS * 8) = rounded;
        *(uint4*)(input + inner(at / VECTORS, at % VECTORS)) = MODE == HIDDEN ? activated(vb[i], k + 3 * C) : vb[i];
      }
      if ((half + 1) * HALF < OWN) load(half + 1);
    }
  }
  if (MODE == LAST) return;
  BLOCK;
  float one[8] = {}, two[8] = {};
  uint4 passing[UNIT_TILES], raw[UNIT_TILES];  // of `extra` and `lower`
  const int vector = warp % GROUPS * 2 + lane % 2;
  const float* normal = own.factors + 5 * C + vector * 8;
  auto prepare = [&](int i, int t) {
    const long at = base + safe((t * 16 + lane / 2) * VECTORS + vector, limit);
    if (MODE != HIDDEN) passing[i] = fetch((MODE == BEGIN ? g : extra) + at);
    if (MODE != FIRST) raw[i] = fetch(lower + at);
  };
  auto leave = [&](int i, int t, float (&f)[8]) {
    float h[8];
    const int p = t * 16 + lane / 2, at = p * VECTORS + vector;
    if (MODE != HIDDEN) {
      spread(passing[i], h);
      EACH(j, 8) f[j] += h[j];
    }
    if (MODE == HIDDEN || (MODE != FIRST && relu)) {
      spread(MODE == BEGIN ? before[base + safe(at, limit)] : *(const uint4*)(input + inner(p, vector)), h);
      EACH(j, 8) f[j] = h[j] > 0.f ? f[j] : 0.f;
    }
    EACH(j, 8) f[j] = inside(at, limit) ? f[j] : 0.f;
    const uint4 rounded = gather(f);
    if (inside(at, limit)) g_out[base + at] = rounded;
    if (MODE != FIRST) {
      spread(rounded, f);
      spread(raw[i], h);
      EACH(j, 8) {
        one[j] += f[j];
        two[j] += f[j] * (h[j] * normal[j] + normal[C + j]);
      }
    }
  };
  if constexpr (MODE == BEGIN) {
    for (int t = warp / GROUPS * TILES; t < (warp / GROUPS + 1) * TILES; t++) {
      float f[8] = {};
      prepare(0, t);
      leave(0, t, f);
    }
  } else {
    convolve<UNIT_TILES>(tile, weights, prepare, [&](int i, int t, int, const float (&acc)[2][4]) {
      float f[8];
      turn(own.stage + warp * STAGE, acc, f);
      leave(i, t, f);
    });
  }
  if (MODE != FIRST) leave_sums(one, two, own.sums, sums_out);
  if constexpr (TOGETHER && MODE != BEGIN) {
    float acc[9][2][4] = {};
    add_products(tile, input, 0, acc);
    leave_products(acc, 0, (float*)shared, products + (long)blockIdx.x * (9 * C * C));
  }
}

// The gradients of the weights of all units from `first` on, over `turns` times IMAGES images a block; `to_raw`, `raw`
// and `joined` are the gradients of raw outputs, these, and the outputs of the blocks. If `first`, x is raw output 0.
__global__ __launch_bounds__(256, 2) void unit_weights(
    const uint4* __restrict__ to_raw, const uint4* __restrict__ raw, const uint4* __restrict__ x,
    const uint4* __restrict__ joined, const float* __restrict__ stats, const float* __restrict__ affine,
    float* products, int first, int turns, int batch) {
  SHARED;
  u16 *tile = (u16*)shared, *input = tile + N * BORDERED;
  float* factors = (float*)(input + N * PIXELS * C);
  const int tid = threadIdx.x, unit = blockIdx.z + first;
  const long map = (long)batch * (PIXELS * VECTORS);
  const bool hidden = unit % 2;
  const uint4* before = unit == first ? x : hidden ? raw + (unit - 1) * map : joined + (unit / 2 - 1) * map;
  if (hidden && tid < C) {
    const float *stat = stats + (unit - 1) * 2 * C + tid, *own = affine + (unit - 1) * 2 * C + tid;
    factors[tid] = own[0] * stat[C];
    factors[C + tid] = own[C] - stat[0] * factors[tid];
  }
  clear_border(tile);
  float acc[9][2][4] = {};
  for (int block = blockIdx.x * turns; block < (blockIdx.x + 1) * turns && block * N < batch; block++) {
    const long base = (long)block * (N * PIXELS * VECTORS);
    const int limit = known(block, batch);
    EACH(half, OWN / HALF) {
      uint4 vg[HALF], vb[HALF];
      EACH(i, HALF) {
        const int at = (half * HALF + i) * 256 + tid;
        vg[i] = inside(at, limit) ? to_raw[unit * map + base + at] : make_uint4(0, 0, 0, 0);
        vb[i] = before[base + safe(at, limit)];
      }
      if (half == 0) BLOCK;  // nobody reads the last images any more
      EACH(i, HALF) {
        const int at = (half * HALF + i) * 256 + tid, vector = at % VECTORS;
        *(uint4*)(tile + CENTRE + corner(at / VECTORS) + vector * 8) = vg[i];
        *(uint4*)(input + inner(at / VECTORS, vector)) = hidden ? activated(vb[i], factors + vector * 8) : vb[i];
      }
    }
    BLOCK;
    add_products(tile, input, blockIdx.y, acc);
  }
  leave_products(acc, blockIdx.y, (float*)shared, products + ((long)blockIdx.z * gridDim.x + blockIdx.x) * (9 * C * C));
}

// The gradients of the weights of so many units: the sums over the parts that blocks left, in their order.
__global__ __launch_bounds__(256) void add_weights(const float* __restrict__ sums, float* total, int parts) {
  SHARED;
  float* scratch = (float*)shared;
  constexpr int SIZE = 9 * C * C;
  const int column = threadIdx.x % 32, line = threadIdx.x / 32, at = blockIdx.x * 32 + column;
  const float* from = sums + (long)blockIdx.y * parts * SIZE + at;
  float one = 0.f;
#pragma unroll 8
  for (int i = line; i < parts; i += 8) one += from[(long)i * SIZE];
  scratch[line * 32 + column] = one;
  BLOCK;
  if (line == 0) {
    for (int i = 1; i < 8; i++) one += scratch[i * 32 + column];
    total[(long)blockIdx.y * SIZE + at] = one;
  }
}

// Inference -----------------------------------------------------------------------------------------------------------

// Blocks of two convolutions with biases: images stay in shared memory from the first to the last. Bit b of `relus`
// says whether block b ends with a ReLU.
__global__ __launch_bounds__(256) void frozen_level(
    const uint4* __restrict__ x, uint4* y, const uint2* __restrict__ weights, const float* __restrict__ biases,
    int blocks, u32 relus, int batch) {
  SHARED;
  u16 *outer = (u16*)shared, *hidden = outer + N * BORDERED;
  const int tid = threadIdx.x, lane = tid % 32, limit = known(blockIdx.x, batch);
  const long base = (long)blockIdx.x * (N * PIXELS * VECTORS);
  clear_border(outer);
  clear_border(hidden);
  EACH(i, OWN) {
    const int at = i * 256 + tid;
    *(uint4*)(outer + CENTRE + corner(at / VECTORS) + at % VECTORS * 8) = x[base + safe(at, limit)];
  }
  BLOCK;
  for (int layer = 0; layer < 2 * blocks; layer++) {
    const bool adds = layer % 2, relu = !adds || relus >> layer / 2 & 1;
    u16* to = adds ? outer : hidden;
    const float* bias = biases + layer * 2 * C;
    const uint2* own = weights + layer * (9 * C * C / 4);
    auto nothing = [](int, int) {};
    convolve<MOST_TILES>(adds ? hidden : outer, own, nothing, [&](int, int t, int group, const float (&acc)[2][4]) {
      EACH(i, 4) {
        const int channel = group * 16 + i / 2 * 8 + lane % 4 * 2;
        u32* there = (u32*)(to + CENTRE + corner(t * 16 + lane / 4 + i % 2 * 8) + channel);
        float a = acc[i / 2][i % 2 * 2] + bias[channel], b = acc[i / 2][i % 2 * 2 + 1] + bias[channel + 1];
        if (adds) {
          a += low(*there);
          b += high(*there);
        }
        *there = relu ? pack(fmaxf(a, 0.f), fmaxf(b, 0.f)) : pack(a, b);
      }
    });
    BLOCK;
  }
  EACH(i, OWN) {
    const int at = i * 256 + tid;
    if (inside(at, limit)) y[base + at] = *(const uint4*)(outer + CENTRE + corner(at / VECTORS) + at % VECTORS * 8);
  }
}
