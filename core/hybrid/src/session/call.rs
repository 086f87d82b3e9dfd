//! One request to the cloud, from the first check to the last byte.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::out::{Out, panic_message};
use super::turn::Turn;
use super::{CloudPatience, CloudSetup};
use crate::cloud::{
    CloudCall, CloudError, CloudEvent, CloudFinish, CloudInbox, CloudRequest, CloudSink, CloudUsage,
};
use crate::event::HybridEvent;
use crate::gate::Permit;
use crate::policy::{Blocked, HybridPolicy};

/// A cancel is seen after at most this long.
const LOOK: Duration = Duration::from_millis(20);

/// What came of asking.
pub(super) enum Asked {
    /// The answer is complete.
    Answered(CloudFinish),
    /// The cloud failed.
    Failed(CloudError),
    /// The cloud may not be asked.
    Blocked(Blocked),
    /// The app wants no more.
    Stopped,
}

/// Cancels when dropped, also when a panic passes.
struct Guard(Box<dyn CloudCall>);

impl Drop for Guard {
    fn drop(&mut self) {
        // A foreign cancel that panics must not end the process.
        let _ = catch_unwind(AssertUnwindSafe(|| self.0.cancel()));
    }
}

impl Turn<'_> {
    /// The cloud, if it may be asked at all.
    pub fn cloud(&self) -> Result<&CloudSetup, Blocked> {
        let private = self.parts.policy == HybridPolicy::OnDeviceOnly
            || self.options.on_device_only
            || self.session.is_locked_to_device();
        if private {
            return Err(Blocked::OnDeviceOnly);
        }
        let cloud = self.parts.cloud.as_ref().ok_or(Blocked::NoCloud)?;
        if self.parts.device.state().online == Some(false) {
            return Err(Blocked::Offline);
        }
        Ok(cloud)
    }

    /// Asks the cloud. `each` gets the pieces of its answer.
    pub fn ask(
        &self,
        out: &mut Out<'_, '_>,
        request: CloudRequest,
        each: &mut dyn FnMut(&mut Out<'_, '_>, &str),
    ) -> Asked {
        let cloud = match self.cloud() {
            Ok(cloud) => cloud,
            Err(blocked) => return Asked::Blocked(blocked),
        };
        let mut request = request;
        if let Some(redactor) = &cloud.redactor {
            match catch_unwind(AssertUnwindSafe(|| redactor.redact(&mut request.messages))) {
                Ok(Ok(())) => {}
                // A redactor that breaks has not redacted.
                Ok(Err(_)) | Err(_) => return Asked::Blocked(Blocked::Redaction),
            }
        }
        let prompt_tokens = estimated_tokens(&request);
        let price = cloud.gate.limits().price;
        if let Some(most) = cloud.gate.affordable_tokens(prompt_tokens) {
            if most == 0 {
                let needed = price.of(CloudUsage { prompt_tokens, completion_tokens: 1 });
                let cap = cloud.gate.limits().max_per_request.unwrap_or(0);
                return Asked::Blocked(Blocked::RequestCost { needed, cap });
            }
            request.max_tokens = Some(request.max_tokens.map_or(most, |n| n.min(most)));
        }
        let most = CloudUsage {
            prompt_tokens,
            completion_tokens: request.max_tokens.map_or(UNBOUNDED_ANSWER, u64::from),
        };
        let permit = match cloud.gate.acquire(price.of(most)) {
            Ok(permit) => permit,
            Err(blocked) => return Asked::Blocked(blocked),
        };
        let payload = match catch_unwind(AssertUnwindSafe(|| cloud.model.prepare(&request))) {
            Ok(Ok(payload)) => payload,
            Ok(Err(error)) => {
                permit.failed(0);
                return Asked::Failed(error);
            }
            Err(panic) => {
                permit.failed(0);
                return Asked::Failed(CloudError::Foreign { reason: panic_message(panic.as_ref()) });
            }
        };
        out.tell(HybridEvent::Outgoing(&payload));
        if out.stopped() {
            return Asked::Stopped;
        }
        let consent = catch_unwind(AssertUnwindSafe(|| cloud.consent.allows(&payload)));
        if !consent.unwrap_or(false) {
            return Asked::Blocked(Blocked::NoConsent);
        }
        // The user may have taken their time, and changed their mind.
        if out.stopped() {
            return Asked::Stopped;
        }
        if let Err(blocked) = self.cloud() {
            return Asked::Blocked(blocked);
        }
        let (sink, inbox) = CloudSink::new(cloud.patience.max_bytes);
        let sent = catch_unwind(AssertUnwindSafe(|| cloud.model.send(&payload, sink)));
        let call = match sent {
            Ok(Ok(call)) => Guard(call),
            Ok(Err(error)) => {
                permit.failed(0);
                return Asked::Failed(error);
            }
            Err(panic) => {
                permit.failed(0);
                return Asked::Failed(CloudError::Foreign { reason: panic_message(panic.as_ref()) });
            }
        };
        let received = receive(&inbox, &cloud.patience, out, each);
        drop(call);
        let used = received.usage.unwrap_or(CloudUsage {
            prompt_tokens,
            completion_tokens: (received.bytes as u64).div_ceil(BYTES_PER_TOKEN),
        });
        let cost = price.of(used);
        out.usage.prompt_tokens += used.prompt_tokens;
        out.usage.completion_tokens += used.completion_tokens;
        out.cost = out.cost.saturating_add(cost);
        settle(permit, &received.asked, cost);
        received.asked
    }
}

