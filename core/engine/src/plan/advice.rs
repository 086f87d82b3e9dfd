//! What to do when a wish does not fit, in words.

use super::{Bound, DeviceProfile, Plan};
use crate::model::Blueprint;

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Adds the notes. `least` is the smallest budget that this model and context can run in.
pub(super) fn notes(plan: &mut Plan, model: &Blueprint, device: &DeviceProfile, least: u64) {
    let mut notes = Vec::new();
    let experts = model.experts_used() > 0;
    if !plan.fits {
        notes.push(format!(
            "does not fit: {} is the least budget for this model with a context of {} tokens, the budget is {}",
            size(least),
            plan.context,
            size(plan.budget)
        ));
        if plan.max_context >= 512 && plan.max_context < plan.context {
            notes.push(format!("a context of {} tokens fits", plan.max_context));
        }
        if plan.kv_bytes > plan.budget / 4 {
            notes.push(format!(
                "the KV cache takes {} as {}; in half precision, 8 bits (q8) would halve that and 4 bits (q4) quarter it",
                size(plan.kv_bytes),
                plan.kv_types
            ));
        }
        if plan.scratch_bytes > plan.budget / 4 && plan.chunk > 32 {
            notes.push(format!(
                "buffers take {}; a smaller prefill chunk than {} takes less",
                size(plan.scratch_bytes),
                plan.chunk
            ));
        }
        if plan.kv_bytes <= plan.budget / 4 {
            notes.push("a smaller model, or the same one in fewer bits, would fit".to_owned());
        }
    } else if !plan.residency.mapped {
        let streamed = size(plan.streamed_bytes_per_token);
        if plan.residency.streamed_bytes > 0 {
            notes.push(format!(
                "{} of {} weights stay in memory; every token reads {streamed} from flash",
                size(plan.residency.pinned_bytes),
                size(plan.residency.dense_bytes)
            ));
        } else {
            notes.push(format!(
                "all dense weights and {} of {} experts stay in memory; a token reads about {streamed} from flash",
                plan.residency.slots, plan.residency.experts
            ));
        }
        if plan.bound_by == Bound::Flash && plan.decode_tok_s < 2.0 && !experts {
            let dense = plan.residency.dense_bytes as f64;
            // 5 tokens per second by streaming need this share of the weights in memory.
            let rest = plan.budget as f64 + device.flash_bps / 5.0;
            notes.push(format!(
                "no cache helps a dense model that is read whole for each token: fewer bits, a smaller model (up to about {}), or a \
                 mixture of experts is faster here",
                size(rest.min(dense) as u64)
            ));
        }
        let slots = plan.residency.slots as usize;
        let layers = model.spec().layers;
        if experts && slots < model.experts_used() * layers {
            notes.push(format!(
                "the cache has {slots} slots for experts, fewer than the {} that one token uses",
                model.experts_used() * layers
            ));
        }
    }
    let fine = model.layout().fine_bytes();
    if fine > 0 && !(plan.fits && plan.residency.mapped) {
        notes.push(format!("the low view of this file (precision `low`) has {} less of weights", size(fine)));
    }
    if plan.fits && plan.budget > device.free {
        notes.push(format!("the budget is above the {} that an app can count on here", size(device.free)));
    }
    plan.notes = notes;
}
