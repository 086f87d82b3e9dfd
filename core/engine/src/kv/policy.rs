//! What a sequence may forget.

use std::fmt;
use std::str::FromStr;

use pannier_kernels::PAGE_TOKENS;

/// A position is as warm as the warmest among it, so many before it and so many after it. What attention looks at is often the name of a
/// thing; what is wanted of it stands behind (compare the pooling of SnapKV, arXiv:2404.14469).
const BEHIND: usize = 6;
/// See [`BEHIND`].
const AHEAD: usize = 2;

/// Which positions stay when memory is short, or which are read. Nothing is forgotten unless the app asks for it or configured it
/// ([`EvictWhen`]); what stays keeps its original position, and every eviction is told.
///
/// Layers with a sliding window forget by themselves and take no part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvPolicy {
    /// All of them.
    #[default]
    KeepAll,
    /// The last so many.
    Window {
        /// How many.
        recent: usize,
    },
    /// The first few, which attention leans on whatever they say (arXiv:2309.17453), and the last so many.
    Sinks {
        /// How many of the first.
        sinks: usize,
        /// How many of the last.
        recent: usize,
    },
    /// Sinks, the last so many, and of the rest those that got most attention (arXiv:2306.14048) with those around them: per layer and KV
    /// head, summed over the query heads that share it, divided by how many queries could have looked.
    HeavyHitters {
        /// How many of the first.
        sinks: usize,
        /// How many of the last.
        recent: usize,
        /// How many of those between.
        top: usize,
    },
    /// All of them stay, but a query reads only some pages of 32: the first, the newest two, and of the others those whose keys could match it
    /// best, by the largest and smallest value of each channel (arXiv:2406.10774); chosen anew for each query and KV head. Prompts are read so,
    /// too: what a query reads depends on its position and what is before it, and on nothing else.
    Pages {
        /// How many tokens' worth of pages, rounded up.
        tokens: usize,
    },
}

impl KvPolicy {
    /// The usual sizes: 4 sinks, the last 1024, the top 512.
    pub const HEAVY_HITTERS: KvPolicy = KvPolicy::HeavyHitters { sinks: 4, recent: 1024, top: 512 };
    /// As many as those keep: 1536.
    pub const PAGES: KvPolicy = KvPolicy::Pages { tokens: 1536 };

    /// How many positions stay; `None`: all.
    pub fn keeps(self) -> Option<usize> {
        match self {
            KvPolicy::KeepAll | KvPolicy::Pages { .. } => None,
            KvPolicy::Window { recent } => Some(recent),
            KvPolicy::Sinks { sinks, recent } => Some(sinks.saturating_add(recent)),
            KvPolicy::HeavyHitters { sinks, recent, top } => {
                Some(sinks.saturating_add(recent).saturating_add(top))
            }
        }
    }

    /// The most pages that a query reads; `None`: all.
    pub fn reads(self) -> Option<usize> {
        match self {
            KvPolicy::Pages { tokens } => Some(tokens.div_ceil(PAGE_TOKENS)),
            _ => None,
        }
    }

    /// Whether attention must be watched for it.
    pub fn watches(self) -> bool {
        matches!(self, KvPolicy::HeavyHitters { .. })
    }

    /// The slots of `heat.len()` that stay, ascending. `heat` is the attention per query that each got.
    pub(super) fn choose(self, heat: &[f32], out: &mut Vec<u32>) {
        let slots = heat.len();
        out.clear();
        let (sinks, recent, top) = match self {
            KvPolicy::KeepAll | KvPolicy::Pages { .. } => (slots, 0, 0),
            KvPolicy::Window { recent } => (0, recent, 0),
            KvPolicy::Sinks { sinks, recent } => (sinks, recent, 0),
            KvPolicy::HeavyHitters { sinks, recent, top } => (sinks, recent, top),
        };
        let sinks = sinks.min(slots);
        let tail = slots.saturating_sub(recent).max(sinks);
        out.extend((0..sinks as u32).chain(tail as u32..slots as u32));
        let warmest = |slot: usize| {
            let near = heat.get(slot.saturating_sub(BEHIND)..(slot + AHEAD + 1).min(slots)).unwrap_or(&[]);
            near.iter().copied().fold(0.0, f32::max)
        };
        let mut ranked: Vec<(f32, u32)> = (sinks..tail).map(|slot| (warmest(slot), slot as u32)).collect();
        let top = top.min(ranked.len());
        // Of equals the later: it has had less time.
        let hotter = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1));
        if top > 0 && top < ranked.len() {
            ranked.select_nth_unstable_by(top - 1, hotter);
        }
        out.extend(ranked.iter().take(top).map(|(_, slot)| slot));
        out.sort_unstable();
    }
}