/// An answer without a limit is reckoned with this many tokens.
const UNBOUNDED_ANSWER: u64 = 1024;
/// Of ordinary text; errs on the side of more tokens.
const BYTES_PER_TOKEN: u64 = 3;

/// Tokens of a request, for cost: the cloud's tokenizer is not ours.
fn estimated_tokens(request: &CloudRequest) -> u64 {
    request.messages.iter().map(|m| (m.content.len() as u64).div_ceil(BYTES_PER_TOKEN) + 4).sum()
}

fn settle(permit: Permit, asked: &Asked, cost: u64) {
    match asked {
        Asked::Answered(_) => permit.succeeded(cost),
        // The server is well; the request is what it does not like.
        Asked::Failed(CloudError::Status { status: 400..=428 | 430..=499, .. }) => permit.cancelled(cost),
        Asked::Failed(_) => permit.failed(cost),
        Asked::Blocked(_) | Asked::Stopped => permit.cancelled(cost),
    }
}

struct Received {
    asked: Asked,
    usage: Option<CloudUsage>,
    bytes: usize,
}

fn receive(
    inbox: &CloudInbox,
    patience: &CloudPatience,
    out: &mut Out<'_, '_>,
    each: &mut dyn FnMut(&mut Out<'_, '_>, &str),
) -> Received {
    let begun = Instant::now();
    let mut last = begun;
    let mut bytes = 0usize;
    let mut usage = None;
    let asked = loop {
        if out.stopped() {
            break Asked::Stopped;
        }
        match inbox.events.recv_timeout(LOOK) {
            Ok(CloudEvent::Text(text)) => {
                if !text.is_empty() {
                    last = Instant::now();
                    bytes = bytes.saturating_add(text.len());
                    each(out, &text);
                }
            }
            Ok(CloudEvent::Done { finish, usage: counted }) => {
                usage = counted;
                break Asked::Answered(finish);
            }
            Ok(CloudEvent::Failed(error)) => break Asked::Failed(error),
            Err(RecvTimeoutError::Disconnected) => break Asked::Failed(CloudError::Truncated),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let (what, limit, since) = if bytes == 0 {
            ("no text", patience.first_text, begun)
        } else {
            ("no further text", patience.between, last)
        };
        if since.elapsed() >= limit {
            break Asked::Failed(CloudError::TimedOut { what, after: limit });
        }
        if begun.elapsed() >= patience.whole {
            break Asked::Failed(CloudError::TimedOut { what: "no end", after: patience.whole });
        }
    };
    Received { asked, usage, bytes }
}
