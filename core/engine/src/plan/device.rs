//! What a device can do: the numbers that a plan is made with.

use serde::{Deserialize, Serialize};

/// A device, as far as it matters to speed and memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Its name.
    pub name: String,
    /// Memory, in bytes.
    pub ram: u64,
    /// What of it one app can have without being killed soon, in bytes.
    pub free: u64,
    /// Large direct reads from flash, bytes per second.
    pub flash_bps: f64,
    /// The share of that which one read alone gets, when no other is under way. More than 1 where not the device is slow, but the average is
    /// limited.
    #[serde(default = "lone_read")]
    pub lone_read: f64,
    /// Reads from memory by all cores, bytes per second.
    pub dram_bps: f64,
    /// What decoding reaches of quantised weights that are in memory, bytes of weights per second.
    pub decode_bps: f64,
    /// What prefill reaches, in 1e9 operations per second; a weight and token are two operations.
    pub gflops: f64,
    /// The size of a page, in bytes.
    pub page: u64,
    /// Products by block format, where they were measured; for all others `decode_bps` and `gflops` stand.
    #[serde(default)]
    pub rates: Vec<FormatRate>,
    /// Attention by the shape of a layer, where it was measured; for all others the rate of halves in products stands.
    #[serde(default)]
    pub attention: Vec<AttentionRate>,
    /// What starting and ending a parallel region costs, in seconds.
    #[serde(default)]
    pub region_s: f64,
    /// Computing that is lost to reading a byte from flash, in seconds: systems copy, decrypt, or emulate a disk with the same cores.
    #[serde(default)]
    pub flash_cost_s: f64,
}

/// How fast a token attends to those before it, in layers of one shape, with all threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionRate {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Length of a key.
    pub k_dim: usize,
    /// Length of a value.
    pub v_dim: usize,
    /// Bytes of keys and values in halves per second.
    pub bps: f64,
}

/// How fast products with matrices of one block format are, with all threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FormatRate {
    /// The format's number in GGUF.
    pub format: u32,
    /// With activations of 16 bits instead of 8.
    pub exact: bool,
    /// One column, weights in memory: bytes of weights per second.
    pub decode_bps: f64,
    /// Many columns: 1e9 operations per second.
    pub gflops: f64,
}

/// CPU kernels in the field reach 10 to 17 of 60 to 77 GB/s; ours reach half of what the memory gives where that was measured.
const DECODE_SHARE: f64 = 0.5;
/// An app on Android is safe with about half of the memory; more and the system's killer comes when another app is opened.
const ANDROID_SHARE: f64 = 0.5;
/// The limit of an app on iOS; with the `increased-memory-limit` entitlement.
const IOS_SHARE: f64 = 0.6;

/// One lane of a phone with UFS 4 has 1.8 of the 2.46 GB/s of two (`ANCHORS`, section 1).
const LONE_READ: f64 = 0.73;

fn lone_read() -> f64 {
    LONE_READ
}

/// A few cache misses between cores; an estimate.
const REGION: f64 = 4e-6;

const GB: f64 = 1e9;

/// One line of the list.
struct Phone {
    name: &'static str,
    ram_gb: u64,
    ios: bool,
    /// Sequential direct reads.
    flash: f64,
    dram: f64,
    gflops: f64,
}

