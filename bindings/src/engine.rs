//! All models of an app, under one budget.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pannier::lifecycle::{self, HostOptions, ModelHost};
use pannier::memory::MemoryPressure;
use pannier::session::LoadOptions;

use crate::border::on_thread;
use crate::{Model, ModelConfig, PannierError, PlanReport, ThermalLevel};

/// What holds for all models. What is absent is off.
#[derive(Debug, Clone, Default, uniffi::Record)]
pub struct EngineConfig {
    /// The most anonymous memory of all models together.
    #[uniffi(default = None)]
    pub budget_bytes: Option<u64>,
    /// Models that were not used for so long are unloaded.
    #[uniffi(default = None)]
    pub idle_unload_ms: Option<u64>,
    /// A private folder of the app, where it is noted which model was being loaded when the app died.
    #[uniffi(default = None)]
    pub guard_dir: Option<String>,
}

/// How much the system wants memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum PressureLevel {
    /// Not at all.
    Normal,
    /// It gets tight.
    Moderate,
    /// The app is about to be killed.
    Critical,
}

impl From<PressureLevel> for MemoryPressure {
    fn from(level: PressureLevel) -> Self {
        match level {
            PressureLevel::Normal => Self::Normal,
            PressureLevel::Moderate => Self::Moderate,
            PressureLevel::Critical => Self::Critical,
        }
    }
}

impl From<MemoryPressure> for PressureLevel {
    fn from(level: MemoryPressure) -> Self {
        match level {
            MemoryPressure::Normal => Self::Normal,
            MemoryPressure::Moderate => Self::Moderate,
            MemoryPressure::Critical => Self::Critical,
        }
    }
}

/// Memory, as the budget and as the system see it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct MemoryReport {
    /// The budget; absent: none.
    pub budget: Option<u64>,
    /// Taken from it now.
    pub used: u64,
    /// The most that was taken.
    pub peak: u64,
    /// Anonymous memory of the process; absent where the system does not tell.
    pub process_anonymous: Option<u64>,
    /// Resident memory of the process, pages of files included.
    pub process_resident: Option<u64>,
    /// Memory that can still be had in the system.
    pub system_available: Option<u64>,
    /// All memory of the system.
    pub system_total: Option<u64>,
}

/// All models of an app, under one budget.
#[derive(Debug, uniffi::Object)]
pub struct Engine {
    inner: ModelHost,
}

#[uniffi::export]
impl Engine {
    /// An engine without models.
    #[uniffi::constructor]
    pub fn new(config: EngineConfig) -> Arc<Self> {
        let options = HostOptions {
            budget_bytes: config.budget_bytes,
            idle_unload: config.idle_unload_ms.map(Duration::from_millis),
            guard_dir: config.guard_dir.map(PathBuf::from),
            ..HostOptions::default()
        };
        Arc::new(Self { inner: ModelHost::new(options) })
    }

    /// What loading this model would take under a budget, or under that of the engine. Reads the directory of the file only.
    pub async fn plan(
        &self,
        config: ModelConfig,
        budget_bytes: Option<u64>,
    ) -> Result<PlanReport, PannierError> {
        let budget_bytes = budget_bytes.or(self.inner.memory().budget);
        on_thread(move || {
            let options = LoadOptions { budget_bytes, ..config.options() };
            Ok(lifecycle::plan_file(config.path.as_ref(), &options)?.into())
        })
        .await
    }

    /// A model of this engine. Nothing is read; it is loaded when first used.
    pub fn open(&self, config: ModelConfig) -> Arc<Model> {
        Arc::new(Model { inner: self.inner.open(config.into_source()) })
    }

    /// Changes the budget, and unloads idle models until what is used fits.
    pub fn set_budget(&self, bytes: Option<u64>) {
        self.inner.set_budget(bytes);
    }

    /// Memory now.
    pub fn memory(&self) -> MemoryReport {
        let m = self.inner.memory();
        MemoryReport {
            budget: m.budget,
            used: m.used,
            peak: m.peak,
            process_anonymous: m.process.map(|p| p.anonymous),
            process_resident: m.process.map(|p| p.rss),
            system_available: m.process.map(|p| p.available),
            system_total: m.process.map(|p| p.total),
        }
    }

    /// Gives memory back to the system. Running generations go on.
    pub fn on_pressure(&self, level: PressureLevel) {
        self.inner.on_pressure(level.into());
    }

    /// The system says how hot the device is. It holds until it says otherwise. Running generations go on.
    pub fn on_thermal(&self, level: ThermalLevel) {
        self.inner.on_thermal(level.into());
    }

    /// For the way to the background: writes checkpoints, then unloads models until at most `keep_bytes` are used.
    pub async fn suspend(&self, keep_bytes: u64) -> Result<(), PannierError> {
        let host = self.inner.clone();
        on_thread(move || Ok(host.suspend(keep_bytes)?)).await
    }

    /// For the way back: loads what `suspend` unloaded.
    pub async fn resume(&self) -> Result<(), PannierError> {
        let host = self.inner.clone();
        on_thread(move || Ok(host.resume()?)).await
    }

    /// Closes all models. Idempotent, never blocks on a generation.
    pub fn shutdown(&self) {
        self.inner.close();
    }
}
