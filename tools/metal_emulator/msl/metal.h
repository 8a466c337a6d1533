// The Metal Shading Language as a C++ library. Included before the rewritten kernel:
// see ../README.md.
#pragma once
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "../runtime/interface.h"

#pragma clang diagnostic ignored "-Wuser-defined-literals"
#pragma clang diagnostic ignored "-Wreserved-user-defined-literal"

// In dependency order.
// clang-format off
#include "address_spaces.h"
#include "types.h"
#include "traits.h"
#include "mathematics.h"
#include "integers.h"
#include "vectors.h"
#include "simd.h"
#include "simdgroup_matrix.h"
#include "atomics.h"
#include "structs.h"
#include "mlx_names.h"
#include "kernel_table.h"
// clang-format on
