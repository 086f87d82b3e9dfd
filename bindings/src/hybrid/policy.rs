//! Who answers, and when that is decided.

use std::sync::Arc;
use std::time::Duration;

use pannier::memory;
use pannier_hybrid::policy as inner;

/// Who answers.
#[derive(Debug, Clone, Default, PartialEq, uniffi::Enum)]
pub enum HandOffPolicy {
    /// Nothing leaves the device.
    #[default]
    OnDeviceOnly,
    /// The device answers; the cloud is asked where the device is not sure enough.
    EdgeFirst {
        /// When that is.
        settings: EdgeFirstSettings,
    },
    /// The cloud answers; the device does when the cloud cannot.
    CloudFirst,
    /// Only the cloud answers.
    CloudOnly,
}

/// How `EdgeFirst` decides.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct EdgeFirstSettings {
    /// Below this probability of being right, the cloud is asked.
    #[uniffi(default = 0.7)]
    pub min_confidence: f64,
    /// Where the calibration also knows the cloud: only what that is likelier to get right by this much is handed over.
    #[uniffi(default = 0.0)]
    pub min_gain: f64,
    /// The first look at an answer comes after this many tokens.
    #[uniffi(default = 50)]
    pub check_after_tokens: u32,
    /// If the device has shown nothing by then, the cloud is asked; absent: the device may take its time.
    #[uniffi(default = None)]
    pub max_edge_latency_ms: Option<u64>,
    /// Show nothing before the first look, so that nothing has to be taken back.
    #[uniffi(default = true)]
    pub hold_until_checked: bool,
    /// Look again at every sentence.
    #[uniffi(default = true)]
    pub check_sentences: bool,
    /// An answer that passed is given up only when its score falls this far below `min_confidence`, twice in a row.
    #[uniffi(default = 0.1)]
    pub hysteresis: f64,
    /// At the end, also ask the model itself whether it is right: one short prefill.
    #[uniffi(default = false)]
    pub p_true: bool,
    /// What the cloud does with the draft.
    pub style: HandOffStyle,
}

/// What the cloud does with a draft that is not good enough. If the cloud fails, the draft stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum HandOffStyle {
    /// Answers anew; the draft is taken back.
    Replace,
    /// Goes on behind the sentences that were sure enough.
    Continue,
    /// Judges the finished draft, and corrects it if need be.
    Verify,
}

impl From<HandOffPolicy> for inner::HybridPolicy {
    fn from(policy: HandOffPolicy) -> Self {
        match policy {
            HandOffPolicy::OnDeviceOnly => Self::OnDeviceOnly,
            HandOffPolicy::EdgeFirst { settings: s } => Self::EdgeFirst(inner::EdgeFirst {
                min_confidence: s.min_confidence,
                check_after_tokens: s.check_after_tokens as usize,
                max_edge_latency: s.max_edge_latency_ms.map(Duration::from_millis),
                hold_until_checked: s.hold_until_checked,
                check_sentences: s.check_sentences,
                hysteresis: s.hysteresis,
                p_true: s.p_true,
                min_gain: s.min_gain,
                style: match s.style {
                    HandOffStyle::Replace => inner::HandOffStyle::Replace,
                    HandOffStyle::Continue => inner::HandOffStyle::Continue,
                    HandOffStyle::Verify => inner::HandOffStyle::Verify,
                },
            }),
            HandOffPolicy::CloudFirst => Self::CloudFirst,
            HandOffPolicy::CloudOnly => Self::CloudOnly,
        }
    }
}

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum AnswerRoute {
    /// The device.
    Edge,
    /// The cloud.
    Cloud,
}

impl From<inner::Route> for AnswerRoute {
    fn from(route: inner::Route) -> Self {
        match route {
            inner::Route::Edge => Self::Edge,
            inner::Route::Cloud => Self::Cloud,
        }
    }
}

/// Heat, as phones tell it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, uniffi::Enum)]
pub enum ThermalLevel {
    /// Cool.
    #[default]
    Nominal,
    /// Warm.
    Fair,
    /// The system slows down.
    Serious,
    /// The system is about to shut things down.
    Critical,
}

impl From<ThermalLevel> for inner::Thermal {
    fn from(level: ThermalLevel) -> Self {
        match level {
            ThermalLevel::Nominal => Self::Nominal,
            ThermalLevel::Fair => Self::Fair,
            ThermalLevel::Serious => Self::Serious,
            ThermalLevel::Critical => Self::Critical,
        }
    }
}

impl From<inner::Thermal> for ThermalLevel {
    fn from(level: inner::Thermal) -> Self {
        match level {
            inner::Thermal::Nominal => Self::Nominal,
            inner::Thermal::Fair => Self::Fair,
            inner::Thermal::Serious => Self::Serious,
            inner::Thermal::Critical => Self::Critical,
        }
    }
}

