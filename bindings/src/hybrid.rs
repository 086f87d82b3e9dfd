//! Conversations that the device and a cloud answer together.
//!
//! A [`HybridChat`] stands on a [`Chat`], whose history it shares: an app uses one of both at a time. Without a [`HybridCloud`] it is an
//! ordinary conversation with confidences; nothing can leave the device.

mod cloud;
mod event;
mod policy;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use pannier::session::MonotonicClock;
use pannier_hybrid::confidence::{Calibration, CalibrationOrigin};
use pannier_hybrid::policy::UnknownDevice;
use pannier_hybrid::{EdgeModel, HybridParts, HybridSession, TurnOptions};

use crate::border::{CancelOnDrop, guarded, on_thread};
use crate::chat::to_engine;
use crate::{CancelHandle, Chat, GenerationSettings, Message, PannierError};

pub use cloud::{
    CloudBounds, CloudBudget, CloudConsent, CloudContinuation, CloudEndpoint, CloudFault, CloudFinish,
    CloudHeader, CloudLedger, CloudPayload, CloudPrompt, CloudRedactor, CloudReply, CloudTransport,
    CloudUsage, CloudWaits, HybridCloud,
};
pub use event::{
    ConfidenceScore, DecisionMoment, DecisionReason, HandOffDecision, HybridAnswer, HybridFinish, HybridSink,
    HybridSource, HybridUpdate, HybridUsage,
};
pub use policy::{
    AdmissionFacts, AdmissionRule, AnswerRoute, DeviceCondition, DeviceProbe, EdgeFirstSettings,
    HandOffPolicy, HandOffRules, HandOffStyle, ThermalLevel,
};

/// What a hybrid conversation is made of. The defaults stay on the device.
#[derive(uniffi::Record)]
pub struct HybridConfig {
    /// Who answers.
    pub policy: HandOffPolicy,
    /// What comes before the policy.
    pub rules: HandOffRules,
    /// The cloud; absent: none, and no socket is ever opened.
    #[uniffi(default = None)]
    pub cloud: Option<Arc<HybridCloud>>,
    /// Path of the model's file. Beside it lies its fitted calibration, if it has one (`pannier fit-confidence`).
    #[uniffi(default = None)]
    pub model_path: Option<String>,
}

/// What one turn is asked with, besides how it is generated.
#[derive(Debug, Clone, Default, uniffi::Record)]
pub struct TurnSettings {
    /// The app's class of the task, for its rules.
    #[uniffi(default = None)]
    pub task: Option<String>,
    /// This turn stays on the device.
    #[uniffi(default = false)]
    pub on_device_only: bool,
}

/// What confidences of a conversation are worth.
#[derive(Debug, Clone, PartialEq, uniffi::Record)]
pub struct CalibrationReport {
    /// Fitted on answers of this very model file. If not, scores order answers, and their size is a guess.
    pub fitted: bool,
    /// Area under the receiver operating characteristic on answers that were not fitted on.
    pub auroc: Option<f64>,
    /// Expected calibration error on these.
    pub calibration_error: Option<f64>,
    /// Why a calibration that is there was not used.
    pub problem: Option<String>,
}

/// A conversation with a hand-off policy.
#[derive(uniffi::Object)]
pub struct HybridChat {
    inner: Arc<HybridSession>,
    calibration: CalibrationReport,
}

#[uniffi::export]
impl HybridChat {
    /// Stands on this conversation. `device` tells the state of the device; `rule` is the app's own say in who answers.
    #[uniffi::constructor]
    pub fn new(
        chat: Arc<Chat>,
        config: HybridConfig,
        device: Option<Box<dyn DeviceProbe>>,
        rule: Option<Box<dyn AdmissionRule>>,
    ) -> Arc<Self> {
        let (calibration, problem) =
            match config.model_path.as_deref().map(Path::new).map(Calibration::beside) {
                None => (Calibration::default(), None),
                Some(Ok(calibration)) => (calibration, None),
                // The error names paths, which do not cross the border.
                Some(Err(_)) => {
                    let problem = "the file beside the model is no calibration of this model and version";
                    (Calibration::default(), Some(problem.to_owned()))
                }
            };
        let report = calibration.report;
        let calibration_report = CalibrationReport {
            fitted: calibration.origin() == CalibrationOrigin::Fitted,
            auroc: report.map(|r| r.auroc),
            calibration_error: report.map(|r| r.ece),
            problem,
        };
        let parts = HybridParts {
            policy: config.policy.into(),
            rules: config.rules.with(rule),
            cloud: config.cloud.as_ref().map(|cloud| cloud.setup()),
            calibration,
            device: match device {
                Some(device) => Arc::new(policy::ForeignDevice(device)),
                None => Arc::new(UnknownDevice),
            },
            clock: Arc::new(MonotonicClock::default()),
        };
        let edge: Arc<dyn EdgeModel> = Arc::clone(&chat.inner) as Arc<dyn EdgeModel>;
        Arc::new(Self { inner: Arc::new(HybridSession::new(edge, parts)), calibration: calibration_report })
    }

    /// Adds messages and answers. Loads the model when the device has to answer. Returns after the terminal event.
    ///
    /// A call that is refused (`Busy`, `InvalidArgument` of a message) gives no event. Any other gives exactly one terminal event.
    /// Dropping the future cancels.
    pub async fn send(
        &self,
        messages: Vec<Message>,
        settings: GenerationSettings,
        turn: TurnSettings,
        sink: Box<dyn HybridSink>,
        cancel: Arc<CancelHandle>,
    ) -> Result<HybridAnswer, PannierError> {
        let messages = to_engine(messages)?;
        let options = TurnOptions {
            generation: settings.into_options(&cancel),
            task: turn.task,
            on_device_only: turn.on_device_only,
        };
        let session = Arc::clone(&self.inner);
        let armed = CancelOnDrop(Some(cancel));
        let result = on_thread(move || {
            let mut shown = String::new();
            let completion = session.send_messages(messages, options, &mut |event| {
                if let Some(update) = HybridUpdate::convert(&event, &mut shown) {
                    sink.on_update(update);
                }
                ControlFlow::Continue(())
            })?;
            Ok((&completion).into())
        })
        .await;
        armed.disarm();
        result
    }

    /// From now on, this conversation stays on the device. There is no way back.
    pub fn lock_to_device(&self) {
        self.inner.lock_to_device();
    }

    /// Whether it stays on the device.
    pub fn is_locked_to_device(&self) -> bool {
        self.inner.is_locked_to_device()
    }

    /// The conversation so far, the system message first.
    pub fn history(&self) -> Vec<Message> {
        self.inner.history().into_iter().map(Into::into).collect()
    }

    /// Replaces the conversation.
    pub fn set_history(&self, messages: Vec<Message>) -> Result<(), PannierError> {
        let messages = to_engine(messages)?;
        guarded(|| self.inner.edge().set_history(messages))
    }

    /// What its confidences are worth.
    pub fn calibration(&self) -> CalibrationReport {
        self.calibration.clone()
    }
}
