//! What a model will take, told before it is loaded.

use std::path::Path;
use std::sync::Arc;

use pannier_gguf::Gguf;

use crate::memory::{MemoryProbe, SystemMemory};
use crate::plan::{DeviceProfile, Plan};
use crate::session::LoadOptions;
use crate::{Error, Result};

/// Plans loading this file with these options, under `options.budget_bytes`: the same plan that loading makes. Reads the directory of
/// the file and that of its draft model, no weights; that the two have one vocabulary is seen when they are loaded.
///
/// The speeds of the plan are those of a middling phone: measuring this device takes seconds, and a plan must not.
/// [`DeviceProfile::measured`] is for those who want them.
///
/// # Errors
/// The file is absent, broken or not supported. A budget that is too small is no error: [`Plan::fits`] is false then.
pub fn plan_file(path: &Path, options: &LoadOptions) -> Result<Plan> {
    let gguf = Arc::new(Gguf::open(path)?);
    let draft = options.open_draft()?.map(|draft| draft.share()).unwrap_or_default();
    match options.prepare(&gguf, options.budget_bytes, draft, &middling_phone()) {
        Ok((_, plan)) => Ok(plan),
        Err(Error::DoesNotFit { plan }) => Ok(*plan),
        Err(error) => Err(error),
    }
}

fn middling_phone() -> DeviceProfile {
    let memory = SystemMemory.read().unwrap_or_default();
    DeviceProfile {
        name: "a middling phone".into(),
        free: memory.available,
        page: 16384,
        ..DeviceProfile::custom(memory.total, 1e9, 30e9, 100.0)
    }
}
