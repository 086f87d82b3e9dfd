//! Who answers, and why: decisions as values, with their numbers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The app's choice.
#[derive(Debug, Clone, PartialEq)]
pub enum HybridPolicy {
    /// Nothing leaves the device.
    OnDeviceOnly,
    /// The device answers; the cloud is asked where the device is not sure enough.
    EdgeFirst(EdgeFirst),
    /// The cloud answers; the device does when the cloud cannot.
    CloudFirst,
    /// Only the cloud answers.
    CloudOnly,
}

impl Default for HybridPolicy {
    /// Private: the cloud has to be asked for.
    fn default() -> Self {
        Self::OnDeviceOnly
    }
}

/// How [`HybridPolicy::EdgeFirst`] decides.
#[derive(Debug, Clone, PartialEq)]
pub struct EdgeFirst {
    /// Below this probability of being right, the cloud is asked.
    pub min_confidence: f64,
    /// Where the calibration also knows how often the cloud is right ([`Calibration::gain`](crate::confidence::Calibration::gain)): only
    /// what the cloud is likelier to get right by at least this much is handed over. With `min_confidence` 1 the gain decides alone.
    pub min_gain: f64,
    /// The first look at an answer comes after this many tokens.
    pub check_after_tokens: usize,
    /// If the device has shown nothing and passed no check by then, the cloud is asked.
    pub max_edge_latency: Option<Duration>,
    /// Show nothing before the first look, so that nothing has to be taken back.
    pub hold_until_checked: bool,
    /// Look again at every sentence.
    pub check_sentences: bool,
    /// An answer that passed its first look is given up only when its score falls this far below `min_confidence`, twice in a row.
    pub hysteresis: f64,
    /// At the end, also ask the model itself whether it is right: one short prefill.
    pub p_true: bool,
    /// What the cloud does with the draft.
    pub style: HandOffStyle,
}

impl Default for EdgeFirst {
    fn default() -> Self {
        Self {
            min_confidence: 0.7,
            min_gain: 0.0,
            check_after_tokens: 50,
            max_edge_latency: None,
            hold_until_checked: true,
            check_sentences: true,
            hysteresis: 0.1,
            p_true: false,
            style: HandOffStyle::Replace,
        }
    }
}

/// What the cloud does with a draft that is not good enough. Whatever it is: if the cloud fails, the draft stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HandOffStyle {
    /// Answers anew; the draft is taken back.
    #[default]
    Replace,
    /// Goes on behind the sentences that were sure enough.
    Continue,
    /// Judges the finished draft, and corrects it if need be.
    Verify,
}

/// Heat, as phones tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Thermal {
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

/// What the device says about itself. `None`: unknown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DeviceState {
    /// From 0 to 1.
    pub battery: Option<f32>,
    /// Whether it is plugged in.
    pub charging: Option<bool>,
    /// Heat.
    pub thermal: Thermal,
    /// The system asked for memory back.
    pub memory_pressure: bool,
    /// Whether there is a network.
    pub online: Option<bool>,
}

/// Tells the state of the device when a turn begins.
pub trait DeviceProbe: Send + Sync {
    /// Now.
    fn state(&self) -> DeviceState;
}

/// A device that tells nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnknownDevice;

impl DeviceProbe for UnknownDevice {
    fn state(&self) -> DeviceState {
        DeviceState::default()
    }
}

/// What an app's own rule sees.
#[derive(Debug, Clone, Copy)]
pub struct AdmissionFacts<'a> {
    /// Tokens of the prompt on the device, if it can count.
    pub prompt_tokens: Option<usize>,
    /// The app's class of the task.
    pub task: Option<&'a str>,
    /// The device.
    pub device: DeviceState,
}

/// An app's own rule: where to, or `None` for no opinion.
pub type AdmissionRule = Arc<dyn Fn(&AdmissionFacts<'_>) -> Option<Route> + Send + Sync>;

/// What is decided before any work. Rules come before the policy's own preference, but never over privacy.
#[derive(Clone, Default)]
pub struct AdmissionRules {
    /// The app's own, asked first.
    pub rule: Option<AdmissionRule>,
    /// Classes of tasks that go to the cloud.
    pub cloud_tasks: Vec<String>,
    /// Classes of tasks that stay on the device.
    pub edge_tasks: Vec<String>,
    /// Longer prompts go to the cloud; those that do not fit the context always do.
    pub max_edge_prompt: Option<usize>,
    /// Below this charge, unplugged, the cloud is asked.
    pub min_battery: Option<f32>,
    /// From this heat on, the cloud is asked.
    pub max_thermal: Option<Thermal>,
    /// Under memory pressure, the cloud is asked.
    pub spare_memory: bool,
}

impl fmt::Debug for AdmissionRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmissionRules")
            .field("rule", &self.rule.is_some())
            .field("cloud_tasks", &self.cloud_tasks)
            .field("edge_tasks", &self.edge_tasks)
            .field("max_edge_prompt", &self.max_edge_prompt)
            .field("min_battery", &self.min_battery)
            .field("max_thermal", &self.max_thermal)
            .field("spare_memory", &self.spare_memory)
            .finish()
    }
}

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// The device.
    Edge,
    /// The cloud.
    Cloud,
}