impl From<ThermalLevel> for memory::ThermalLevel {
    fn from(level: ThermalLevel) -> Self {
        match level {
            ThermalLevel::Nominal => Self::Nominal,
            ThermalLevel::Fair => Self::Fair,
            ThermalLevel::Serious => Self::Serious,
            ThermalLevel::Critical => Self::Critical,
        }
    }
}

impl From<memory::ThermalLevel> for ThermalLevel {
    fn from(level: memory::ThermalLevel) -> Self {
        match level {
            memory::ThermalLevel::Nominal => Self::Nominal,
            memory::ThermalLevel::Fair => Self::Fair,
            memory::ThermalLevel::Serious => Self::Serious,
            memory::ThermalLevel::Critical => Self::Critical,
        }
    }
}

/// What the device says about itself. Absent: unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, uniffi::Record)]
pub struct DeviceCondition {
    /// Charge from 0 to 1.
    #[uniffi(default = None)]
    pub battery: Option<f32>,
    /// Whether it is plugged in.
    #[uniffi(default = None)]
    pub charging: Option<bool>,
    /// Heat.
    pub thermal: ThermalLevel,
    /// The system asked for memory back.
    #[uniffi(default = false)]
    pub memory_pressure: bool,
    /// Whether there is a network.
    #[uniffi(default = None)]
    pub online: Option<bool>,
}

impl From<DeviceCondition> for inner::DeviceState {
    fn from(d: DeviceCondition) -> Self {
        Self {
            battery: d.battery,
            charging: d.charging,
            thermal: d.thermal.into(),
            memory_pressure: d.memory_pressure,
            online: d.online,
        }
    }
}

impl From<inner::DeviceState> for DeviceCondition {
    fn from(d: inner::DeviceState) -> Self {
        Self {
            battery: d.battery,
            charging: d.charging,
            thermal: d.thermal.into(),
            memory_pressure: d.memory_pressure,
            online: d.online,
        }
    }
}

/// Tells the state of the device when a turn begins, on its thread.
#[uniffi::export(callback_interface)]
pub trait DeviceProbe: Send + Sync {
    /// Now.
    fn condition(&self) -> DeviceCondition;
}

pub(super) struct ForeignDevice(pub Box<dyn DeviceProbe>);

impl inner::DeviceProbe for ForeignDevice {
    fn state(&self) -> inner::DeviceState {
        self.0.condition().into()
    }
}

/// What an app's own rule sees.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct AdmissionFacts {
    /// Tokens of the prompt on the device, if it was counted.
    pub prompt_tokens: Option<u64>,
    /// The app's class of the task.
    pub task: Option<String>,
    /// The device.
    pub device: DeviceCondition,
}

/// An app's own rule, asked before any work, on the turn's thread.
#[uniffi::export(callback_interface)]
pub trait AdmissionRule: Send + Sync {
    /// Where to; absent: no opinion. Never overrides privacy.
    fn route(&self, facts: AdmissionFacts) -> Option<AnswerRoute>;
}

/// What is decided before any work. What is absent is off.
#[derive(Debug, Clone, Default, PartialEq, uniffi::Record)]
pub struct HandOffRules {
    /// Classes of tasks that go to the cloud.
    #[uniffi(default = [])]
    pub cloud_tasks: Vec<String>,
    /// Classes of tasks that stay on the device.
    #[uniffi(default = [])]
    pub edge_tasks: Vec<String>,
    /// Longer prompts go to the cloud; those that do not fit the context always do.
    #[uniffi(default = None)]
    pub max_edge_prompt: Option<u64>,
    /// Below this charge (0 to 1), unplugged, the cloud is asked.
    #[uniffi(default = None)]
    pub min_battery: Option<f32>,
    /// From this heat on, the cloud is asked.
    #[uniffi(default = None)]
    pub max_thermal: Option<ThermalLevel>,
    /// Under memory pressure, the cloud is asked.
    #[uniffi(default = false)]
    pub spare_memory: bool,
}

impl HandOffRules {
    pub(super) fn with(self, rule: Option<Box<dyn AdmissionRule>>) -> inner::AdmissionRules {
        inner::AdmissionRules {
            rule: rule.map(|rule| {
                let ask = move |facts: &inner::AdmissionFacts<'_>| {
                    let route = rule.route(AdmissionFacts {
                        prompt_tokens: facts.prompt_tokens.map(|n| n as u64),
                        task: facts.task.map(str::to_owned),
                        device: facts.device.into(),
                    })?;
                    Some(match route {
                        AnswerRoute::Edge => inner::Route::Edge,
                        AnswerRoute::Cloud => inner::Route::Cloud,
                    })
                };
                Arc::new(ask) as inner::AdmissionRule
            }),
            cloud_tasks: self.cloud_tasks,
            edge_tasks: self.edge_tasks,
            max_edge_prompt: self.max_edge_prompt.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
            min_battery: self.min_battery,
            max_thermal: self.max_thermal.map(Into::into),
            spare_memory: self.spare_memory,
        }
    }
}
