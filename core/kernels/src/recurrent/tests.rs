//! Every ISA against plain loops, bit for bit, and the same bits however a text is cut.

use super::{ConvJob, DeltaJob, DeltaShape, KeyHeads};
use crate::isa::Kernels;
use crate::parallel::Serial;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn convolutions_do_not_depend_on_the_isa_or_on_cuts() {
    for (channels, taps) in [(1, 1), (5, 2), (40, 3), (64, 4), (7, 5), (20_000, 4)] {
        let n = 6;
        let (before, x) = (noise((taps - 1) * channels, 1), noise(n * channels, 2));
        let weight = noise(channels * taps, 3);
        let all = [before.as_slice(), &x].concat();
        let mut plain = vec![0.0; n * channels];
        for t in 0..n {
            for c in 0..channels {
                let mut sum = 0.0f32;
                for j in 0..taps {
                    sum = weight[c * taps + j].mul_add(all[(t + j) * channels + c], sum);
                }
                plain[t * channels + c] = sum;
            }
        }
        for k in Kernels::available() {
            for cut in 0..n {
                let mut out = vec![f32::NAN; n * channels];
                let (first, second) = out.split_at_mut(cut * channels);
                let (x1, x2) = x.split_at(cut * channels);
                let weight = &weight;
                k.causal_conv(&Serial, ConvJob { before: &before, x: x1, weight, channels, out: first });
                let before = &all[cut * channels..(cut + taps - 1) * channels];
                k.causal_conv(&Serial, ConvJob { before, x: x2, weight, channels, out: second });
                assert_eq!(bits(&out), bits(&plain), "{:?} {channels} x {taps}, cut at {cut}", k.isa());
            }
        }
    }
}

#[test]
fn the_delta_rule_does_not_depend_on_the_isa_or_on_cuts() {
    for (k_heads, v_heads, k_dim, v_dim, heads) in [
        (1, 1, 1, 1, KeyHeads::Grouped),
        (2, 4, 16, 16, KeyHeads::Grouped),
        (2, 4, 16, 16, KeyHeads::Tiled),
        (1, 3, 20, 150, KeyHeads::Tiled),
        (2, 2, 128, 128, KeyHeads::Grouped),
    ] {
        let shape = DeltaShape { k_heads, v_heads, k_dim, v_dim, heads };
        let (n, width) = (5, shape.qkv_width());
        let (qkv, start) = (noise(n * width, 1), noise(shape.state_len(), 2));
        let (decay, beta) = (noise(n * v_heads, 3), noise(n * v_heads, 4));
        let (mut plain, mut wanted) = (start.clone(), vec![0.0f32; n * v_heads * v_dim]);
        for t in 0..n {
            for h in 0..v_heads {
                let key = match heads {
                    KeyHeads::Grouped => h / (v_heads / k_heads),
                    KeyHeads::Tiled => h % k_heads,
                };
                let row = &qkv[t * width..];
                let (q, k) = (&row[key * k_dim..], &row[(k_heads + key) * k_dim..]);
                let v = &row[2 * k_heads * k_dim + h * v_dim..];
                let (g, b) = (decay[t * v_heads + h], beta[t * v_heads + h]);
                let state = &mut plain[h * k_dim * v_dim..];
                for j in 0..v_dim {
                    let mut found = 0.0f32;
                    for i in 0..k_dim {
                        found = k[i].mul_add(state[i * v_dim + j], found);
                    }
                    let change = b * (-g).mul_add(found, v[j]);
                    let mut sum = 0.0f32;
                    for i in 0..k_dim {
                        let value = k[i].mul_add(change, g * state[i * v_dim + j]);
                        state[i * v_dim + j] = value;
                        sum = q[i].mul_add(value, sum);
                    }
                    wanted[(t * v_heads + h) * v_dim + j] = sum;
                }
            }
        }
        for kernels in Kernels::available() {
            for cut in 0..n {
                let (mut state, mut out) = (start.clone(), vec![f32::NAN; wanted.len()]);
                let (first, second) = out.split_at_mut(cut * v_heads * v_dim);
                for (part, out) in [(0..cut, first), (cut..n, second)] {
                    let gates = part.start * v_heads..part.end * v_heads;
                    let (decay, beta) = (&decay[gates.clone()], &beta[gates]);
                    let qkv = &qkv[part.start * width..part.end * width];
                    let job = DeltaJob { shape, qkv, decay, beta, state: &mut state, out };
                    kernels.delta_rule(&Serial, job);
                }
                assert_eq!(bits(&out), bits(&wanted), "{:?} {shape:?}, cut at {cut}", kernels.isa());
                assert_eq!(bits(&state), bits(&plain), "{:?} {shape:?}, cut at {cut}", kernels.isa());
                // Only the state.
                let mut state = start.clone();
                let job = DeltaJob {
                    shape,
                    qkv: &qkv,
                    decay: &decay,
                    beta: &beta,
                    state: &mut state,
                    out: &mut [],
                };
                kernels.delta_rule(&Serial, job);
                assert_eq!(bits(&state), bits(&plain));
            }
        }
    }
}
