//! What a model will take, told before it is loaded.

use std::path::Path;
use std::sync::Arc;

use pannier_gguf::Gguf;

use crate::Result;
use crate::memory::{MemoryProbe, SystemMemory};
use crate::model::{Blueprint, ModelOptions};
use crate::plan::{DeviceProfile, Plan, PlanWish};
use crate::pool::{SystemCpus, default_threads};
use crate::session::LoadOptions;

/// What stands for "no budget": more than any machine has, and far from overflowing.
const NO_BUDGET: u64 = 1 << 50;

/// Plans loading this file with these options, under `options.budget_bytes`. Reads the directory of the file, no weights.
///
/// The speeds of the plan are those of a middling phone: measuring this device takes seconds, and a plan must not.
/// [`DeviceProfile::measured`] is for those who want them.
///
/// # Errors
/// The file is absent, broken or not supported. A budget that is too small is no error: [`Plan::fits`] is false then.
pub fn plan_file(path: &Path, options: &LoadOptions) -> Result<Plan> {
    let gguf = Arc::new(Gguf::open(path)?);
    let model = Blueprint::read(gguf, &ModelOptions { context: options.context })?;
    let threads = options.threads.unwrap_or_else(|| default_threads(&SystemCpus)).max(1);
    let wish = PlanWish {
        budget: Some(options.budget_bytes.unwrap_or(NO_BUDGET)),
        chunk: Some(options.prefill_chunk),
        threads,
        kv: options.kv,
    };
    Plan::new(&model, &unmeasured(), &wish)
}

fn unmeasured() -> DeviceProfile {
    let memory = SystemMemory.read().unwrap_or_default();
    DeviceProfile {
        name: "unmeasured".into(),
        free: memory.available,
        page: 16384,
        ..DeviceProfile::custom(memory.total, 1e9, 30e9, 100.0)
    }
}
