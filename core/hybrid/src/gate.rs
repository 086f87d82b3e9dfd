//! What keeps cloud use within bounds: cost caps, a rate limit, a circuit breaker. Shared by all conversations of an app.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pannier::session::{Clock, MonotonicClock};
use serde::{Deserialize, Serialize};

use crate::cloud::CloudUsage;
use crate::policy::Blocked;

/// Prices in millionths of the app's currency per million tokens, so that sums are exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Price {
    /// For a million tokens of requests.
    pub prompt_micros: u64,
    /// For a million tokens of answers.
    pub completion_micros: u64,
}

impl Price {
    /// What this use costs, rounded up.
    #[must_use]
    pub fn of(&self, usage: CloudUsage) -> u64 {
        let cost = u128::from(usage.prompt_tokens) * u128::from(self.prompt_micros)
            + u128::from(usage.completion_tokens) * u128::from(self.completion_micros);
        u64::try_from(cost.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// Bounds of cloud use. The defaults bound nothing but failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloudLimits {
    /// The price list.
    pub price: Price,
    /// The most a request may cost, in millionths. The answer's length is capped to keep it.
    pub max_per_request: Option<u64>,
    /// The most that all requests of a day (UTC) may cost.
    pub max_per_day: Option<u64>,
    /// The most requests per minute.
    pub max_per_minute: Option<u32>,
    /// This many failures in a row open the circuit.
    pub failures_to_open: u32,
    /// How long it stays open at first. Doubles with every failed trial, up to 32 times this.
    pub open_for: Duration,
}

impl Default for CloudLimits {
    fn default() -> Self {
        Self {
            price: Price::default(),
            max_per_request: None,
            max_per_day: None,
            max_per_minute: None,
            failures_to_open: 3,
            open_for: Duration::from_secs(30),
        }
    }
}

/// What survives a restart of the app.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Days since 1970, UTC.
    pub day: u64,
    /// Spent on that day, in millionths.
    pub spent: u64,
}

/// The day, from outside: tests have their own.
pub trait Calendar: Send + Sync {
    /// Days since 1970, UTC.
    fn day(&self) -> u64;
}

/// The system's date.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemCalendar;

impl Calendar for SystemCalendar {
    fn day(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400)
    }
}

/// Keeper of the bounds.
pub struct CloudGate {
    limits: CloudLimits,
    clock: Arc<dyn Clock>,
    calendar: Arc<dyn Calendar>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    /// Reserved by requests under way.
    reserved: u64,
    /// When requests of the last minute began.
    begun: VecDeque<Duration>,
    circuit: Circuit,
}

/// ```text
/// Closed --n failures--> Open --time--> (one trial) --success--> Closed
///                          ^------------failure, doubled time----|
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
enum Circuit {
    Closed { failures: u32 },
    Open { until: Duration, opened: u32, trial: bool },
}

impl Default for Circuit {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

impl CloudGate {
    /// A gate with these bounds.
    #[must_use]
    pub fn new(limits: CloudLimits) -> Arc<Self> {
        Self::with_clocks(limits, Arc::new(MonotonicClock::default()), Arc::new(SystemCalendar))
    }