/// When a decision fell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionPoint {
    /// Before any work.
    Admission,
    /// Before the first visible token, or where that would have been.
    FirstCheck,
    /// At the border of a sentence.
    Sentence,
    /// The draft is complete.
    End,
    /// When one side failed.
    Failure,
}

/// A decision with its reason and numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// When.
    pub point: DecisionPoint,
    /// Who goes on.
    pub route: Route,
    /// Why.
    pub reason: Reason,
    /// The score it was based on.
    pub confidence: Option<f64>,
    /// What the score was compared with.
    pub threshold: Option<f64>,
    /// Tokens of the draft so far.
    pub tokens: usize,
    /// Since the turn began.
    pub elapsed: Duration,
}

/// Why.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The policy prefers it.
    Policy,
    /// The app's own rule.
    AppRule,
    /// The class of the task.
    Task {
        /// Its name.
        name: String,
    },
    /// The prompt is too long for the device.
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// The most for the device.
        limit: usize,
    },
    /// Little charge left.
    Battery {
        /// How much.
        level: f32,
        /// The least.
        min: f32,
    },
    /// Too hot.
    Heat {
        /// How hot.
        level: Thermal,
    },
    /// The system needs memory.
    MemoryPressure,
    /// The draft is good enough.
    Confident,
    /// The draft is not good enough.
    Unsure,
    /// The draft is not good enough, but the cloud's answer is not expected to be better.
    NoGain {
        /// How much likelier the cloud is to be right.
        gain: f64,
        /// The least that is worth it.
        min: f64,
    },
    /// The device was too slow.
    Slow {
        /// The most it was given.
        limit: Duration,
    },
    /// The device failed.
    EdgeFailed {
        /// Why.
        error: String,
    },
    /// The cloud failed.
    CloudFailed {
        /// Why.
        error: crate::cloud::CloudError,
    },
    /// The cloud may not be asked.
    CloudBlocked(Blocked),
    /// The cloud judged the draft to be right.
    Verified {
        /// With this confidence.
        confidence: f64,
    },
    /// The cloud corrected the draft.
    Corrected {
        /// Its confidence in the draft.
        confidence: f64,
    },
}

/// What keeps a request from the cloud.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Blocked {
    /// None was configured.
    NoCloud,
    /// The policy, the conversation, or this turn stays on the device.
    OnDeviceOnly,
    /// The app, or its user, did not consent.
    NoConsent,
    /// The redaction hook refused.
    Redaction,
    /// No network.
    Offline,
    /// One request would cost too much (in millionths).
    RequestCost {
        /// What it may cost.
        needed: u64,
        /// The cap.
        cap: u64,
    },
    /// The day's budget would be exceeded.
    DayCost {
        /// Spent and reserved.
        spent: u64,
        /// What it may cost.
        needed: u64,
        /// The cap.
        cap: u64,
    },
    /// Too many requests in the last minute.
    Rate {
        /// The limit.
        per_minute: u32,
    },
    /// The cloud failed repeatedly.
    CircuitOpen {
        /// When the next trial is allowed.
        retry_in: Duration,
    },
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCloud => f.write_str("no cloud is configured"),
            Self::OnDeviceOnly => f.write_str("the conversation stays on the device"),
            Self::NoConsent => f.write_str("no consent"),
            Self::Redaction => f.write_str("the redaction hook refused"),
            Self::Offline => f.write_str("no network"),
            Self::RequestCost { needed, cap } => {
                write!(f, "the request may cost {needed} millionths, above the cap of {cap}")
            }
            Self::DayCost { spent, needed, cap } => {
                write!(f, "{spent} millionths are spent today and {needed} more are needed; the cap is {cap}")
            }
            Self::Rate { per_minute } => write!(f, "more than {per_minute} requests in a minute"),
            Self::CircuitOpen { retry_in } => {
                write!(f, "the cloud failed repeatedly; next trial in {:.0} s", retry_in.as_secs_f64())
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy => f.write_str("policy"),
            Self::AppRule => f.write_str("the app's rule"),
            Self::Task { name } => write!(f, "the task is {name:?}"),
            Self::PromptTooLong { tokens, limit } => {
                write!(f, "the prompt has {tokens} tokens, the device takes {limit}")
            }
            Self::Battery { level, min } => {
                write!(f, "battery at {:.0}%, below {:.0}%", level * 100.0, min * 100.0)
            }
            Self::Heat { level } => write!(f, "heat: {level:?}"),
            Self::MemoryPressure => f.write_str("memory pressure"),
            Self::Confident => f.write_str("sure enough"),
            Self::Unsure => f.write_str("not sure enough"),
            Self::NoGain { gain, min } => {
                write!(f, "not sure enough, but the cloud gains {gain:.2}, not {min:.2}")
            }
            Self::Slow { limit } => write!(f, "nothing to show after {:.1} s", limit.as_secs_f64()),
            Self::EdgeFailed { error } => write!(f, "the device failed: {error}"),
            Self::CloudFailed { error } => write!(f, "{error}"),
            Self::CloudBlocked(blocked) => write!(f, "the cloud may not be asked: {blocked}"),
            Self::Verified { confidence } => write!(f, "verified with {confidence:.2}"),
            Self::Corrected { confidence } => write!(f, "corrected; the draft got {confidence:.2}"),
        }
    }
}

