//! Block formats and SIMD kernels, chosen once at run time, all with one reduction order.
