/* What lowered MLIR calls while a kernel made for Ascend runs on this machine:
 * memory for its tiles, copies between strided views, and 16-bit float conversions. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Tiles are never freed inside a kernel; the whole arena is taken back after each program. */
#define ARENA_BYTES ((size_t)1 << 30)
static char *arena;
static size_t arena_used;

void *tile_alloc(size_t bytes) {
  if (!arena) arena = aligned_alloc(4096, ARENA_BYTES);
  size_t start = (arena_used + 127) / 128 * 128;
  if (!arena || bytes > ARENA_BYTES - start) abort();
  arena_used = start + bytes;
  memset(arena + start, 0xA5, bytes); /* on-chip memory starts with garbage as well */
  return arena + start;
}

void tile_free(void *tile) { (void)tile; }

void tile_reset(void) { arena_used = 0; }

/* MLIR's descriptor of a ranked memref: two pointers, the offset, then `rank` sizes and `rank` strides */
struct view {
  char *allocated, *aligned;
  int64_t offset;
  int64_t sizes_then_strides[];
};

struct unranked_view {
  int64_t rank;
  struct view *view;
};

static void copy_dimension(char *to, const int64_t *to_stride, const char *from, const int64_t *from_stride,
                           const int64_t *size, int64_t rank, int64_t element) {
  if (rank == 0) {
    memcpy(to, from, element);
  } else if (rank == 1 && *to_stride == 1 && *from_stride == 1) {
    if (*size > 0) memcpy(to, from, element * *size);
  } else {
    for (int64_t i = 0; i < *size; i++)
      copy_dimension(to + i * *to_stride * element, to_stride + 1, from + i * *from_stride * element,
                     from_stride + 1, size + 1, rank - 1, element);
  }
}

void view_copy(int64_t element, struct unranked_view *from, struct unranked_view *to) {
  const struct view *f = from->view, *t = to->view;
  const int64_t *sizes = f->sizes_then_strides;
  copy_dimension(t->aligned + t->offset * element, t->sizes_then_strides + to->rank,
                 f->aligned + f->offset * element, sizes + from->rank, sizes, from->rank, element);
}

/* LLVM passes half and bfloat16 in vector registers, as _Float16 is passed. */
float half_to_float(_Float16 x) { return (float)x; }
_Float16 float_to_half(float x) { return (_Float16)x; }
_Float16 double_to_half(double x) { return (_Float16)x; }

_Float16 float_to_bfloat(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (x != x)
    bits |= 0x00400000; /* stay a NaN when the low half goes */
  else
    bits += 0x7FFF + (bits >> 16 & 1); /* to nearest, ties to even */
  uint16_t high = bits >> 16;
  _Float16 result;
  memcpy(&result, &high, sizeof result);
  return result;
}