/// The first decision of a turn, privacy aside.
#[must_use]
pub fn admit(
    policy: &HybridPolicy,
    rules: &AdmissionRules,
    facts: &AdmissionFacts<'_>,
    context: usize,
) -> (Route, Reason) {
    if *policy == HybridPolicy::OnDeviceOnly {
        return (Route::Edge, Reason::Policy);
    }
    if *policy == HybridPolicy::CloudOnly {
        return (Route::Cloud, Reason::Policy);
    }
    let limit = rules.max_edge_prompt.unwrap_or(usize::MAX).min(context);
    if let Some(tokens) = facts.prompt_tokens.filter(|t| *t >= limit) {
        return (Route::Cloud, Reason::PromptTooLong { tokens, limit });
    }
    if let Some(route) = rules.rule.as_ref().and_then(|rule| rule(facts)) {
        return (route, Reason::AppRule);
    }
    if let Some(task) = facts.task {
        let reason = || Reason::Task { name: task.to_owned() };
        if rules.edge_tasks.iter().any(|t| t == task) {
            return (Route::Edge, reason());
        }
        if rules.cloud_tasks.iter().any(|t| t == task) {
            return (Route::Cloud, reason());
        }
    }
    if *policy == HybridPolicy::CloudFirst {
        return (Route::Cloud, Reason::Policy);
    }
    let device = facts.device;
    if let (Some(level), Some(min)) = (device.battery, rules.min_battery)
        && level < min
        && device.charging != Some(true)
    {
        return (Route::Cloud, Reason::Battery { level, min });
    }
    if rules.max_thermal.is_some_and(|max| device.thermal >= max) {
        return (Route::Cloud, Reason::Heat { level: device.thermal });
    }
    if rules.spare_memory && device.memory_pressure {
        return (Route::Cloud, Reason::MemoryPressure);
    }
    (Route::Edge, Reason::Policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(tokens: usize, task: Option<&str>, device: DeviceState) -> AdmissionFacts<'_> {
        AdmissionFacts { prompt_tokens: Some(tokens), task, device }
    }

    #[test]
    fn admission_follows_the_rules_in_their_order() {
        let edge_first = HybridPolicy::EdgeFirst(EdgeFirst::default());
        let rules = AdmissionRules {
            rule: Some(Arc::new(|f| (f.task == Some("mine")).then_some(Route::Cloud))),
            cloud_tasks: vec!["legal".into()],
            edge_tasks: vec!["health".into()],
            max_edge_prompt: Some(100),
            min_battery: Some(0.2),
            max_thermal: Some(Thermal::Serious),
            spare_memory: true,
        };
        let calm = DeviceState::default();
        let low = DeviceState { battery: Some(0.1), ..calm };
        let plugged = DeviceState { charging: Some(true), ..low };
        let hot = DeviceState { thermal: Thermal::Critical, ..calm };
        let tight = DeviceState { memory_pressure: true, ..calm };
        let ask = |policy: &HybridPolicy, f: AdmissionFacts<'_>| admit(policy, &rules, &f, 4096);
        for (f, route) in [
            (facts(10, None, calm), Route::Edge),
            (facts(100, None, calm), Route::Cloud),
            (facts(10, Some("mine"), calm), Route::Cloud),
            (facts(10, Some("legal"), calm), Route::Cloud),
            (facts(10, Some("health"), low), Route::Edge),
            (facts(10, None, low), Route::Cloud),
            (facts(10, None, plugged), Route::Edge),
            (facts(10, None, hot), Route::Cloud),
            (facts(10, None, tight), Route::Cloud),
        ] {
            let (got, reason) = ask(&edge_first, f);
            assert_eq!(got, route, "{f:?}: {reason}");
            assert_eq!(ask(&HybridPolicy::OnDeviceOnly, f).0, Route::Edge);
            assert_eq!(ask(&HybridPolicy::CloudOnly, f).0, Route::Cloud);
        }
        assert_eq!(ask(&HybridPolicy::CloudFirst, facts(10, None, calm)), (Route::Cloud, Reason::Policy));
        assert_eq!(ask(&HybridPolicy::CloudFirst, facts(10, Some("health"), calm)).0, Route::Edge);
    }

    #[test]
    fn the_default_is_private() {
        assert_eq!(HybridPolicy::default(), HybridPolicy::OnDeviceOnly);
    }
}
