// Hopper's asynchronous machinery in the few forms that kernel.cu uses. No header is needed, so that
// NVRTC compiles this on any machine. PTX ISA 8.0, sm_90a.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__

// two 16-bit elements in a word, the first one low
#if BF16
#define OPERANDS "bf16.bf16"
#define NARROW2 "cvt.rn.bf16x2.f32"
DEVICE float low(u32 v) { return __uint_as_float(v << 16); }
DEVICE float high(u32 v) { return __uint_as_float(v & 0xffff0000); }
#else
#define OPERANDS "f16.f16"
#define NARROW2 "cvt.rn.f16x2.f32"
DEVICE float low(u32 v) { float r; asm("{.reg .b16 h;\ncvt.u16.u32 h, %1;\ncvt.f32.f16 %0, h;}" : "=f"(r) : "r"(v)); return r; }
DEVICE float high(u32 v) { return low(v >> 16); }
#endif
DEVICE float2 wide2(u32 v) { return make_float2(low(v), high(v)); }
DEVICE u32 narrow2(float2 v) { u32 r; asm(NARROW2 " %0, %1, %2;" : "=r"(r) : "f"(v.y), "f"(v.x)); return r; }

#if BF16
// absolute error below 5e-4, an eighth of what rounding to bfloat16 adds; one special-function operation each
DEVICE float tanh_(float x) { float r; asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEVICE float sigmoid(float x) { return .5f * tanh_(.5f * x) + .5f; }
#else
// absolute error below 2e-7, infinities included; two special-function operations each
DEVICE float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
DEVICE float tanh_(float x) { return 1.f - 2.f * sigmoid(-2.f * x); }
#endif

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- mbarriers -----------------------------------------------------------------------------------------
DEVICE void barrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
DEVICE void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
DEVICE void barrier_expect(u32 bar, u32 bytes) {  // arrives as well
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}" ::"r"(bar), "r"(parity) : "memory");
}

// ---- copies and fences ---------------------------------------------------------------------------------
// global to shared memory, contiguous, completing on an mbarrier; 16-byte granular
DEVICE void bulk_copy(u32 to, const void* from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar) : "memory");
}
// 16 bytes into the shared memory of a CTA of the cluster, counted by the mbarrier at `bar` there
DEVICE void send(u32 to, u32 bar, float4 v) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar) : "memory");
}
DEVICE u32 in_cta(u32 address, u32 rank) {  // the same place in the shared memory of a CTA of the cluster
  u32 r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
DEVICE void remote_arrive(u32 bar) {  // an address from in_cta
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
// what others wrote to global memory by ordinary stores may now be read by copies
DEVICE void fence_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// what this thread wrote to shared memory may now be read by the matrix unit, after a barrier
DEVICE void fence_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// moves registers between warpgroups: the limits of all of them together stay those at launch
template <int COUNT> DEVICE void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
DEVICE void named_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void release_add(u32* p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
DEVICE void wait_for(const u32* p, u32 target) {
  u32 v;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  while (v < target);
}
DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// words that other CTAs read or write meanwhile
DEVICE void store_through(void* p, u32 v) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
DEVICE uint4 load_fresh(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
DEVICE uint2 load_fresh2(const void* p) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}
DEVICE bool any_empty(uint4 v, u32 words) {  // among the first words
  const u32 e = 0xffffffff;
  return (words > 0 && v.x == e) || (words > 1 && v.y == e) || (words > 2 && v.z == e) || (words > 3 && v.w == e);
}
DEVICE void store_shared(u32 p, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// the same inside a CTA
DEVICE void release_add_shared(u32 p) { asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(p) : "memory"); }
DEVICE void wait_for_shared(u32 p, u32 target) {
  u32 v;
  do asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(p) : "memory");
  while (v < target);
}

// ---- matrix products -----------------------------------------------------------------------------------
// A tile of rows of 64 16-bit elements (128 bytes), 8-row groups one after another, 128-byte swizzle: the
// 16-byte piece j of row r lies at piece j ^ (r % 8). Tiles start at multiples of 1024 bytes; the next 16
// elements along a row are 32 bytes further.
DEVICE u64 descriptor(u32 address) {
  return (u64)((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
DEVICE u32 swizzled(u32 row, u32 column) {  // in bytes
  return row * 128 + ((((column >> 3) ^ row) & 7) << 4) + (column & 7) * 2;
}
DEVICE void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
DEVICE void product_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

#define F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(d, i) F4(d, i), F4(d, i + 4), F4(d, i + 8), F4(d, i + 12)
#define R4 "%0,%1,%2,%3"
#define R8 R4 ",%4,%5,%6,%7"
#define R16 R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define R32 R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PRODUCT(SHAPE, D, A, B, S, TAIL) \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " S ", 0;\nwgmma.mma_async.sync.aligned." SHAPE ".f32." OPERANDS \
  " {" D "}, " A ", " B ", add, 1, 1, " TAIL ";\n}"
#define FROM_REGISTERS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)
#define FROM_SHARED : "l"(a), "l"(b), "r"(add)

// d [64, COLUMNS] (+)= a [64, 16] b [COLUMNS, 16]^T by one warpgroup; `add` 0 overwrites. The first takes a
// from registers, the second from shared memory.
#if COLUMNS == 8
#define DESTINATION F4(d, 0)
#define FIRST PRODUCT("m64n8k16", R4, "{%4,%5,%6,%7}", "%8", "%9", "0")
#define SECOND PRODUCT("m64n8k16", R4, "%4", "%5", "%6", "0, 0")
#elif COLUMNS == 16
#define DESTINATION F4(d, 0), F4(d, 4)
#define FIRST PRODUCT("m64n16k16", R8, "{%8,%9,%10,%11}", "%12", "%13", "0")
#define SECOND PRODUCT("m64n16k16", R8, "%8", "%9", "%10", "0, 0")
#elif COLUMNS == 32
#define DESTINATION F16(d, 0)
#define FIRST PRODUCT("m64n32k16", R16, "{%16,%17,%18,%19}", "%20", "%21", "0")
#define SECOND PRODUCT("m64n32k16", R16, "%16", "%17", "%18", "0, 0")
#elif COLUMNS == 64
#define DESTINATION F16(d, 0), F16(d, 16)
#define FIRST PRODUCT("m64n64k16", R32, "{%32,%33,%34,%35}", "%36", "%37", "0")
#define SECOND PRODUCT("m64n64k16", R32, "%32", "%33", "%34", "0, 0")
#endif
DEVICE void product(float (&d)[COLUMNS / 2], const u32 (&a)[4], u64 b, u32 add) {
  asm volatile(FIRST : DESTINATION FROM_REGISTERS);
}
DEVICE void product(float (&d)[COLUMNS / 2], u64 a, u64 b, u32 add) { asm volatile(SECOND : DESTINATION FROM_SHARED); }