    /// A gate with its own idea of time.
    #[must_use]
    pub fn with_clocks(limits: CloudLimits, clock: Arc<dyn Clock>, calendar: Arc<dyn Calendar>) -> Arc<Self> {
        Arc::new(Self { limits, clock, calendar, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bounds.
    #[must_use]
    pub fn limits(&self) -> &CloudLimits {
        &self.limits
    }

    /// What was spent, for apps that keep it over restarts.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.state().ledger
    }

    /// Takes up a kept ledger.
    pub fn restore(&self, ledger: Ledger) {
        self.state().ledger = ledger;
    }

    /// The most tokens an answer may have so that the request keeps its cap; `None`: any number. Zero: none at all.
    #[must_use]
    pub fn affordable_tokens(&self, prompt_tokens: u64) -> Option<u32> {
        let cap = self.limits.max_per_request?;
        let price = self.limits.price;
        let prompt = price.of(CloudUsage { prompt_tokens, completion_tokens: 0 });
        if price.completion_micros == 0 {
            return if prompt > cap { Some(0) } else { None };
        }
        let left = u128::from(cap.saturating_sub(prompt)) * 1_000_000;
        Some(u32::try_from(left / u128::from(price.completion_micros)).unwrap_or(u32::MAX))
    }

    /// Asks for one request that may cost up to this.
    ///
    /// # Errors
    /// Which bound is in the way.
    pub fn acquire(self: &Arc<Self>, most: u64) -> Result<Permit, Blocked> {
        let now = self.clock.now();
        let day = self.calendar.day();
        let mut state = self.state();
        if state.ledger.day != day {
            state.ledger = Ledger { day, spent: 0 };
        }
        if let Some(cap) = self.limits.max_per_request.filter(|cap| most > *cap) {
            return Err(Blocked::RequestCost { needed: most, cap });
        }
        let spent = state.ledger.spent.saturating_add(state.reserved);
        if let Some(cap) = self.limits.max_per_day.filter(|cap| spent.saturating_add(most) > *cap) {
            return Err(Blocked::DayCost { spent, needed: most, cap });
        }
        let minute = Duration::from_secs(60);
        while state.begun.front().is_some_and(|t| now.saturating_sub(*t) >= minute) {
            state.begun.pop_front();
        }
        if let Some(limit) = self.limits.max_per_minute.filter(|l| state.begun.len() >= *l as usize) {
            return Err(Blocked::Rate { per_minute: limit });
        }
        let trial = match &mut state.circuit {
            Circuit::Closed { .. } => false,
            Circuit::Open { until, trial, .. } if now < *until || *trial => {
                return Err(Blocked::CircuitOpen { retry_in: until.saturating_sub(now) });
            }
            Circuit::Open { trial, .. } => {
                *trial = true;
                true
            }
        };
        state.begun.push_back(now);
        state.reserved = state.reserved.saturating_add(most);
        Ok(Permit { gate: Arc::clone(self), most, trial, settled: false })
    }
}

/// Leave to make one request. Dropped without a verdict, it counts as not made.
pub struct Permit {
    gate: Arc<CloudGate>,
    most: u64,
    trial: bool,
    settled: bool,
}

impl Permit {
    /// The request came back well.
    pub fn succeeded(mut self, cost: u64) {
        self.settle(cost, Some(true));
    }

    /// The cloud failed, after this much cost.
    pub fn failed(mut self, cost: u64) {
        self.settle(cost, Some(false));
    }

    /// The app stopped it: says nothing about the cloud.
    pub fn cancelled(mut self, cost: u64) {
        self.settle(cost, None);
    }

    fn settle(&mut self, cost: u64, well: Option<bool>) {
        self.settled = true;
        let now = self.gate.clock.now();
        let limits = self.gate.limits;
        let mut state = self.gate.state();
        state.reserved = state.reserved.saturating_sub(self.most);
        state.ledger.spent = state.ledger.spent.saturating_add(cost);
        let open = |opened: u32| Circuit::Open {
            until: now.saturating_add(limits.open_for.saturating_mul(1 << opened.min(5))),
            opened,
            trial: false,
        };
        state.circuit = match (state.circuit, well) {
            (_, Some(true)) => Circuit::Closed { failures: 0 },
            (Circuit::Closed { failures }, Some(false)) if failures + 1 >= limits.failures_to_open => open(0),
            (Circuit::Closed { failures }, Some(false)) => Circuit::Closed { failures: failures + 1 },
            // A failure of a request that began before the circuit opened says nothing new.
            (Circuit::Open { opened, .. }, Some(false)) if self.trial => open(opened.saturating_add(1)),
            (Circuit::Open { until, opened, .. }, None) if self.trial => {
                Circuit::Open { until, opened, trial: false }
            }
            (circuit, _) => circuit,
        };
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.settled {
            self.settle(0, None);
            self.gate.state().begun.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Time {
        seconds: AtomicU64,
    }

    impl Clock for Time {
        fn now(&self) -> Duration {
            Duration::from_secs(self.seconds.load(Ordering::SeqCst))
        }
    }

    impl Calendar for Time {
        fn day(&self) -> u64 {
            self.seconds.load(Ordering::SeqCst) / 86_400
        }
    }

    fn gate(limits: CloudLimits) -> (Arc<CloudGate>, Arc<Time>) {
        let time = Arc::new(Time::default());
        let (clock, calendar): (Arc<dyn Clock>, Arc<dyn Calendar>) = (time.clone(), time.clone());
        (CloudGate::with_clocks(limits, clock, calendar), time)
    }

    #[test]
    fn costs_are_capped_per_request_and_day() {
        let price = Price { prompt_micros: 1_000_000, completion_micros: 2_000_000 };
        let limits = CloudLimits {
            price,
            max_per_request: Some(100),
            max_per_day: Some(250),
            ..CloudLimits::default()
        };
        let (gate, time) = gate(limits);
        assert_eq!(price.of(CloudUsage { prompt_tokens: 20, completion_tokens: 40 }), 100);
        assert_eq!(gate.affordable_tokens(20), Some(40));
        assert_eq!(gate.affordable_tokens(200), Some(0));
        assert_eq!(gate.acquire(101).err(), Some(Blocked::RequestCost { needed: 101, cap: 100 }));
        let (a, b) = (gate.acquire(100).unwrap(), gate.acquire(100).unwrap());
        // What runs is counted at its most.
        assert_eq!(gate.acquire(100).err(), Some(Blocked::DayCost { spent: 200, needed: 100, cap: 250 }));
        a.succeeded(30);
        b.failed(0);
        gate.acquire(100).unwrap().succeeded(100);
        assert_eq!(gate.ledger().spent, 130);
        time.seconds.store(86_400, Ordering::SeqCst);
        gate.acquire(100).unwrap().succeeded(100);
        assert_eq!(gate.ledger(), Ledger { day: 1, spent: 100 });
        let kept = gate.ledger();
        gate.restore(Ledger { spent: 200, ..kept });
        assert!(gate.acquire(100).is_err());
    }

    #[test]
    fn requests_per_minute_are_limited_and_unmade_ones_do_not_count() {
        let (gate, time) = gate(CloudLimits { max_per_minute: Some(2), ..CloudLimits::default() });
        drop(gate.acquire(0).unwrap());
        gate.acquire(0).unwrap().succeeded(0);
        gate.acquire(0).unwrap().succeeded(0);
        assert_eq!(gate.acquire(0).err(), Some(Blocked::Rate { per_minute: 2 }));
        time.seconds.store(60, Ordering::SeqCst);
        assert!(gate.acquire(0).is_ok());
    }

    #[test]
    fn the_circuit_opens_tries_once_and_closes() {
        let limits =
            CloudLimits { failures_to_open: 2, open_for: Duration::from_secs(10), ..CloudLimits::default() };
        let (gate, time) = gate(limits);
        gate.acquire(0).unwrap().failed(0);
        gate.acquire(0).unwrap().succeeded(0);
        gate.acquire(0).unwrap().failed(0);
        gate.acquire(0).unwrap().failed(0);
        let wait = |s| Some(Blocked::CircuitOpen { retry_in: Duration::from_secs(s) });
        assert_eq!(gate.acquire(0).err(), wait(10));
        time.seconds.store(10, Ordering::SeqCst);
        let trial = gate.acquire(0).unwrap();
        assert_eq!(gate.acquire(0).err(), wait(0), "one trial at a time");
        trial.failed(0);
        assert_eq!(gate.acquire(0).err(), wait(20), "twice as long");
        time.seconds.store(30, Ordering::SeqCst);
        // A trial that was stopped gives its place to the next.
        gate.acquire(0).unwrap().cancelled(0);
        gate.acquire(0).unwrap().succeeded(0);
        assert!(gate.acquire(0).is_ok());
    }
}