/// When a policy acts by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EvictWhen {
    /// Only when the app asks, or when memory is critically scarce.
    #[default]
    Asked,
    /// Also whenever a sequence holds this many positions more than the policy keeps, so that its memory stays bounded.
    Above(usize),
}

impl fmt::Display for KvPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvPolicy::KeepAll => f.write_str("all"),
            KvPolicy::Window { recent } => write!(f, "window:{recent}"),
            KvPolicy::Sinks { sinks, recent } => write!(f, "sinks:{sinks}:{recent}"),
            KvPolicy::HeavyHitters { sinks, recent, top } => write!(f, "heavy:{sinks}:{recent}:{top}"),
            KvPolicy::Pages { tokens } => write!(f, "pages:{tokens}"),
        }
    }
}

impl FromStr for KvPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<KvPolicy, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers: Option<Vec<usize>> = parts.map(|part| part.parse().ok().filter(|&n| n > 0)).collect();
        match (name, numbers.as_deref()) {
            ("all", Some([])) => Ok(KvPolicy::KeepAll),
            ("window", Some(&[recent])) => Ok(KvPolicy::Window { recent }),
            ("sinks", Some(&[sinks, recent])) => Ok(KvPolicy::Sinks { sinks, recent }),
            ("heavy", Some([])) => Ok(KvPolicy::HEAVY_HITTERS),
            ("heavy", Some(&[sinks, recent, top])) => Ok(KvPolicy::HeavyHitters { sinks, recent, top }),
            ("pages", Some([])) => Ok(KvPolicy::PAGES),
            ("pages", Some(&[tokens])) => Ok(KvPolicy::Pages { tokens }),
            _ => Err(format!(
                "no KV policy {text:?}; there are all, window:N, sinks:FIRST:LAST, heavy, heavy:FIRST:LAST:TOP, pages and pages:N"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(policy: KvPolicy, heat: &[f32]) -> Vec<u32> {
        let mut out = Vec::new();
        policy.choose(heat, &mut out);
        out
    }

    #[test]
    fn what_stays() {
        let heat = [0.0, 0.0, 5.0, 1.0, 9.0, 1.0, 0.5, 0.0, 0.0];
        assert_eq!(chosen(KvPolicy::KeepAll, &heat), (0..9).collect::<Vec<_>>());
        assert_eq!(chosen(KvPolicy::Window { recent: 2 }, &heat), [7, 8]);
        assert_eq!(chosen(KvPolicy::Sinks { sinks: 1, recent: 2 }, &heat), [0, 7, 8]);
        // All between the first and the last two are near the 9; of equals the later.
        let heavy = KvPolicy::HeavyHitters { sinks: 1, recent: 2, top: 3 };
        assert_eq!(chosen(heavy, &heat), [0, 4, 5, 6, 7, 8]);
        // Never more than there are, each once.
        for n in 0..9 {
            assert_eq!(chosen(heavy, &heat[..n]).len(), n.min(6));
        }
    }

    #[test]
    fn what_stands_behind_something_hot_stays_with_it() {
        let mut heat = [0.0; 60];
        heat[20] = 1.0;
        heat[40] = 2.0;
        let heavy = |top| KvPolicy::HeavyHitters { sinks: 1, recent: 1, top };
        let around = |hot: u32| hot - AHEAD as u32..=hot + BEHIND as u32;
        let all: Vec<u32> = [0].into_iter().chain(around(20)).chain(around(40)).chain([59]).collect();
        assert_eq!(chosen(heavy(2 * (BEHIND + AHEAD + 1)), &heat), all);
        let hotter: Vec<u32> = [0].into_iter().chain(around(40)).chain([59]).collect();
        assert_eq!(chosen(heavy(BEHIND + AHEAD + 1), &heat), hotter);
    }

    #[test]
    fn names() {
        for policy in [
            KvPolicy::KeepAll,
            KvPolicy::Window { recent: 7 },
            KvPolicy::Sinks { sinks: 4, recent: 9 },
            KvPolicy::HEAVY_HITTERS,
            KvPolicy::Pages { tokens: 640 },
        ] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert_eq!("heavy".parse(), Ok(KvPolicy::HEAVY_HITTERS));
        assert_eq!("pages".parse(), Ok(KvPolicy::PAGES));
        for wrong in ["", "window", "pages:0", "pages:1:2", "window:0", "window:x", "heavy:1", "all:1"] {
            assert!(wrong.parse::<KvPolicy>().is_err(), "{wrong}");
        }
    }
}