/// Where the numbers are from.
///
/// * `dram`: 64 bits times the data rate that the sources below give; that phones have 64 bits:
///   <https://en.shiftdelete.net/iphone-18-pro-to-feature-a20-pro-with-96-bit-lpddr6-memory/>. What is marked *estimate* is ours.
/// * `flash`: UFS 4.0 reads 4.2 GB/s and UFS 3.1 half of that, sequentially and at best
///   (<https://neowin.net/news/samsung-debuts-all-new-ufs-40-to-enable-speeds-of-up-to-4200mbs-or-double-that-of-ufs-31>). An app with direct
///   reads of 1 MiB and more gets about 60% of it: 2.46 GB/s were measured on a phone with two lanes (`ANCHORS`, section 1). For Apple an
///   estimate.
/// * `gflops`: estimates, from what CPU runs of 7B models in 4 bits are reported to prefill, not measured by us on any of these phones.
#[rustfmt::skip]
const PHONES: &[Phone] = &[
    // LPDDR5X at 4200 MHz (8.4 GT/s), UFS 4.0: https://wccftech.com/qualcomm-snapdragon-8-gen-2-goes-official/
    Phone { name: "snapdragon-8-gen-2-8gb",  ram_gb: 8,  ios: false, flash: 2.4, dram: 67.2, gflops: 350.0 },
    Phone { name: "snapdragon-8-gen-2-12gb", ram_gb: 12, ios: false, flash: 2.4, dram: 67.2, gflops: 350.0 },
    Phone { name: "snapdragon-8-gen-2-16gb", ram_gb: 16, ios: false, flash: 2.4, dram: 67.2, gflops: 350.0 },
    // LPDDR5X at 4800 MHz (9.6 GT/s): https://droidholic.com/snapdragon-8-gen-3-launched/
    Phone { name: "snapdragon-8-gen-3-8gb",  ram_gb: 8,  ios: false, flash: 2.5, dram: 76.8, gflops: 500.0 },
    Phone { name: "snapdragon-8-gen-3-12gb", ram_gb: 12, ios: false, flash: 2.5, dram: 76.8, gflops: 500.0 },
    Phone { name: "snapdragon-8-gen-3-16gb", ram_gb: 16, ios: false, flash: 2.5, dram: 76.8, gflops: 500.0 },
    Phone { name: "snapdragon-8-gen-3-24gb", ram_gb: 24, ios: false, flash: 2.5, dram: 76.8, gflops: 500.0 },
    // LPDDR5T at 9.6 GT/s, UFS 4.0 with several queues:
    // https://www.stuffindia.in/news/mediatek-dimensity-9300-soc-is-said-to-maximise-smartphone-performance-and-efficiency/2331
    Phone { name: "dimensity-9300-12gb",     ram_gb: 12, ios: false, flash: 2.5, dram: 76.8, gflops: 520.0 },
    Phone { name: "dimensity-9300-16gb",     ram_gb: 16, ios: false, flash: 2.5, dram: 76.8, gflops: 520.0 },
    // One and three Cortex-A76, four A55, no i8mm: https://www.generation-nt.com/huawei-kirin-985-processeur-mobile-5g-actualite-1975232.html
    // Estimate: LPDDR4X at 4.27 GT/s and UFS 3.0, as its contemporaries have.
    Phone { name: "kirin-985-6gb",           ram_gb: 6,  ios: false, flash: 1.1, dram: 34.1, gflops: 110.0 },
    Phone { name: "kirin-985-8gb",           ram_gb: 8,  ios: false, flash: 1.1, dram: 34.1, gflops: 110.0 },
    // LPDDR5 in the A16 and A17, LPDDR5X in the A18: https://www.ithinkdiff.com/apple-faster-ram-iphone-16-not-iphone-15-2023/
    // Estimate: 6.4 and 7.5 GT/s.
    Phone { name: "apple-a16-6gb",           ram_gb: 6,  ios: true,  flash: 1.6, dram: 51.2, gflops: 350.0 },
    Phone { name: "apple-a17-pro-8gb",       ram_gb: 8,  ios: true,  flash: 1.8, dram: 51.2, gflops: 400.0 },
    Phone { name: "apple-a18-8gb",           ram_gb: 8,  ios: true,  flash: 1.9, dram: 60.0, gflops: 480.0 },
];

impl DeviceProfile {
    /// Phones that a plan can be made for without having them.
    pub fn phones() -> impl Iterator<Item = DeviceProfile> {
        PHONES.iter().map(|phone| {
            let ram = phone.ram_gb << 30;
            let share = if phone.ios { IOS_SHARE } else { ANDROID_SHARE };
            DeviceProfile {
                name: phone.name.to_owned(),
                ram,
                free: (ram as f64 * share) as u64,
                flash_bps: phone.flash * GB,
                lone_read: LONE_READ,
                dram_bps: phone.dram * GB,
                decode_bps: phone.dram * GB * DECODE_SHARE,
                gflops: phone.gflops,
                page: if phone.ios { 16384 } else { 4096 },
                rates: Vec::new(),
                attention: Vec::new(),
                region_s: REGION,
                flash_cost_s: 0.0,
            }
        })
    }

    /// The phone of this name.
    pub fn by_name(name: &str) -> Option<DeviceProfile> {
        Self::phones().find(|phone| phone.name == name)
    }

    /// A device of which nothing is known: plans made with it say what fits, their speeds mean nothing.
    pub fn unknown() -> DeviceProfile {
        DeviceProfile { name: "unknown".to_owned(), ..DeviceProfile::custom(8 << 30, GB, 20.0 * GB, 100.0) }
    }

    /// From few numbers; what is not given follows from the others.
    pub fn custom(ram: u64, flash_bps: f64, dram_bps: f64, gflops: f64) -> DeviceProfile {
        DeviceProfile {
            name: "custom".to_owned(),
            ram,
            free: ram / 2,
            flash_bps,
            lone_read: LONE_READ,
            dram_bps,
            decode_bps: dram_bps * DECODE_SHARE,
            gflops,
            page: 4096,
            rates: Vec::new(),
            attention: Vec::new(),
            region_s: REGION,
            flash_cost_s: 0.0,
        }
    }
}
